"""Who made a memory: from the op log, the ops that an entry's text came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mempo_jax.memory import OpRecord


class Lineage:
    """The entries of one trajectory, as its op log tells them.

    Entries of an initial bank are in no log: they have no text and no ops here.
    """

    def __init__(self, log: Sequence[OpRecord]) -> None:
        self._log = log
        self.texts: dict[int, str] = {}
        self._writes: dict[int, tuple[int, ...]] = {}
        self._merges: dict[int, tuple[int, ...]] = {}
        for k, record in enumerate(log):
            if makes_entry(record):
                self._add(k, record)

    def shares(self, entry: int) -> dict[int, float]:
        """Positions in the log of the writes that the entry came from; shares add to 1.

        Parents that were joined share equally with the write that joined them, as no
        one can say which words did it. One that was superseded has no share, unless
        the update left statements of it as they were.
        """
        writes = self._writes.get(entry, ())
        return {k: 1.0 / len(writes) for k in writes}

    def merges(self, entry: int) -> tuple[int, ...]:
        """Positions in the log of the policy's merges that the entry went through."""
        return self._merges.get(entry, ())

    def uses(self, turn_count: int) -> dict[int, list[int]]:
        """Position in the log of each write or merge -> the turns that used its text.

        A recall at turn t shows its hits to turn t + 1 and to the turns after it until
        one that does not recall has acted; where a context keeps the text for longer,
        later turns do not count as uses. A use of an entry is one of every op that it
        came from: outdated text earns nothing by the new one, statements that an update
        left as they were go on earning.
        """
        recalls = {r.turn for r in self._log if r.kind == "recall"}
        uses: dict[int, list[int]] = {}
        for record in self._log:
            if record.kind != "recall" or record.turn + 1 >= turn_count:
                continue
            last = record.turn + 1
            while last in recalls and last + 1 < turn_count:
                last += 1
            origins: set[int] = set()
            for entry in record.entry_ids:
                origins |= {*self._writes.get(entry, ()), *self.merges(entry)}
            for k in origins:
                uses.setdefault(k, []).extend(range(record.turn + 1, last + 1))
        return uses

    def alive(self, end: int) -> set[int]:
        """Entries that are active once the first ``end`` records have been applied."""
        living: set[int] = set()
        for record in self._log[:end]:
            if makes_entry(record):
                living -= set(record.entry_ids[1:])
                living.add(record.entry_ids[0])
            elif record.outcome == "deleted":
                living -= set(record.entry_ids)
            living -= set(record.evicted)
        return living

    def evictions(self) -> dict[int, int]:
        """Entry that the cap pushed out -> position in the log of the op that did."""
        return {e: k for k, record in enumerate(self._log) for e in record.evicted}

    def crowding(self, entry: int, end: int) -> list[int]:
        """Entries younger than ``entry`` that were active after ``end`` records."""
        return sorted(other for other in self.alive(end) if other > entry)

    def replaced_at(self, k: int) -> int | None:
        """Turn in which the text of write ``k`` was superseded or deleted, or None.

        What the cap evicts was not taken back by the policy: it is not counted here.
        """
        living = {self._log[k].entry_ids[0]}
        for record in self._log[k + 1 :]:
            touched = living & set(record.entry_ids)
            if makes_entry(record) and living & set(record.entry_ids[1:]):
                if k not in self._writes[record.entry_ids[0]]:
                    return record.turn
                living = {record.entry_ids[0]}
            elif record.outcome == "deleted" and touched:
                return record.turn
        return None

    def _add(self, k: int, record: OpRecord) -> None:
        entry, *parents = record.entry_ids
        self.texts[entry] = record.stored
        by_policy = record.kind == "merge"
        writes = () if by_policy else (k,)
        merges = (k,) if by_policy else ()
        kept = _kept(record) if record.supersedes else None
        for parent in () if kept == [] else parents:
            writes += self._standing(self._writes.get(parent, ()), kept)
            merges += self._merges.get(parent, ())
        self._writes[entry], self._merges[entry] = writes, merges

    def _standing(
        self, writes: tuple[int, ...], kept: list[str] | None
    ) -> tuple[int, ...]:
        """The writes that kept lines came from; all, where no one can say."""
        texts = {k: self._log[k].text.strip() for k in writes}
        found = [
            k
            for k, text in texts.items()
            if any(line in text or (text and text in line) for line in kept or ())
        ]
        return tuple(found) or writes


def _kept(record: OpRecord) -> list[str]:
    """Lines of the parents that an update left as they were: before its own text."""
    before, own, _ = record.stored.rpartition(f"\n{record.text}")
    return before.splitlines() if own and record.text else []


def makes_entry(record: OpRecord) -> bool:
    """Whether a record stored a text."""
    return record.outcome in ("new", "merged") and bool(record.entry_ids)


class SameMeaning:
    """Which texts say the same, by a judge asked both ways; answers are kept.

    What says the same as a twin is a twin too, though the judge may not see it: a
    wording between two others holds all three together.
    """

    def __init__(self, repeats: Callable[[str, str], bool]) -> None:
        self._repeats = repeats
        self._known: dict[tuple[str, str], bool] = {}

    def of(self, entry: int, texts: Mapping[int, str]) -> set[int]:
        """The entry, and those of ``texts`` that say the same, over any number of
        steps; ``texts`` must hold the entry."""
        found, queue, left = {entry}, [entry], set(texts) - {entry}
        while queue:
            text = texts[queue.pop()]
            same = {other for other in left if self.same(text, texts[other])}
            left -= same
            found |= same
            queue += sorted(same)
        return found

    def same(self, one: str, other: str) -> bool:
        """Whether the judge says so of these two."""
        if one == other:
            return True
        key = (one, other) if one < other else (other, one)
        if key not in self._known:
            both = self._repeats(one, other) and self._repeats(other, one)
            self._known[key] = both
        return self._known[key]
