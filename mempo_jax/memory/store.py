"""The table of entries, changed in one way only: by applying a log record.

Writing, loading, replaying and looking back all go through ``EntryTable.apply``; that
is why a replayed bank equals the original bit for bit.

The invariants of a bank, stated once.

Whom the cap pushes out next, without sorting the bank at every write.

The first to go has the fewest accesses, then the oldest access, then the lowest id.
Entries are immutable and a touch only raises this key. So a key that was noted earlier
is never above the true one: the smallest noted key is either true, and its entry goes,
or it is noted anew as it is now. A recall therefore costs nothing here.
"""

from __future__ import annotations

import functools
import heapq
import warnings
from collections.abc import Iterator

import numpy as np

from mempo_jax.memory.entry import Entry, Reason, Status
from mempo_jax.memory.index import Index, make_index
from mempo_jax.memory.ops import OpOutcome, OpRecord


def check_bank(bank, table) -> None:
    """Raises AssertionError naming the first invariant that ``bank`` breaks."""
    entries = bank.entries
    for place, entry in enumerate(entries):
        _require(entry.id == place, f"entry at {place} has id {entry.id}")
        _check_entry(entry, entries, bank.embedder.dim)
    active = [entry.id for entry in entries if entry.status == Status.ACTIVE]
    _require(len(bank) == len(active), f"{len(active)} active, counted {len(bank)}")
    _require(
        sorted(table.index.ids()) == active, "the index does not hold the active ids"
    )
    capacity = bank.config.capacity
    _require(not capacity or len(active) <= capacity, f"over the cap of {capacity}")
    _check_log(bank, entries)


def _check_entry(entry: Entry, entries: list[Entry], dim: int) -> None:
    where = f"entry {entry.id}: "
    vector = entry.embedding
    _require(
        vector.shape == (dim,) and vector.dtype == np.float32, where + "embedding type"
    )
    _require(abs(float(vector @ vector) - 1) < 1e-3, where + "embedding norm is not 1")
    _require(bool(entry.text.strip()), where + "empty text")
    _require(entry.step_accessed >= entry.step_created, where + "accessed before made")
    merged = entry.status == Status.MERGED
    _require(merged == (entry.merged_into >= 0), where + "merged_into against status")
    if merged:
        _require(
            entry.id < entry.merged_into < len(entries)
            and entry.id in entries[entry.merged_into].parents,
            where + f"not a parent of {entry.merged_into}, into which it was merged",
        )
    for parent in entry.parents:
        _require(
            0 <= parent < entry.id and entries[parent].merged_into == entry.id,
            where + f"parent {parent} was not merged into it",
        )
    allowed = {
        Status.ACTIVE: {Reason.NONE},
        Status.MERGED: {Reason.NONE, Reason.SUPERSEDED},
        Status.DELETED: {Reason.POLICY, Reason.EVICTED},
    }
    _require(
        entry.reason in allowed[entry.status],
        where + f"{entry.status} for reason {entry.reason!r}",
    )


def _check_log(bank, entries: list[Entry]) -> None:
    made, recalled = 0, 0
    for record in bank.log:
        if record.outcome in (OpOutcome.NEW, OpOutcome.MERGED):
            made += 1
        if record.outcome == OpOutcome.RECALLED:
            recalled += len(record.entry_ids)
            cap = bank.config.retrieval_top_k
            _require(len(record.entry_ids) <= cap, "a recall went over its cap")
        if record.error is None:
            _require(
                all(0 <= i < len(entries) for i in record.entry_ids),
                f"turn {record.turn}: the log names an entry that is not there",
            )
    start = len(bank.initial_entries)
    _require(start + made == len(entries), "entries that the log does not explain")
    # A merged entry takes over the accesses of its parents: count living ends only.
    ends = sum(e.access_count for e in entries if e.status != Status.MERGED)
    before = sum(
        e.access_count for e in bank.initial_entries if e.status != Status.MERGED
    )
    _require(ends == before + recalled, "access counts that the log does not explain")


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise AssertionError(f"bank is not valid: {problem}")


Key = tuple[int, int, int]  # accesses, step of the last, id


def key_of(entry: Entry) -> Key:
    """The lowest key goes first."""
    return entry.access_count, entry.step_accessed, entry.id


class BaseOrder:
    """Active entries of a shared base, sorted when first asked for: once for all forks.

    base: entries by id, frozen.
    """

    def __init__(self, base: tuple[Entry, ...]):
        self._base = base

    @functools.cached_property
    def ids(self) -> np.ndarray:
        """int64 [active], first to go first."""
        active = [entry for entry in self._base if entry.status == Status.ACTIVE]
        ids = np.asarray([entry.id for entry in active], np.int64)
        steps = np.asarray([entry.step_accessed for entry in active], np.int64)
        counts = np.asarray([entry.access_count for entry in active], np.int64)
        return ids[np.lexsort((ids, steps, counts))]

    def key(self, place: int) -> Key:
        """Key of the entry at a place of ``ids``, as it stands in the base."""
        return key_of(self._base[self.ids[place]])


class EvictionQueue:
    """The order of going in one table: a place in the base's order, and a heap.

    The heap holds keys of entries that were added here or have changed since the base.
    """

    def __init__(self, order: BaseOrder, added: list[Entry]):
        self._order = order
        self._next = 0
        self._heap = [key_of(entry) for entry in added]
        heapq.heapify(self._heap)

    def add(self, entry: Entry) -> None:
        """Takes a new entry in."""
        heapq.heappush(self._heap, key_of(entry))

    def first(self, count: int, table) -> tuple[int, ...]:
        """Ids of the ``count`` active entries of ``table`` that would go first.

        They stay in the queue: whether they go is not decided here.
        """
        keys = [self._take(table) for _ in range(count)]
        for key in keys:
            heapq.heappush(self._heap, key)
        return tuple(entry_id for _, _, entry_id in keys)

    def _take(self, table) -> Key:
        while True:
            key = self._smallest()
            entry = table[key[-1]]
            if entry.status != Status.ACTIVE:
                continue
            now = key_of(entry)
            if now == key:
                return key
            heapq.heappush(self._heap, now)

    def _smallest(self) -> Key:
        if self._next < len(self._order.ids):
            key = self._order.key(self._next)
            if not self._heap or key < self._heap[0]:
                self._next += 1
                return key
        return heapq.heappop(self._heap)


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
        index: Index | None = None,
        active_count: int | None = None,
        order: BaseOrder | None = None,
    ):
        self.base = base
        self._order = BaseOrder(base) if order is None else order
        self._queue: EvictionQueue | None = None  # made when the cap is first met
        self._below: dict[int, int] = {}  # tombstone -> no active entry in between
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
        return type(entry_id) is int and 0 <= entry_id < len(self)

    @property
    def index(self) -> Index:
        """The index over exactly the active entries."""
        if self._index is None:
            active = [entry for entry in self if entry.status == Status.ACTIVE]
            ids = np.asarray([entry.id for entry in active], np.int64)
            self._index = make_index(
                ids, _matrix(active, self._dim), ann_threshold=self._ann_threshold
            )
        return self._index

    def fork(self) -> EntryTable:
        """An independent table. The first fork after a change copies the list of
        entries, though not the entries; further ones copy nothing."""
        if self._changed or self._added:
            self.base = tuple(self)
            self._changed, self._added = {}, []
            self._order = BaseOrder(self.base)
        return self._twin(self.base, self._order)

    def before(self, turns: int) -> EntryTable:
        """An independent table with all steps put back by ``turns``; O(entries)."""
        base = tuple(entry.before(turns) for entry in self)
        return self._twin(base, BaseOrder(base))

    def _twin(self, base: tuple[Entry, ...], order: BaseOrder) -> EntryTable:
        twin = EntryTable(
            base,
            dim=self._dim,
            ann_threshold=self._ann_threshold,
            index=self.index.fork(),
            active_count=self.active_count,
            order=order,
        )
        twin._below = dict(self._below)
        return twin

    def newest(self, count: int) -> list[Entry]:
        """The ``count`` newest active entries, newest first.

        A run of tombstones is walked once and then jumped: they never live again.
        """
        found, place = [], len(self) - 1
        while place >= 0 and len(found) < count:
            entry = self[place]
            if entry.status == Status.ACTIVE:
                found.append(entry)
                place -= 1
            else:
                place = self._next_below(place)
        return found

    def first_to_go(self, count: int) -> tuple[int, ...]:
        """Ids of the active entries that the cap pushes out first; see ``eviction``."""
        if self._queue is None:
            self._queue = EvictionQueue(self._order, self._added)
        return self._queue.first(count, self)

    def apply(self, record: OpRecord, embedding: np.ndarray | None, source: str):
        """Changes the table as ``record`` says; ``embedding`` is of ``record.stored``.

        Raises ValueError, and changes nothing, if the record does not fit the table.
        """
        made = record.outcome in (OpOutcome.NEW, OpOutcome.MERGED)
        self._check(record, made)
        if made:
            self._add(record, embedding, source)
        elif record.outcome == OpOutcome.RECALLED:
            for entry_id in record.entry_ids:
                self._put(self[entry_id].touched(record.turn))
        elif record.outcome == OpOutcome.DELETED:
            for entry_id in record.entry_ids:
                self._bury(entry_id, Status.DELETED, Reason.POLICY)
        for entry_id in record.evicted:
            self._bury(entry_id, Status.DELETED, Reason.EVICTED)

    def _check(self, record: OpRecord, made: bool) -> None:
        """All is checked before the first entry is changed."""
        if made and record.entry_ids[:1] != (len(self),):
            raise ValueError(
                f"log record of turn {record.turn} makes entry {record.entry_ids[:1]}, "
                f"but the next id is {len(self)}: the log belongs to another initial "
                "bank"
            )
        used = made or record.outcome in (OpOutcome.RECALLED, OpOutcome.DELETED)
        named = (*(record.entry_ids[made:] if used else ()), *record.evicted)
        for entry_id in named:
            if not self.holds(entry_id) or self[entry_id].status != Status.ACTIVE:
                raise ValueError(
                    f"log record of turn {record.turn} names entry {entry_id}, which "
                    "is not active here: the log belongs to another initial bank"
                )
        if len(set(named)) < len(named):
            raise ValueError(
                f"log record of turn {record.turn}: expected each entry once, got "
                f"{named}: the log was altered"
            )

    def _add(self, record: OpRecord, embedding: np.ndarray, source: str) -> None:
        new_id, parents = record.entry_ids[0], record.entry_ids[1:]
        count = sum(self[parent].access_count for parent in parents)
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
        if self._queue is not None:
            self._queue.add(entry)
        self.active_count += 1
        self._keep_indexed("add", new_id, embedding)

    def _bury(self, entry_id, status, reason, merged_into: int = -1) -> None:
        self._put(self[entry_id].buried(status, reason, merged_into))
        self.active_count -= 1
        self._keep_indexed("remove", entry_id)

    def _keep_indexed(self, change: str, *args) -> None:
        """The index is a cache: one that cannot follow a change is built anew."""
        if self._index is None:
            return
        try:
            getattr(self._index, change)(*args)
        except Exception as error:
            self._index = None
            warnings.warn(
                f"the index of a bank could not {change} an entry "
                f"({type(error).__name__}: {error}); it is built anew when next asked",
                stacklevel=2,
            )

    def _next_below(self, start: int) -> int:
        """Highest place of an active entry below a tombstone, -1 for none."""
        place = self._below.get(start, start - 1)
        while place >= 0 and self[place].status != Status.ACTIVE:
            place = self._below.get(place, place - 1)
        self._below[start] = place
        return place

    def _put(self, entry: Entry) -> None:
        if entry.id >= len(self.base):
            self._added[entry.id - len(self.base)] = entry
        else:
            self._changed[entry.id] = entry


def _matrix(entries: list[Entry], dim: int) -> np.ndarray:
    """Embeddings as one array: the shared one if these are its first rows in order."""
    if not entries:
        return np.empty((0, dim), np.float32)
    whole, count = entries[0].embedding.base, len(entries)
    if (
        isinstance(whole, np.ndarray)
        and whole.flags.c_contiguous
        and whole.dtype == np.float32
        and whole.size % dim == 0
        and whole.size >= count * dim
        and all(entry.embedding.base is whole for entry in entries)
    ):
        rows = whole.reshape(-1, dim)  # a loaded array may lie flat
        ends = (0, count - 1)
        if all(np.shares_memory(entries[i].embedding, rows[i]) for i in ends):
            return rows[:count]
    return np.stack([entry.embedding for entry in entries])
