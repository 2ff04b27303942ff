"""What the slots of the engine's cache hold, and what a call must still compute.

Host side only: lists of ids in, lists of pieces to feed out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Request(NamedTuple):
    """One turn to sample.

    slot: which cache row, below the engine's ``slots``. tokens: the *full* context.
    key: uint32[2], key data of this turn; token i is drawn with ``fold_in(key, i)``.
    max_new_tokens: the most to sample; the engine's ``max_length`` also bounds it.
    """

    slot: int
    tokens: Sequence[int]
    key: np.ndarray
    max_new_tokens: int


class Row(NamedTuple):
    """Ids to feed into a slot from position ``start`` on."""

    slot: int
    start: int
    tokens: Sequence[int]


class Plan:
    """What to feed, piece by piece, and which slots then copy another.

    copies: {slot: slot to copy from}, for equal contexts that need prefilling: the
    slot that holds most of it is filled, the others take its rows.
    """

    def __init__(self, requests: Sequence[Request], reuse: dict[int, int]):
        self._tokens = {request.slot: request.tokens for request in requests}
        self.copies = self._shared(reuse)
        self._next = {
            slot: count
            for slot, count in reuse.items()
            if slot not in self.copies and count < len(self._tokens[slot]) - 1
        }

    @property
    def longest_copy(self) -> int:
        """Positions that a copy must span."""
        return max(len(self._tokens[slot]) for slot in self.copies)

    def next_rows(self, widths: tuple[int, ...]) -> list[Row]:
        """The next piece of every slot that needs one, none over the largest width;
        the last id of a context is left for the first decode step."""
        rows = []
        for slot, start in sorted(self._next.items()):
            end = min(start + widths[-1], len(self._tokens[slot]) - 1)
            rows.append(Row(slot, start, self._tokens[slot][start:end]))
            self._next[slot] = end
            if end == len(self._tokens[slot]) - 1:
                del self._next[slot]
        return rows

    def _shared(self, reuse: dict[int, int]) -> dict[int, int]:
        groups: dict[tuple, list[int]] = {}
        for slot, tokens in self._tokens.items():
            groups.setdefault(tuple(tokens), []).append(slot)
        copies = {}
        for tokens, slots in groups.items():
            source = max(slots, key=lambda slot: reuse[slot])
            for slot in slots:
                if slot != source and reuse[slot] < len(tokens) - 1:
                    copies[slot] = source
        return copies


class HeldContexts:
    """The ids whose keys and values each slot's cache holds."""

    def __init__(self, slots: int):
        self._ids: list[list[int]] = [[] for _ in range(slots)]

    def plan(self, requests: Sequence[Request]) -> Plan:
        """What must be computed for ``requests``. From now on until ``feed`` the slots
        count as holding only what is reused."""
        reuse = {request.slot: self._common(request) for request in requests}
        for slot, count in reuse.items():
            del self._ids[slot][count:]
        return Plan(requests, reuse)

    def feed(self, requests: Sequence[Request]) -> None:
        """All of the contexts but their last ids has been computed."""
        for request in requests:
            self._ids[request.slot] = list(request.tokens[:-1])

    def grow(self, slot: int, context: Sequence[int], sampled: Sequence[int]) -> None:
        """A turn was sampled: all but its last id has been fed."""
        self._ids[slot] = [*context, *sampled][:-1]

    def _common(self, request: Request) -> int:
        """How many leading ids of a context its slot holds; never its last one."""
        held, tokens = self._ids[request.slot], request.tokens
        limit = min(len(held), len(tokens) - 1)
        if list(tokens[:limit]) == held[:limit]:
            return limit
        pairs = enumerate(zip(held, tokens))
        return next(index for index, (a, b) in pairs if a != b)


def buckets(name: str, sizes: Sequence[int], largest: int) -> tuple[int, ...]:
    """Sorted distinct sizes, none above ``largest``; ValueError unless positive."""
    sizes = tuple(sorted({min(int(size), largest) for size in sizes}))
    if not sizes or sizes[0] < 1:
        raise ValueError(f"{name}: expected positive sizes, got {sizes}")
    return sizes


def fit(sizes: tuple[int, ...], needed: int) -> int:
    """The smallest size that holds ``needed``, else the largest."""
    return next((size for size in sizes if size >= needed), sizes[-1])
