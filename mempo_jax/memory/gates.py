"""The gates: what comes of a write or a merge, decided before anything changes."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from mempo_jax.memory import arguments, lexical
from mempo_jax.memory.bank_config import BankConfig
from mempo_jax.memory.entry import Entry, Status, full_text
from mempo_jax.memory.lexical import judge
from mempo_jax.memory.lexical.comparison import Verdict
from mempo_jax.memory.lexical.judge import Judge
from mempo_jax.memory.ops import OpError, OpOutcome, OpRecord
from mempo_jax.memory.store import EntryTable

_VERDICTS = tuple(str(verdict) for verdict in Verdict)
_RATE_WARNING = 0.30  # real conversations stay far below: 1 to 3 %
_RATE_LEAST_WRITES = 20  # with fewer writes the merge rate is mostly chance
_JUDGED_ENTRIES = 4  # a write is compared with so few: each costs a verdict


class BatchJudge(Protocol):
    """A judge that can be asked about several pairs at a time.

    A plain callable (new, old) -> Verdict is a judge too. If there is a ``many``, all
    that a write is compared with is judged together. If it remembers what it was asked,
    a ``forget()`` makes it forget that; ``Bank.purge`` calls it.
    """

    def __call__(self, new: str, old: str) -> Verdict: ...

    def many(self, pairs: list[tuple[str, str]]) -> list[Verdict]:
        """Returns a verdict for each pair, in order.

        Args:
          pairs: (new, old) texts.
        """


@dataclasses.dataclass(frozen=True)
class Gates:
    """The rules of one bank.

    Attributes:
      config: settings of the bank.
      judge: (new, old) -> Verdict; may have ``many``, see ``BatchJudge``.
      summarise: (text, most characters) -> a shorter text; if it returns nothing or a
        text still too long, the text is cut instead.
    """

    config: BankConfig
    judge: Judge
    summarise: Callable[[str, int], str] | None

    def write(self, draft: OpRecord, table: EntryTable, vector: np.ndarray) -> OpRecord:
        """Decides what comes of a write: a new entry, a merged one or a duplicate.

        Gate 1 is the similarity to the nearest active entries, gate 2 the judge. A text
        that repeats one of them is a duplicate, whatever their similarity. Any other
        text is new below ``merge_threshold``; from there on an update supersedes the
        entry, an addition is merged into it, and a fact about something else is new.

        Args:
          draft: the op without an outcome.
          table: the entries; not changed.
          vector: embedding of title and text, float32 [dim].

        Returns:
          The record to apply.
        """
        ids, similarities = table.index.search(vector, _JUDGED_ENTRIES)
        nearest = float(similarities[0]) if ids else 0.0
        draft = dataclasses.replace(draft, similarity=nearest)
        entries = [table[i] for i in ids]
        verdicts = self._verdicts(_pairs(full_text(draft.title, draft.text), entries))
        verdict, old = self._weigh(verdicts, entries, similarities)
        if verdict == Verdict.REPEATS:
            return dataclasses.replace(
                draft, outcome=OpOutcome.DUPLICATE, entry_ids=(old.id,), title=old.title
            )
        if old is None:
            return dataclasses.replace(
                draft,
                outcome=OpOutcome.NEW,
                entry_ids=(len(table),),
                stored=draft.text,
                evicted=self._over_capacity(table),
            )
        # An update drops the statements that it replaces; an addition keeps them all.
        join = judge.updated if verdict == Verdict.UPDATES else judge.joined
        stored = join([old.text, draft.text])
        return self.merge(
            draft, table, (old.id,), stored, supersedes=verdict == Verdict.UPDATES
        )

    def merge(
        self,
        draft: OpRecord,
        table: EntryTable,
        parents,
        stored: str | None,
        supersedes,
    ) -> OpRecord:
        """Decides what comes of a merge, whether by the policy or by a write.

        Args:
          draft: the op without an outcome.
          table: the entries; not changed.
          parents: ids of the entries to merge.
          stored: text of the new entry; the parents' texts joined if None.
          supersedes: whether the parents are replaced and not joined.

        Returns:
          The record to apply. Without a title of its own it gets the first one among
          the parents.
        """
        entries = [table[i] for i in parents]
        if stored is None:
            stored = judge.joined([entry.text for entry in entries])
        title = draft.title or next((e.title for e in entries if e.title), None)
        return dataclasses.replace(
            draft,
            outcome=OpOutcome.MERGED,
            entry_ids=(len(table), *parents),
            stored=self._shorten(stored) if stored != draft.text else stored,
            title=title,
            supersedes=supersedes,
        )

    def questions(
        self, text: str, table: EntryTable, vector: np.ndarray
    ) -> list[tuple[str, str]]:
        """Lists the (new, old) pairs that ``write`` would ask the judge about just now.

        Args:
          text: the new text with its title.
          table: the entries; not changed.
          vector: embedding of ``text``, float32 [dim].
        """
        ids, _ = table.index.search(vector, _JUDGED_ENTRIES)
        return _pairs(text, [table[i] for i in ids])

    def text_error(self, text: str, title: str | None) -> str | None:
        """Returns the ``OpError`` that forbids storing a text, or None.

        Args:
          text: the text.
          title: its title; counts towards ``max_entry_chars``.
        """
        if not text.strip():
            return OpError.EMPTY_CONTENT
        too_long = len(text) + len(title or "") > self.config.max_entry_chars
        return OpError.TEXT_TOO_LONG if too_long else None

    def forget(self) -> None:
        """Empties the caches of the judge: they hold texts that it was asked about."""
        for name, module in [*sys.modules.items()]:
            if name.startswith(lexical.__name__):
                for value in vars(module).values():
                    getattr(value, "cache_clear", int)()
        getattr(self.judge, "forget", int)()

    def _verdicts(self, pairs: list[tuple[str, str]]) -> Iterable[Verdict]:
        """Verdicts in order; a judge without ``many`` is asked one at a time."""
        if self.config.judge != "always" and any(new == old for new, old in pairs):
            # The same text is a repeat whatever a judge would say about it.
            return [
                Verdict.REPEATS if new == old else Verdict.OTHER for new, old in pairs
            ]
        many = getattr(self.judge, "many", None)
        if many is None:
            return (self.judge(new, old) for new, old in pairs)
        verdicts = many(pairs)
        if not isinstance(verdicts, Sequence) or len(verdicts) != len(pairs):
            raise ValueError(
                f"the judge's many(): expected {len(pairs)} verdicts, one a pair, got "
                f"{arguments.short(verdicts)}; see the judge given to the Bank"
            )
        return verdicts

    def _weigh(
        self, verdicts: Iterable[Verdict], entries: list[Entry], similarities
    ) -> tuple[Verdict, Entry | None]:
        """Picks the verdict that counts, and the entry that it is about."""
        similar = []
        for verdict, entry, similarity in zip(verdicts, entries, similarities):
            if verdict not in _VERDICTS:
                raise ValueError(
                    f"the judge: expected one of {[*_VERDICTS]}, got "
                    f"{arguments.short(verdict)}; see the judge given to the Bank"
                )
            if verdict == Verdict.REPEATS:
                return verdict, entry
            if similarity >= self.config.merge_threshold:
                similar.append((verdict, entry))
        # An outdated value must not survive because a nearer entry takes additions.
        for strongest in (Verdict.UPDATES, Verdict.ADDS):
            for verdict, entry in similar:
                if verdict == strongest:
                    return verdict, entry
        return Verdict.OTHER, None

    def _shorten(self, text: str) -> str:
        """Keeps a joined text within its limits; if cut, the newest part stays."""
        limit = min(self.config.merge_max_chars, self.config.max_entry_chars)
        if len(text) > limit:
            text = text.strip()
        if len(text) <= limit:
            return text
        if self.summarise is not None:
            short = self.summarise(text, limit)
            short = arguments.text("summarise, given to the Bank", short).strip()
            if 0 < len(short) <= limit:
                return short
        # The first word may be cut in two: it is dropped.
        return text[-limit:].split(maxsplit=1)[-1]

    def _over_capacity(self, table: EntryTable) -> tuple[int, ...]:
        """Ids that the cap evicts for one more entry: fewest accesses, then oldest."""
        capacity = self.config.capacity
        if not capacity or table.active_count < capacity:
            return ()
        return table.first_to_go(table.active_count + 1 - capacity)


def _pairs(text: str, entries: list[Entry]) -> list[tuple[str, str]]:
    return [(text, full_text(entry.title, entry.text)) for entry in entries]


def plain_ids(where: str, ids) -> tuple[int, ...]:
    """Turns ids into Python integers.

    Args:
      where: name of the method, for the message.
      ids: an iterable of integers, numpy's too.

    Raises:
      TypeError: it is no list of integers.
    """
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise TypeError(
            f"{where}: expected a list of ids (integers), got {arguments.short(ids)}"
        )
    ids = tuple(i.item() if isinstance(i, np.integer) else i for i in ids)
    for entry_id in ids:
        if type(entry_id) is not int:
            raise TypeError(
                f"{where}: expected ids to be integers, got {arguments.short(entry_id)}"
            )
    return ids


def ids_error(table: EntryTable, ids: tuple, least: int) -> str | None:
    """Returns the ``OpError`` that forbids an op on these ids, or None.

    Args:
      table: the entries.
      ids: as the policy named them.
      least: fewest ids that the op needs.
    """
    if len(ids) < least:
        return OpError.BAD_ARGUMENT if ids else OpError.MISSING_ARGUMENT
    if not all(table.holds(entry_id) for entry_id in ids):
        return OpError.UNKNOWN_ID
    if len(set(ids)) < len(ids):
        return OpError.DUPLICATE_ID
    active = all(table[i].status == Status.ACTIVE for i in ids)
    return None if active else OpError.INACTIVE_ID


def plain_title(title: str | None) -> str | None:
    """Puts a title on one line, as titles are shown in a list; None if it is empty.

    Args:
      title: as the policy wrote it.
    """
    return " ".join((title or "").split()) or None


def warn_of_merges(accepted: int, merged: int, config: BankConfig) -> None:
    """Warns if a large share of the writes was merged: they may not have been alike.

    Args:
      accepted: writes that made an entry.
      merged: those of them that were merged with others.
      config: settings of the bank.
    """
    if accepted >= _RATE_LEAST_WRITES and merged > _RATE_WARNING * accepted:
        warnings.warn(
            "more than 30 % of the accepted writes were merged; raise "
            f"memory.merge_threshold (now {config.merge_threshold})",
            stacklevel=4,
        )
