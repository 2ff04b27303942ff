"""What the slots of the engine's cache hold, and what requests ask of them.

Host side only: lists of ids in, lists of pieces to feed out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


class HeldContexts:
    """The ids whose keys and values each slot's cache holds."""

    def __init__(self, slots: int):
        self._ids: list[list[int]] = [[] for _ in range(slots)]

    def ids(self) -> list[list[int]]:
        """Of each slot; not to be changed."""
        return self._ids

    def reuse(self, requests: Iterable[Request]) -> dict[int, int]:
        """How many leading ids of its context each request's slot holds; never the
        last one."""
        return {
            request.slot: common(self._ids[request.slot], request.tokens[:-1])
            for request in requests
        }

    def trim(self, reuse: dict[int, int]) -> None:
        """These slots hold no more than so many of their ids from now on."""
        for slot, count in reuse.items():
            del self._ids[slot][count:]

    def feed(self, requests: Sequence[Request]) -> None:
        """All of the contexts but their last ids has been computed."""
        for request in requests:
            self._ids[request.slot] = list(request.tokens[:-1])

    def grow(self, slot: int, context: Sequence[int], sampled: Sequence[int]) -> None:
        """A turn was sampled: all but its last id has been fed."""
        self._ids[slot] = [*context, *sampled][:-1]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading ids are the same."""
    limit = min(len(one), len(other))
    if list(one[:limit]) == list(other[:limit]):
        return limit
    pairs = enumerate(zip(one, other))
    return next(index for index, (a, b) in pairs if a != b)


def pieces(rows: Sequence[Row], width: int) -> list[list[Row]]:
    """The rows cut into calls: in each the next ``width`` ids of every row, at most."""
    longest = max((len(row.tokens) for row in rows), default=0)
    return [
        [
            Row(row.slot, row.start + begin, row.tokens[begin : begin + width])
            for row in rows
            if begin < len(row.tokens)
        ]
        for begin in range(0, longest, width)
    ]


def buckets(name: str, sizes: Sequence[int], largest: int) -> tuple[int, ...]:
    """Sorted distinct sizes, none above ``largest``; ValueError unless positive."""
    sizes = tuple(sorted({min(int(size), largest) for size in sizes}))
    if not sizes or sizes[0] < 1:
        raise ValueError(f"{name}: expected positive sizes, got {sizes}")
    return sizes


def fit(sizes: tuple[int, ...], needed: int) -> int:
    """The smallest size that holds ``needed``, else the largest."""
    return next((size for size in sizes if size >= needed), sizes[-1])


def check_fit(requests: Sequence[Request], slots: int, max_length: int) -> None:
    """Refuses a slot that does not exist and a context of no or too many tokens.

    Raises:
      ValueError: it names the slot, and for a context what to change.
    """
    for request in requests:
        if not 0 <= request.slot < slots:
            raise ValueError(
                f"expected a slot in 0 ... {slots - 1}, got {request.slot}"
            )
        if not 0 < len(request.tokens) <= max_length:
            raise ValueError(
                f"slot {request.slot}: expected a context of 1 to {max_length} tokens, "
                f"got {len(request.tokens)}; end or rebuild the context earlier, or "
                "raise max_length"
            )
