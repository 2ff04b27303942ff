"""The table of entries, changed in one way only: by applying a log record.

Writing, loading, replaying and looking back all go through ``EntryTable.apply``; that
is why a replayed bank equals the original bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mempo_jax.memory.entry import Entry, Reason, Status
from mempo_jax.memory.index import ExactIndex, grown, make_index
from mempo_jax.memory.ops import OpOutcome, OpRecord


class EntryTable:
    """Entries by id: a shared read-only base, and what was changed or added here.

    The index over the active entries is built when first asked for, then kept up.
    """

    def __init__(
        self,
        base: tuple[Entry, ...],
        *,
        dim: int,
        ann_threshold: int,
        index: ExactIndex | None = None,
        active_count: int | None = None,
    ):
        self.base = base
        self._changed: dict[int, Entry] = {}
        self._added: list[Entry] = []
        self._dim = dim
        self._ann_threshold = ann_threshold
        self._index = index
        if active_count is None:
            active_count = sum(entry.status == Status.ACTIVE for entry in base)
        self.active_count = active_count

    def __len__(self) -> int:
        return len(self.base) + len(self._added)

    def __getitem__(self, entry_id: int) -> Entry:
        if entry_id >= len(self.base):
            return self._added[entry_id - len(self.base)]
        return self._changed.get(entry_id) or self.base[entry_id]

    def __iter__(self) -> Iterator[Entry]:
        for entry in self.base:
            yield self._changed.get(entry.id, entry)
        yield from self._added

    def holds(self, entry_id) -> bool:
        """Whether such an id was ever given out."""
        return isinstance(entry_id, int) and 0 <= entry_id < len(self)

    @property
    def index(self) -> ExactIndex:
        """The index over exactly the active entries."""
        if self._index is None:
            active = [entry for entry in self if entry.status == Status.ACTIVE]
            ids = np.asarray([entry.id for entry in active], np.int64)
            self._index = make_index(
                ids, _matrix(active, self._dim), ann_threshold=self._ann_threshold
            )
        return self._index

    def fork(self) -> EntryTable:
        """An independent table; costs what changed here, not what the base holds."""
        if self._changed or self._added:
            self.base = tuple(self)
            self._changed, self._added = {}, []
        return EntryTable(
            self.base,
            dim=self._dim,
            ann_threshold=self._ann_threshold,
            index=self.index.fork(),
            active_count=self.active_count,
        )

    def apply(self, record: OpRecord, embedding: np.ndarray | None, source: str):
        """Changes the table as ``record`` says; ``embedding`` is of ``record.stored``.

        Raises ValueError, and changes nothing, if the record does not fit the table.
        """
        made = record.outcome in (OpOutcome.NEW, OpOutcome.MERGED)
        changed = record.outcome in (OpOutcome.RECALLED, OpOutcome.DELETED)
        for entry_id in (*(record.entry_ids if changed else ()), *record.evicted):
            self._active(entry_id)  # all are checked before the first is changed
        if made:
            self._add(record, embedding, source)
        elif record.outcome == OpOutcome.RECALLED:
            for entry_id in record.entry_ids:
                self._put(self._active(entry_id).touched(record.turn))
        elif record.outcome == OpOutcome.DELETED:
            for entry_id in record.entry_ids:
                self._bury(entry_id, Status.DELETED, Reason.POLICY)
        for entry_id in record.evicted:
            self._bury(entry_id, Status.DELETED, Reason.EVICTED)

    def _add(self, record: OpRecord, embedding: np.ndarray, source: str) -> None:
        new_id, parents = record.entry_ids[0], record.entry_ids[1:]
        if new_id != len(self):
            raise ValueError(
                f"log record of turn {record.turn} makes entry {new_id}, but the next "
                f"id is {len(self)}: the log belongs to another initial bank"
            )
        count = sum(self._active(parent).access_count for parent in parents)
        reason = Reason.SUPERSEDED if record.supersedes else Reason.NONE
        for parent in parents:
            self._bury(parent, Status.MERGED, reason, merged_into=new_id)
        entry = Entry(
            id=new_id,
            title=record.title,
            text=record.stored,
            embedding=embedding,
            step_created=record.turn,
            step_accessed=record.turn,
            access_count=count,
            source=source,
            parents=parents,
        )
        self._added.append(entry)
        self.active_count += 1
        if self._index is not None:
            self._index.add(new_id, embedding)
            self._index = grown(self._index, ann_threshold=self._ann_threshold)

    def _active(self, entry_id: int) -> Entry:
        if not self.holds(entry_id) or self[entry_id].status != Status.ACTIVE:
            raise ValueError(
                f"log record names entry {entry_id}, which is not active here: the log "
                "belongs to another initial bank"
            )
        return self[entry_id]

    def _bury(self, entry_id, status, reason, merged_into: int = -1) -> None:
        self._put(self._active(entry_id).buried(status, reason, merged_into))
        self.active_count -= 1
        if self._index is not None:
            self._index.remove(entry_id)

    def _put(self, entry: Entry) -> None:
        if entry.id >= len(self.base):
            self._added[entry.id - len(self.base)] = entry
        else:
            self._changed[entry.id] = entry


def _matrix(entries: list[Entry], dim: int) -> np.ndarray:
    """Embeddings as one array: the shared one if these are its rows in order."""
    if not entries:
        return np.empty((0, dim), np.float32)
    whole = entries[0].embedding.base
    if (
        isinstance(whole, np.ndarray)
        and whole.shape == (len(entries), dim)
        and all(e.embedding.base is whole for e in entries)
        and all(
            np.shares_memory(entries[i].embedding, whole[i])
            for i in (0, len(entries) - 1)
        )
    ):
        return whole
    return np.stack([entry.embedding for entry in entries])
