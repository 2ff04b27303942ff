"""The figures of one policy or rule as a row, and rows as a table, JSON and CSV."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from mempo_jax.envs.answers import answer_f1, exact_match, join_answers, split_answers
from mempo_jax.evaluation.baselines import ToldTrajectory
from mempo_jax.evaluation.stats import mean_ci95, ratio_ci95
from mempo_jax.rollout.trajectory import Trajectory

Row = dict[str, Any]
# What a row holds, in order: by column, a heading of the table on screen.
MEASURES = {
    "success_sampled": "success, sampled",
    "success_greedy": "success, greedy",
    "em": "exact match",
    "f1": "token F1",
    "tokens_total": "tokens, fed",
    "tokens_computed": "tokens, computed",
    "tokens_peak": "tokens, peak",
    "write_precision": "memory precision",
    "write_recall": "memory recall",
    "recall_hit_rate": "hit rate",
    "evidence_recall": "evidence recalled",
    "staleness": "staleness, turns",
    "junk_share": "junk share",
}


def row(
    policy: str,
    sampled: Sequence[ToldTrajectory],
    greedy: Sequence[ToldTrajectory] | None = None,
) -> Row:
    """The figures of one policy, each {"mean": x, "ci95": [low, high]}, x None where
    nothing was there to be measured.

    success: mean task score. em, f1: of the answer given to each question that has a
    gold one, mean over the task's questions. tokens_total: fed over all turns of a
    trajectory, contexts and actions; tokens_computed: without what the turn before had
    computed (prefix reuse); tokens_peak: the longest turn. write_precision: share of
    writes that tell of an observation worth remembering; write_recall: share of those
    observations that a write tells of. recall_hit_rate: recalls that found an entry.
    evidence_recall: share of what supports a question's answer that was recalled where
    it was asked. staleness: turns since an entry was last used; junk_share: entries
    never recalled, both of what lies in the bank at the end of a task.

    Means of values that are all 0 or 1 have Wilson's interval, others a bootstrap over
    trajectories. All but success_greedy are of ``sampled``.

    Args:
      greedy: None for a rule, which does not sample: its success stands twice.
    """
    made = [each.trajectory for each in sampled]
    lucky = made if greedy is None else [each.trajectory for each in greedy]
    whole = [each for each in sampled if each.trajectory.failure is None]
    graded = [answer_scores(each.trajectory) for each in whole]
    writes = [_write_counts(each) for each in whole]
    needed = [_write_recall_counts(each) for each in whole]
    recalls = [_recall_counts(each.trajectory) for each in whole]
    evidence = [_evidence_counts(each) for each in whole]
    recalled = sum(count for _, count in recalls) > 0
    banks = [t.hygiene for t in made if t.hygiene is not None and t.hygiene.active]
    return {
        "policy": policy,
        "success_sampled": _mean([t.score for t in made]),
        "success_greedy": _mean([t.score for t in lucky]),
        "em": _mean([scores[0] for scores in graded if scores is not None]),
        "f1": _mean([scores[1] for scores in graded if scores is not None]),
        "tokens_total": _mean([float(t.tokens_total) for t in made]),
        "tokens_computed": _mean([float(tokens_computed(t)) for t in made]),
        "tokens_peak": _mean([float(t.tokens_peak) for t in made]),
        "write_precision": _ratio(writes),
        "write_recall": _ratio(needed if any(n for _, n in writes) else []),
        "recall_hit_rate": _ratio(recalls),
        "evidence_recall": _ratio(evidence if recalled else []),
        "staleness": _mean([bank.staleness_mean for bank in banks]),
        "junk_share": _mean([bank.junk_share for bank in banks]),
        "failed": sum(
            each.trajectory.failure is not None for each in (*sampled, *(greedy or ()))
        ),
    }


def answer_scores(trajectory: Trajectory) -> tuple[float, float] | None:
    """Exact match and token F1, means over the questions; None without any."""
    seen = trajectory.turn_observation
    given: dict[int, str] = {}
    for record in trajectory.log:
        if record.kind in ("act", "answer"):
            given[seen[record.turn]] = record.text
    pairs: list[tuple[str, str]] = []
    for question in trajectory.questions:
        answer = given.get(question.observation, "")
        pairs += _parted(answer, question.answer)
    if not pairs:
        return None
    em = sum(exact_match(*pair) for pair in pairs) / len(pairs)
    return em, sum(answer_f1(*pair) for pair in pairs) / len(pairs)


def _parted(given: str, gold: str) -> list[tuple[str, str]]:
    """(given, gold) for each of several answers that stand numbered in one."""
    count = 0
    while True:
        parts = split_answers(gold, count + 1)
        if not all(parts) or join_answers(parts) != gold:
            break
        count += 1
    if not count:
        return [(given, gold)]
    golds = split_answers(gold, count)
    return list(zip(split_answers(given, count), golds, strict=True))


def tokens_computed(trajectory: Trajectory) -> int:
    """Tokens that went through the model once each prefix is reused.

    A segment is computed once; of a rebuilt one, what it shares with the beginning of
    the one before it is not computed again.
    """
    total, before = 0, []
    for segment in trajectory.segments:
        pairs = zip(before, segment.tokens)
        same = sum(
            1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
        )
        total += len(segment.tokens) - same
        before = segment.tokens
    return total


def told_by_writes(told: ToldTrajectory) -> list[tuple[int, frozenset[int]]]:
    """(entry id or -1, observations) of each write in the log that was well formed."""
    trajectory = told.trajectory
    seen, rows = trajectory.turn_observation, []
    writes = [r for r in trajectory.log if r.kind == "write"]
    for number, record in enumerate(writes):
        known = told.writes is not None and number < len(told.writes)
        of = told.writes[number] if known else frozenset({seen[record.turn]})
        if record.error is None:
            rows.append((record.entry_ids[0] if record.entry_ids else -1, of))
    return rows


def _write_counts(told: ToldTrajectory) -> tuple[int, int]:
    """(useful writes, writes)."""
    useful = told.trajectory.useful
    rows = told_by_writes(told)
    return sum(bool(of & useful) for _, of in rows), len(rows)


def _write_recall_counts(told: ToldTrajectory) -> tuple[int, int]:
    """(useful observations that a write tells of, useful observations)."""
    useful = told.trajectory.useful
    written = frozenset().union(*(of for _, of in told_by_writes(told)))
    return len(useful & written), len(useful)


def _recall_counts(trajectory: Trajectory) -> tuple[int, int]:
    recalls = [r for r in trajectory.log if r.kind == "recall"]
    return sum(bool(r.entry_ids) for r in recalls), len(recalls)


def _evidence_counts(told: ToldTrajectory) -> tuple[int, int]:
    """(supporting observations recalled where they were asked for, all of them)."""
    trajectory = told.trajectory
    found, seen = _recalled_observations(told), trajectory.turn_observation
    by_observation: dict[int, set[int]] = {}
    for turn, observations in found:
        by_observation.setdefault(seen[turn], set()).update(observations)
    had = [
        len(q.support & by_observation.get(q.observation, set()))
        for q in trajectory.questions
    ]
    return sum(had), sum(len(q.support) for q in trajectory.questions)


def _recalled_observations(told: ToldTrajectory) -> list[tuple[int, frozenset[int]]]:
    """(turn, observations that the recalled entries tell of) of each recall."""
    writes = iter(told_by_writes(told))
    holds: dict[int, frozenset[int]] = {}
    found = []
    for record in told.trajectory.log:
        if record.kind == "write" and record.error is None:
            entry, of = next(writes)
            holds[entry] = of.union(*(holds.get(i, ()) for i in record.entry_ids))
        elif record.kind == "merge" and record.error is None and record.entry_ids:
            parents = (holds.get(i, frozenset()) for i in record.entry_ids[1:])
            holds[record.entry_ids[0]] = frozenset().union(*parents)
        elif record.kind == "recall":
            of = (holds.get(i, frozenset()) for i in record.entry_ids)
            found.append((record.turn, frozenset().union(*of)))
    return found


def _mean(values: Sequence[float]) -> dict[str, Any]:
    if all(value in (0.0, 1.0) for value in values):
        return dict(mean_ci95(values))
    return ratio_ci95(values, [1.0] * len(values))


def _ratio(counts: Sequence[tuple[int, int]]) -> dict[str, Any]:
    return ratio_ci95([part for part, _ in counts], [whole for _, whole in counts])


def to_csv(rows: Sequence[Row]) -> str:
    """A line a policy; mean, low and high of each measure, empty where unknown."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts = ("", "_low", "_high")
    heads = [f"{name}{part}" for name in MEASURES for part in parts]
    writer.writerow(["policy", *heads, "failed"])
    for each in rows:
        numbers = [
            number
            for name in MEASURES
            for number in (each[name]["mean"], *each[name]["ci95"])
        ]
        shown = ["" if n is None else f"{n:.6g}" for n in numbers]
        writer.writerow([each["policy"], *shown, each["failed"]])
    return out.getvalue()


def lines(rows: Sequence[Row]) -> list[str]:
    """The table on screen: a column a measure would be too wide, so a block a measure
    group, a line a policy."""
    blocks = (
        ("success_sampled", "success_greedy", "em", "f1"),
        ("tokens_total", "tokens_computed", "tokens_peak"),
        ("write_precision", "write_recall", "recall_hit_rate"),
        ("evidence_recall", "staleness", "junk_share"),
    )
    wide = max(len(each["policy"]) for each in rows) + 1
    made = []
    for names in blocks:
        made.append(" " * wide + "".join(f"{MEASURES[name]:>24}" for name in names))
        for each in rows:
            cells = [f"{_cell(each[name]):>24}" for name in names]
            made.append(f"{each['policy']:{wide}}{''.join(cells)}")
        made.append("")
    failures = {each["policy"]: each["failed"] for each in rows if each["failed"]}
    made += [f"{n} trajectories failed: {name}" for name, n in failures.items()]
    return made


def _cell(estimate: Mapping[str, Any]) -> str:
    mean, (low, high) = estimate["mean"], estimate["ci95"]
    if mean is None:
        return "-"
    return f"{figure(mean)} [{figure(low)}, {figure(high)}]"


def figure(value: float | None, *, digits: int = 3, unknown: str = "-") -> str:
    """A figure for reading. digits: behind the point, of one below 10."""
    if value is None:
        return unknown
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.{digits}f}"
