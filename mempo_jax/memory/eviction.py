"""Whom the cap pushes out next, without sorting the bank at every write.

The first to go has the fewest accesses, then the oldest access, then the lowest id.
Entries are immutable and a touch only raises this key. So a key that was noted earlier
is never above the true one: the smallest noted key is either true, and its entry goes,
or it is noted anew as it is now. A recall therefore costs nothing here.
"""

from __future__ import annotations

import functools
import heapq

import numpy as np

from mempo_jax.memory.entry import Entry, Status

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
