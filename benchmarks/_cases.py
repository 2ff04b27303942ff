"""One case: build all indexes, tune to equal recall, ask in turn, insert in turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from benchmarks import _indexes, _machine, _timing
from benchmarks._vectors import Case, K, exact, recall
from mempo_jax.memory import Bank, BankConfig

_INSERT_ROUND = 100
LEAST_TARGET = 0.95


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is measured.

    rounds, batch: rounds of so many single queries, after one round of warm-up.
    skipped: "name" or "name@rows". largest_bank: rows up to which a whole bank is
    measured too.
    """

    rounds: int
    batch: int
    skipped: tuple[str, ...]
    largest_bank: int

    @property
    def queries(self) -> int:
        """Queries that a case must hold."""
        return (1 + self.rounds) * self.batch

    def split(self, count: int) -> list[range]:
        """Rounds over ``count`` queries, warm-up first; smaller ones if they are few.

        Raises ValueError for fewer queries than rounds.
        """
        batch = min(self.batch, count // (1 + self.rounds))
        if batch < 1:
            raise ValueError(
                f"expected at least {1 + self.rounds} queries, got {count}; lower "
                "--rounds or give more texts"
            )
        return [range(i * batch, (i + 1) * batch) for i in range(1 + self.rounds)]

    def skips(self, name: str, count: int) -> bool:
        """Whether the user left this index out, at this size or at all."""
        return name in self.skipped or f"{name}@{count}" in self.skipped


def measure(case: Case, plan: Plan, say: Callable[[str], None]) -> dict:
    """The whole of one case as plain data: rows by name, and what was left out."""
    indexes, rows, skipped = _build(case, plan, say)
    rounds = plan.split(len(case.queries))
    measured = case.queries[rounds[1].start : rounds[-1].stop]
    nearest = exact(case.rows[: case.count], measured, K)
    target = _tune(case, indexes, rows, measured, nearest[:, -1], say)
    calls = _calls(case, indexes)
    if case.count <= plan.largest_bank:
        calls["bank.recall"], rows["bank.recall"] = _bank(case)
    _ask(case, calls, rows, rounds, nearest[:, -1])
    _insert(case, indexes, rows)
    calls.pop("bank.recall", None)
    later = exact(case.rows, measured, K)
    after = {name: {} for name in calls}
    _ask(case, calls, after, rounds, later[:, -1])
    for name, line in after.items():
        rows[name]["after"] = line
    return {
        "name": case.name,
        "count": case.count,
        "inserts": len(case.rows) - case.count,
        "cosine": {
            "nearest": float(nearest[:, 0].mean()),
            "tenth": float(nearest[:, -1].mean()),
        },
        "target": target,
        "rows": rows,
        "skipped": skipped,
    }


def _build(case: Case, plan: Plan, say) -> tuple[dict, dict, dict]:
    """The indexes, with seconds (a first search included) and memory of each."""
    indexes, rows, skipped = {}, {}, {}
    for name, kind in _indexes.KINDS.items():
        reason = "left out" if plan.skips(name, case.count) else _indexes.missing(name)
        if reason:
            skipped[name] = reason
            continue

        def make(kind=kind):
            index = kind(case.rows, case.count)
            index.search(case.queries[0], K)  # some build when first asked
            return index

        before = _machine.resident()
        indexes[name], seconds = _timing.timed(make)
        size = _machine.resident() - before
        rows[name] = {"build_s": seconds, "memory_mb": size / 1e6}
        say(f"  {name}: built in {seconds:.1f} s")
    return indexes, rows, skipped


def _tune(case: Case, indexes: dict, rows: dict, queries, kth, say) -> float:
    """Sets each to its cheapest setting that reaches our recall, else to its best.

    On the measured queries themselves, so that recall is equal where latency is read.
    """
    there = case.rows[: case.count]

    def reached(index) -> float:
        found = [index.search(query, K) for query in queries]
        return recall(there, queries, found, kth)

    ours = reached(indexes["ours"])
    target = max(LEAST_TARGET, ours)
    say(f"  recall of ours {ours:.4f}, so the target is {target:.4f}")
    for name, index in indexes.items():
        best, best_setting = (target if name == "numpy" else ours), None
        for setting in index.settings:
            index.use(setting)
            value = reached(index)
            if best_setting is None or value > best:
                best, best_setting = value, setting
            if value >= target:
                break
        if best_setting is not None:
            index.use(best_setting)
        rows[name].update(setting=index.label, short=best < target)
        if index.settings:
            say(f"  {name}: {index.label}, recall {best:.4f}")
    return target


def _calls(case: Case, indexes: dict) -> dict[str, _timing.Call]:
    queries = case.queries
    return {
        name: lambda i, index=index: index.search(queries[i], K)
        for name, index in indexes.items()
    }


def _bank(case: Case) -> tuple[_timing.Call, dict]:
    """``Bank.recall`` at its defaults, embedding of the query included."""
    texts, asked = case.texts[: case.count], case.asked
    bank, seconds = _timing.timed(
        lambda: Bank.from_texts(texts, BankConfig(), case.embedder)
    )
    _, first = _timing.timed(lambda: bank._table.index.settle())
    row = {"build_s": seconds + first, "setting": "defaults, 6 of 24 by MMR"}
    return lambda i: bank.recall(asked[i], step=0), row


def _ask(case: Case, calls: dict, rows: dict, rounds: list[range], kth) -> None:
    """A warm-up round, then the measured ones: latency of each, and its recall."""
    _timing.in_turn(calls, rounds[:1])
    seconds, found = _timing.in_turn(calls, rounds[1:])
    measured = case.queries[rounds[1].start : rounds[-1].stop]
    for name in calls:
        rows[name].update(_timing.spread(seconds[name]))
        rows[name]["to_numpy"] = _timing.ratio(seconds[name], seconds["numpy"])
        if name != "bank.recall":
            rows[name]["recall"] = recall(case.rows, measured, found[name], kth)


def _insert(case: Case, indexes: dict, rows: dict) -> None:
    """Single inserts of all later rows, in turn, in rounds of a hundred."""
    adders = {
        name: lambda row, index=index: index.add(row, case.rows[row])
        for name, index in indexes.items()
    }
    starts = range(case.count, len(case.rows), _INSERT_ROUND)
    rounds = [range(s, min(s + _INSERT_ROUND, len(case.rows))) for s in starts]
    parts = [_timing.in_turn(adders, [arguments])[0] for arguments in rounds]
    for name in indexes:
        if name == "numpy":
            continue  # its rows lie in the matrix beforehand
        seconds = np.concatenate([part[name].ravel() for part in parts])
        rows[name]["insert"] = _timing.spread(seconds)
