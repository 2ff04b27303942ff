"""Where the text of an entry came from: the ops behind it, read from the op log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mempo_jax.memory import OpRecord


class Lineage:
    """The entries of one trajectory and the ops that their texts came from.

    Entries of an initial bank are in no log: they have no text and no ops here.

    Attributes:
      texts: text of each entry that the log made, by id.
    """

    def __init__(self, log: Sequence[OpRecord]) -> None:
        """Reads a log once.

        Args:
          log: all records of the trajectory, in order.
        """
        self._log = log
        self.texts: dict[int, str] = {}
        self._writes: dict[int, tuple[int, ...]] = {}
        self._merges: dict[int, tuple[int, ...]] = {}
        for k, record in enumerate(log):
            if makes_entry(record):
                self._add(k, record)

    def shares(self, entry: int) -> dict[int, float]:
        """Returns the share of each write that an entry came from; shares add to 1.

        Parents that were joined share equally with the write that joined them, as no
        one can say which words did it. A parent that was superseded has no share,
        unless the update left statements of it as they were.

        Args:
          entry: id of the entry.

        Returns:
          Position in the log -> share; empty for an entry of the initial bank.
        """
        writes = self._writes.get(entry, ())
        return {k: 1.0 / len(writes) for k in writes}

    def merges(self, entry: int) -> tuple[int, ...]:
        """Returns the merges by the policy that an entry went through.

        Args:
          entry: id of the entry.

        Returns:
          Positions in the log.
        """
        return self._merges.get(entry, ())

    def uses(self, turn_count: int) -> dict[int, list[int]]:
        """Returns, for each write and merge, the turns that used its text.

        A recall at turn t shows its hits to turn t + 1 and to the turns after it until
        one that does not recall has acted; if a context keeps the text for longer,
        later turns do not count as uses. A use of an entry is one of every op that it
        came from: outdated text earns nothing by the new one, statements that an update
        left as they were go on earning.

        Args:
          turn_count: turns of the trajectory.

        Returns:
          Position in the log -> turns, one for each recall that showed the text.
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
        """Returns ids of the entries that are active after a part of the log.

        Args:
          end: how many records have been applied.
        """
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
        """Maps each entry that the cap evicted to the position in the log of the op."""
        return {e: k for k, record in enumerate(self._log) for e in record.evicted}

    def crowding(self, entry: int, end: int) -> list[int]:
        """Returns ids, ascending, of active entries younger than an entry.

        Args:
          entry: id of the entry.
          end: how many records have been applied.
        """
        return sorted(other for other in self.alive(end) if other > entry)

    def replaced_at(self, k: int) -> int | None:
        """Returns the turn in which the policy took back the text of a write, or None.

        It does so by superseding or deleting the entry; an eviction by the cap does not
        count.

        Args:
          k: position of the write in the log.
        """
        living = {self._log[k].entry_ids[0]}
        for record in self._log[k + 1 :]:
            named = living & set(record.entry_ids)
            if makes_entry(record) and living & set(record.entry_ids[1:]):
                if k not in self._writes[record.entry_ids[0]]:
                    return record.turn
                living = {record.entry_ids[0]}
            elif record.outcome == "deleted" and named:
                return record.turn
        return None

    def _add(self, k: int, record: OpRecord) -> None:
        entry, *parents = record.entry_ids
        self.texts[entry] = record.stored
        by_policy = record.kind == "merge"
        writes = () if by_policy else (k,)
        merges = (k,) if by_policy else ()
        # None: the parents were joined, so all of their lines are in the new text.
        lines = _untouched_lines(record) if record.supersedes else None
        for parent in () if lines == [] else parents:
            writes += self._writes_of_lines(self._writes.get(parent, ()), lines)
            merges += self._merges.get(parent, ())
        self._writes[entry], self._merges[entry] = writes, merges

    def _writes_of_lines(
        self, writes: tuple[int, ...], lines: list[str] | None
    ) -> tuple[int, ...]:
        """The writes that some lines came from; all of them, if no one can say."""
        texts = {k: self._log[k].text.strip() for k in writes}
        origins = [
            k
            for k, text in texts.items()
            if any(line in text or (text and text in line) for line in lines or ())
        ]
        return tuple(origins) or writes


def makes_entry(record: OpRecord) -> bool:
    """Whether a record stored a text.

    Args:
      record: any record of an op log.
    """
    return record.outcome in ("new", "merged") and bool(record.entry_ids)


def _untouched_lines(record: OpRecord) -> list[str]:
    """Lines of the parents that an update left as they were: before its own text."""
    before, own, _ = record.stored.rpartition(f"\n{record.text}")
    return before.splitlines() if own and record.text else []


class SameMeaning:
    """Which texts say the same, by a judge that is asked both ways.

    What says the same as a twin is a twin too, though the judge may not see it: a
    wording between two others holds all three together. Answers are remembered.
    """

    def __init__(self, repeats: Callable[[str, str], bool]) -> None:
        """Takes a judge.

        Args:
          repeats: (new, old) -> whether the new text says nothing that the old one does
            not.
        """
        self._repeats = repeats
        self._known: dict[tuple[str, str], bool] = {}

    def of(self, entry: int, texts: Mapping[int, str]) -> set[int]:
        """Returns an entry and those that say the same, over any number of steps.

        Args:
          entry: id of the entry.
          texts: texts by id, that of ``entry`` among them.
        """
        twins, queue, left = {entry}, [entry], set(texts) - {entry}
        while queue:
            text = texts[queue.pop()]
            same = {other for other in left if self.same(text, texts[other])}
            left -= same
            twins |= same
            queue += sorted(same)
        return twins

    def same(self, one: str, other: str) -> bool:
        """Whether the judge says that two texts say the same.

        Args:
          one: a text.
          other: another text.
        """
        if one == other:
            return True
        key = (one, other) if one < other else (other, one)
        if key not in self._known:
            both = self._repeats(one, other) and self._repeats(other, one)
            self._known[key] = both
        return self._known[key]
