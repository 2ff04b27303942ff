"""The table of entries, the order in which the cap evicts them, and their invariants.

A table changes in one way only: by applying a log record. Writing, loading, replaying
and looking back all go through ``EntryTable.apply``; that is why a replayed bank equals
the original bit for bit.

Eviction takes the entry with the fewest accesses, then the oldest access, then the
lowest id, without sorting the bank at every write. Entries are immutable and a recall
only raises this key. So a key that was noted earlier is never above the true one: the
smallest noted key is either true, and its entry goes, or it is noted again as it is
now. A recall therefore costs nothing here.
"""

from __future__ import annotations

import functools
import heapq
import warnings
from collections.abc import Iterable, Iterator

import numpy as np

from mempo_jax.memory.entry import Entry, Reason, Status
from mempo_jax.memory.index import Index, make_index
from mempo_jax.memory.ops import OpOutcome, OpRecord

Key = tuple[int, int, int]  # access count, step of the last access, id


class EntryTable:
    """Entries by id: a shared read-only base, and what was changed or added here.

    The index over the active entries is built on first use, then updated.

    Attributes:
      base: the entries as they were at the start, shared by forks.
      active_count: number of active entries.
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
        """Makes a table over a base.

        Args:
          base: entries in order of id.
          dim: width of the embeddings.
          ann_threshold: active entries from which the index searches approximately.
          index: an index over the active entries; built on first use if None.
          active_count: number of active entries; counted if None.
          order: the order of eviction of ``base``, if it exists already.
        """
        self.base = base
        self._order = BaseOrder(base) if order is None else order
        self._queue: EvictionQueue | None = None  # made on the first eviction
        # Tombstone -> a place below it, with no active entry between the two.
        self._below: dict[int, int] = {}
        self._changed: dict[int, Entry] = {}
        self._added: list[Entry] = []
        self._dim = dim
        self._ann_threshold = ann_threshold
        self._index = index
        if active_count is None:
            active_count = sum(entry.status == Status.ACTIVE for entry in base)
        self.active_count = active_count

    def apply(self, record: OpRecord, embedding: np.ndarray | None, source: str):
        """Changes the table as a record says.

        Args:
          record: what to do.
          embedding: of ``record.stored``, if the record makes an entry.
          source: id of the trajectory that the new entry comes from.

        Raises:
          ValueError: the record does not fit the table; nothing is changed.
        """
        adds = record.outcome in (OpOutcome.NEW, OpOutcome.MERGED)
        self._check_record(record, adds)  # all of it, before the first entry changes
        if adds:
            self._add(record, embedding, source)
        elif record.outcome == OpOutcome.RECALLED:
            for entry_id in record.entry_ids:
                self._set_entry(self[entry_id].touched(record.turn))
        elif record.outcome == OpOutcome.DELETED:
            for entry_id in record.entry_ids:
                self._bury(entry_id, Status.DELETED, Reason.POLICY)
        self.evict(record.evicted)

    def evict(self, ids: Iterable[int]) -> None:
        """Makes active entries tombstones, because there are too many.

        Args:
          ids: of these entries.
        """
        for entry_id in ids:
            self._bury(entry_id, Status.DELETED, Reason.EVICTED)

    def __len__(self) -> int:
        return len(self.base) + len(self._added)

    def __getitem__(self, entry_id: int) -> Entry:
        if entry_id >= len(self.base):
            return self._added[entry_id - len(self.base)]
        # The base is shared: a change here hides the entry there.
        return self._changed.get(entry_id) or self.base[entry_id]

    def __iter__(self) -> Iterator[Entry]:
        for entry in self.base:
            yield self._changed.get(entry.id, entry)
        yield from self._added

    def holds(self, entry_id) -> bool:
        """Whether an id was ever given out.

        Args:
          entry_id: any value; one that is no int is no id.
        """
        return type(entry_id) is int and 0 <= entry_id < len(self)

    def newest(self, count: int) -> list[Entry]:
        """Returns the newest active entries, newest first.

        Tombstones never become active again, so a run of them is walked once and then
        jumped.

        Args:
          count: entries wanted.
        """
        newest, place = [], len(self) - 1
        while place >= 0 and len(newest) < count:
            entry = self[place]
            if entry.status == Status.ACTIVE:
                newest.append(entry)
                place -= 1
            else:
                place = self._next_below(place)
        return newest

    def first_to_go(self, count: int) -> tuple[int, ...]:
        """Returns ids of the active entries that the cap evicts first.

        Args:
          count: ids wanted.
        """
        if self._queue is None:
            self._queue = EvictionQueue(self._order, self._added)
        return self._queue.first(count, self)

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
        """Makes an independent table.

        The first fork after a change copies the list of entries, though not the
        entries; further ones copy nothing.
        """
        if self._changed or self._added:
            self.base = tuple(self)
            self._changed, self._added = {}, []
            self._order = BaseOrder(self.base)
        return self._twin(self.base, self._order)

    def before(self, turns: int) -> EntryTable:
        """Makes an independent table whose steps are all earlier; costs O(entries).

        Args:
          turns: by how many turns.
        """
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

    def _check_record(self, record: OpRecord, adds: bool) -> None:
        if adds and record.entry_ids[:1] != (len(self),):
            raise ValueError(
                f"log record of turn {record.turn} makes entry {record.entry_ids[:1]}, "
                f"but the next id is {len(self)}: the log belongs to another initial "
                "bank"
            )
        used = adds or record.outcome in (OpOutcome.RECALLED, OpOutcome.DELETED)
        # The first id of a record that adds is the new entry's own: it is left out.
        ids = (*(record.entry_ids[adds:] if used else ()), *record.evicted)
        for entry_id in ids:
            if not self.holds(entry_id) or self[entry_id].status != Status.ACTIVE:
                raise ValueError(
                    f"log record of turn {record.turn} names entry {entry_id}, which "
                    "is not active here: the log belongs to another initial bank"
                )
        if len(set(ids)) < len(ids):
            raise ValueError(
                f"log record of turn {record.turn}: expected each entry once, got "
                f"{ids}: the log was altered"
            )

    def _add(self, record: OpRecord, embedding: np.ndarray, source: str) -> None:
        new_id, parents = record.entry_ids[0], record.entry_ids[1:]
        # The new entry takes over the recalls of what it is made of.
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
        self._update_index("add", new_id, embedding)

    def _bury(self, entry_id, status, reason, merged_into: int = -1) -> None:
        """Makes an active entry a tombstone."""
        self._set_entry(self[entry_id].buried(status, reason, merged_into))
        self.active_count -= 1
        self._update_index("remove", entry_id)

    def _set_entry(self, entry: Entry) -> None:
        if entry.id >= len(self.base):
            self._added[entry.id - len(self.base)] = entry
        else:
            self._changed[entry.id] = entry

    def _update_index(self, change: str, *args) -> None:
        """Updates the index. It is a cache: one that fails is dropped and rebuilt."""
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
        """Highest place of an active entry below a tombstone; -1 if there is none."""
        place = self._below.get(start, start - 1)
        while place >= 0 and self[place].status != Status.ACTIVE:
            place = self._below.get(place, place - 1)
        self._below[start] = place  # the next walk jumps the whole run
        return place


def _matrix(entries: list[Entry], dim: int) -> np.ndarray:
    """Embeddings as one array: a view if they are the first rows of a shared one."""
    if not entries:
        return np.empty((0, dim), np.float32)
    shared, count = entries[0].embedding.base, len(entries)
    if (
        isinstance(shared, np.ndarray)
        and shared.flags.c_contiguous
        and shared.dtype == np.float32
        and shared.size % dim == 0
        and shared.size >= count * dim
        and all(entry.embedding.base is shared for entry in entries)
    ):
        rows = shared.reshape(-1, dim)  # a loaded array may be flat
        # Rows ascend with the ids: if the first and the last fit, all do.
        ends = (0, count - 1)
        if all(np.shares_memory(entries[i].embedding, rows[i]) for i in ends):
            return rows[:count]
    return np.stack([entry.embedding for entry in entries])


def key_of(entry: Entry) -> Key:
    """Returns the eviction key of an entry; the lowest key goes first.

    Args:
      entry: the entry as it is now.
    """
    return entry.access_count, entry.step_accessed, entry.id


class BaseOrder:
    """Active entries of a shared base, sorted on first use: once for all forks."""

    def __init__(self, base: tuple[Entry, ...]):
        """Takes a base; nothing is sorted yet.

        Args:
          base: entries in order of id, which never change.
        """
        self._base = base

    @functools.cached_property
    def ids(self) -> np.ndarray:
        """Ids in the order of eviction, int64 [active]."""
        active = [entry for entry in self._base if entry.status == Status.ACTIVE]
        ids = np.asarray([entry.id for entry in active], np.int64)
        steps = np.asarray([entry.step_accessed for entry in active], np.int64)
        counts = np.asarray([entry.access_count for entry in active], np.int64)
        return ids[np.lexsort((ids, steps, counts))]

    def key(self, place: int) -> Key:
        """Returns the key that an entry has in the base.

        Args:
          place: place in ``ids``.
        """
        return key_of(self._base[self.ids[place]])


class EvictionQueue:
    """The order of eviction in one table.

    It is a place in the base's order, and a heap of the keys of entries that were added
    here or have changed since the base.
    """

    def __init__(self, order: BaseOrder, added: list[Entry]):
        """Starts at the first place of the base's order.

        Args:
          order: the order of the base.
          added: entries that are not in the base.
        """
        self._order = order
        self._next = 0
        self._heap = [key_of(entry) for entry in added]
        heapq.heapify(self._heap)

    def add(self, entry: Entry) -> None:
        """Adds a new entry.

        Args:
          entry: the entry as it was written.
        """
        heapq.heappush(self._heap, key_of(entry))

    def first(self, count: int, table) -> tuple[int, ...]:
        """Returns ids of the active entries that would go first.

        They stay in the queue: whether they go is not decided here.

        Args:
          count: ids wanted; at most as many as are active.
          table: the table that the queue belongs to.
        """
        # All are taken out before the first goes back, so that none comes twice.
        keys = [self._pop_first(table) for _ in range(count)]
        for key in keys:
            heapq.heappush(self._heap, key)
        return tuple(entry_id for _, _, entry_id in keys)

    def _pop_first(self, table) -> Key:
        """Pops keys until one is true: dead entries are dropped, old keys renewed."""
        while True:
            key = self._smallest()
            entry = table[key[-1]]
            if entry.status != Status.ACTIVE:  # tombstones never live again
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


def replay(initial, log: Iterable[OpRecord], trajectory_id: str | None = None):
    """Applies a log to a bank and so gives the logged bank again, bit for bit.

    Args:
      initial: the bank before the log; it is left as it is.
      log: the records, complete and in order.
      trajectory_id: source of the entries made; that of ``initial`` if None.

    Raises:
      ValueError: a record does not fit what came before it.
    """
    name = initial.trajectory_id if trajectory_id is None else trajectory_id
    bank = initial.fork(name)
    for record in log:
        bank.apply(record)
    return bank


def check_bank(bank, table) -> None:
    """Checks the invariants of a bank.

    Args:
      bank: the bank.
      table: its entries.

    Raises:
      AssertionError: an invariant is broken; the message names the first.
    """
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
    # 1e-3 is the tolerance with which a bank takes vectors in.
    _require(abs(float(vector @ vector) - 1) < 1e-3, where + "embedding norm is not 1")
    purged = entry.reason == Reason.PURGED
    _require(purged != bool(entry.text.strip()), where + "text against reason")
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
        Status.MERGED: {Reason.NONE, Reason.SUPERSEDED, Reason.PURGED},
        Status.DELETED: {Reason.POLICY, Reason.EVICTED, Reason.PURGED},
    }
    _require(
        entry.reason in allowed[entry.status],
        where + f"{entry.status} for reason {entry.reason!r}",
    )


def _check_log(bank, entries: list[Entry]) -> None:
    added, recalled = 0, 0
    for record in bank.log:
        if record.outcome in (OpOutcome.NEW, OpOutcome.MERGED):
            added += 1
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
    _require(start + added == len(entries), "entries that the log does not explain")
    # A merged entry takes over the accesses of its parents, which are not counted.
    ends = sum(e.access_count for e in entries if e.status != Status.MERGED)
    before = sum(
        e.access_count for e in bank.initial_entries if e.status != Status.MERGED
    )
    _require(ends == before + recalled, "access counts that the log does not explain")


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise AssertionError(f"bank is not valid: {problem}")
