"""Decides what comes of a write or merge: a log record, before anything changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from mempo_jax.memory import arguments
from mempo_jax.memory.bank_config import BankConfig
from mempo_jax.memory.entry import Entry, Status, full_text
from mempo_jax.memory.lexical import judge
from mempo_jax.memory.lexical.comparison import Verdict
from mempo_jax.memory.lexical.judge import Judge
from mempo_jax.memory.ops import OpError, OpOutcome, OpRecord
from mempo_jax.memory.store import EntryTable

_VERDICTS = tuple(str(verdict) for verdict in Verdict)
_JUDGED = 4  # nearest entries that a write is compared with


class BatchJudge(Protocol):
    """A judge that can be asked about several pairs at a time.

    A plain callable (new, old) -> Verdict is a judge too. ``many`` is used where there
    is one, so that all that a write is compared with is judged together.
    """

    def __call__(self, new: str, old: str) -> Verdict: ...

    def many(self, pairs: list[tuple[str, str]]) -> list[Verdict]:
        """A verdict for each (new, old), in order."""


@dataclasses.dataclass(frozen=True)
class Gates:
    """The rules of one bank; judge and summarise are plain callables.

    judge: may have ``many``, see ``BatchJudge``. summarise: (text, most characters) ->
    a shorter text; where it is empty or still too long, the text is cut instead.
    """

    config: BankConfig
    judge: Judge
    summarise: Callable[[str, int], str] | None

    def text_error(self, text: str, title: str | None) -> str | None:
        """What forbids storing ``text``, or None."""
        if not text.strip():
            return OpError.EMPTY_CONTENT
        too_long = len(text) + len(title or "") > self.config.max_entry_chars
        return OpError.TEXT_TOO_LONG if too_long else None

    def write(self, draft: OpRecord, table: EntryTable, vector: np.ndarray) -> OpRecord:
        """The record of a write: new, merged or duplicate.

        Gate 1 is the similarity to the nearest active entries, gate 2 the judge. What
        repeats one of them is a duplicate. Below the threshold all else is new; above
        it an update supersedes the entry, an addition is merged into it, and a fact
        about something else is new.
        """
        ids, similarities = table.index.search(vector, _JUDGED)
        nearest = float(similarities[0]) if ids else 0.0
        draft = dataclasses.replace(draft, similarity=nearest)
        entries = [table[i] for i in ids]
        verdicts = self._judged(_pairs(full_text(draft.title, draft.text), entries))
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
        join = judge.updated if verdict == Verdict.UPDATES else judge.joined
        stored = join([old.text, draft.text])
        return self.merge(
            draft, table, (old.id,), stored, supersedes=verdict == Verdict.UPDATES
        )

    def questions(
        self, text: str, table: EntryTable, vector: np.ndarray
    ) -> list[tuple[str, str]]:
        """The (new, old) pairs that ``write`` would ask the judge about just now.

        ``text`` with its title; ``vector`` its embedding. Nothing is changed.
        """
        ids, _ = table.index.search(vector, _JUDGED)
        return _pairs(text, [table[i] for i in ids])

    def merge(
        self,
        draft: OpRecord,
        table: EntryTable,
        parents,
        stored: str | None,
        supersedes,
    ) -> OpRecord:
        """The record of a merge, by the policy or by a write alike.

        ``stored`` None: the parents' texts joined.
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

    def _judged(self, pairs: list[tuple[str, str]]) -> Iterable[Verdict]:
        """Verdicts in order; a judge of one pair is not asked before it has to be."""
        if self.config.judge != "always" and any(new == old for new, old in pairs):
            # The same text is a repeat whatever a judge would say of it.
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
        """The verdict, and the entry that is repeated, updated or added to."""
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
        for wanted in (Verdict.UPDATES, Verdict.ADDS):
            for verdict, entry in similar:
                if verdict == wanted:
                    return verdict, entry
        return Verdict.OTHER, None

    def _shorten(self, text: str) -> str:
        """A concatenation within ``merge_max_chars``; if cut, the newest part stays."""
        most = min(self.config.merge_max_chars, self.config.max_entry_chars)
        if len(text) > most:
            text = text.strip()
        if len(text) <= most:
            return text
        if self.summarise is not None:
            short = self.summarise(text, most)
            short = arguments.text("summarise, given to the Bank", short).strip()
            if 0 < len(short) <= most:
                return short
        return text[-most:].split(maxsplit=1)[-1]

    def _over_capacity(self, table: EntryTable) -> tuple[int, ...]:
        """Whom the cap pushes out for one more entry: fewest accesses, then oldest."""
        capacity = self.config.capacity
        if not capacity or table.active_count < capacity:
            return ()
        return table.first_to_go(table.active_count + 1 - capacity)


def _pairs(text: str, entries: list[Entry]) -> list[tuple[str, str]]:
    return [(text, full_text(entry.title, entry.text)) for entry in entries]


def plain_ids(where: str, ids) -> tuple[int, ...]:
    """Ids as Python integers; TypeError for what is no list of integers."""
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
    """What forbids an op on these ids, or None."""
    if len(ids) < least:
        return OpError.BAD_ARGUMENT if ids else OpError.MISSING_ARGUMENT
    if not all(table.holds(entry_id) for entry_id in ids):
        return OpError.UNKNOWN_ID
    if len(set(ids)) < len(ids):
        return OpError.DUPLICATE_ID
    active = all(table[i].status == Status.ACTIVE for i in ids)
    return None if active else OpError.INACTIVE_ID
