"""Prefill of flat rows: which calls feed some contexts, and how their tokens lie.

All tokens of a stage lie one slot's after the other's, and are cut into calls of a few
fixed sizes. Where a call ends in the middle of a row, the next one goes on with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mempo_jax.models.flat import PIECE, Flat
from mempo_jax.rollout.slots import Row, fit

# A call computes no more tokens: several cost as much per token as one of them all.
LARGEST = 1024
# Nor fewer: each size is half of the next, and every one is a program to compile.
SMALLEST = 64
# A call costs as much as so many tokens, whatever it feeds: on a CPU the weights are
# laid out anew for each.
CALL_COST = 64


def sizes(most: int) -> tuple[int, ...]:
    """Numbers of tokens of a call, where no stage feeds more than ``most``."""
    made = [min(most, LARGEST)]
    while made[0] >= 2 * SMALLEST:
        made.insert(0, -(-made[0] // 2))
    return tuple(made)


def cut(rows: Sequence[Row], sizes: tuple[int, ...]) -> list[tuple[int, list[Row]]]:
    """Calls that feed the rows, each with its size."""
    calls, rest = [], list(rows)
    for size in _parts(sum(len(row.tokens) for row in rows), sizes):
        taken, room = [], size
        while rest and room:
            slot, start, tokens = rest.pop(0)
            taken.append(Row(slot, start, tokens[:room]))
            if len(tokens) > room:
                rest.insert(0, Row(slot, start + room, tokens[room:]))
            room -= len(taken[-1].tokens)
        calls.append((size, taken))
    return calls


def laid_out(
    rows: Sequence[Row], size: int, slots: int, length: int, spans: tuple[int, ...]
) -> Flat:
    """The rows as ``size`` tokens for a cache of so many slots and positions."""
    tokens, owners = np.zeros((2, size), np.int32)
    positions = np.full(size, length, np.int32)
    pieces, end = [], 0
    for slot, start, part in rows:
        here = slice(end, end + len(part))
        tokens[here], owners[here] = part, slot
        positions[here] = np.arange(start, start + len(part))
        for begin in range(0, len(part), PIECE):
            last = start + min(begin + PIECE, len(part))
            which = spans.index(fit(spans, last))
            pieces.append((end + begin, slot, start + begin, which))
        end = here.stop
    # Each slot has at most one piece that is not full.
    table = np.zeros((size // PIECE + slots, 4), np.int32)
    table[: len(pieces)] = np.reshape(pieces, (-1, 4))
    return Flat(tokens, owners, positions, table, np.int32(len(pieces)))


def _parts(count: int, sizes: tuple[int, ...]) -> list[int]:
    """Sizes of calls for so many tokens: one that holds them, or smaller ones where
    these compute so much less that it pays."""
    full = max(0, -(-count // sizes[-1]) - 1)
    return [sizes[-1]] * full + _last_parts(count - full * sizes[-1], sizes)


def _last_parts(count: int, sizes: tuple[int, ...]) -> list[int]:
    smaller = [size for size in sizes if size < count]
    if not smaller:
        return [sizes[0]] if count else []
    apart = [smaller[-1], *_last_parts(count - smaller[-1], sizes)]
    whole = fit(sizes, count)
    if sum(apart) + CALL_COST * (len(apart) - 1) < whole:
        return apart
    return [whole]
