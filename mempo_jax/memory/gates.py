"""Decides what comes of a write or merge: a log record, before anything changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from mempo_jax.memory import judge as judge_lib
from mempo_jax.memory.config import BankConfig
from mempo_jax.memory.entry import Entry, Status, full_text
from mempo_jax.memory.judge import Judge, Verdict
from mempo_jax.memory.ops import OpError, OpOutcome, OpRecord
from mempo_jax.memory.store import EntryTable

_JUDGED = 4  # nearest entries that a write is compared with


@dataclasses.dataclass(frozen=True)
class Gates:
    """The rules of one bank; judge and summarise are plain callables."""

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
        text = full_text(draft.title, draft.text)
        verdict, old = self._weigh(text, [table[i] for i in ids], similarities)
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
        join = judge_lib.updated if verdict == Verdict.UPDATES else judge_lib.joined
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
        """The record of a merge, by the policy or by a write alike.

        ``stored`` None: the parents' texts joined.
        """
        entries = [table[i] for i in parents]
        if stored is None:
            stored = judge_lib.joined([entry.text for entry in entries])
        title = draft.title or next((e.title for e in entries if e.title), None)
        return dataclasses.replace(
            draft,
            outcome=OpOutcome.MERGED,
            entry_ids=(len(table), *parents),
            stored=self._shorten(stored) if stored != draft.text else stored,
            title=title,
            supersedes=supersedes,
        )

    def _weigh(
        self, text: str, entries: list[Entry], similarities
    ) -> tuple[Verdict, Entry | None]:
        """The verdict, and the entry that is repeated, updated or added to."""
        similar = []
        for entry, similarity in zip(entries, similarities):
            verdict = self.judge(text, full_text(entry.title, entry.text))
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
        if len(text) <= most:
            return text
        if self.summarise is not None:
            text = self.summarise(text, most).strip() or text
        if len(text) <= most:
            return text
        tail = text[-most:]
        return tail.split(maxsplit=1)[-1] if tail.strip() else text[:most]

    def _over_capacity(self, table: EntryTable) -> tuple[int, ...]:
        """Whom the cap pushes out for one more entry: fewest accesses, then oldest."""
        capacity = self.config.capacity
        if not capacity or table.active_count < capacity:
            return ()
        active = [entry for entry in table if entry.status == Status.ACTIVE]
        active.sort(key=lambda e: (e.access_count, e.step_accessed, e.id))
        return tuple(e.id for e in active[: table.active_count + 1 - capacity])


def plain_ids(ids) -> tuple:
    """Ids as Python integers where they are integers of numpy; others as they are."""
    return tuple(i.item() if isinstance(i, np.integer) else i for i in ids)


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
