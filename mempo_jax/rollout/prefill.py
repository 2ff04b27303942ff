"""How contexts get into slots with little computing: what is fed, what is copied.

Three sources save work: what a slot holds already, a context that is equal to another
one (members of a group), and a beginning that another slot holds or is about to hold
(such as the instructions). The last is only used where it is cheap.

Prefill of flat rows: which calls feed some contexts, and how their tokens lie.

All tokens of a stage lie one slot's after the other's, and are cut into calls of a few
fixed sizes. Where a call ends in the middle of a row, the next one goes on with it.

The few sizes that the engine's programs have, and which of them a call takes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from mempo_jax.models.attention import PIECE, PackedRows
from mempo_jax.rollout.sampler import NewContext, Request, common, fit, pieces

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


def cut_calls(
    rows: Sequence[NewContext], sizes: tuple[int, ...]
) -> list[tuple[int, list[NewContext]]]:
    """Calls that feed the rows, each with its size."""
    calls, rest = [], list(rows)
    for size in _parts(sum(len(row.tokens) for row in rows), sizes):
        taken, room = [], size
        while rest and room:
            slot, start, tokens = rest.pop(0)
            taken.append(NewContext(slot, start, tokens[:room]))
            if len(tokens) > room:
                rest.insert(0, NewContext(slot, start + room, tokens[room:]))
            room -= len(taken[-1].tokens)
        calls.append((size, taken))
    return calls


def pack_rows(
    rows: Sequence[NewContext],
    size: int,
    slots: int,
    length: int,
    spans: tuple[int, ...],
) -> PackedRows:
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
    return PackedRows(tokens, owners, positions, table, np.int32(len(pieces)))


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


@dataclasses.dataclass(frozen=True)
class EngineShapes:
    """Sizes of the cache and of the views and inputs that programs may have.

    slots, length: of the cache. rows: numbers of rows to compute, all slots among them.
    widths: of new context tokens. flat: numbers of new context tokens in all, where
    they lie flat; else (). spans: numbers of positions to look at. chunk:
    decode steps of one call.
    """

    slots: int
    length: int
    rows: tuple[int, ...]
    widths: tuple[int, ...]
    packed: tuple[int, ...]
    spans: tuple[int, ...]
    chunk: int

    def calls(self, rows: Sequence[NewContext]) -> list[tuple[int, list[NewContext]]]:
        """What feeds these: the positions that each call computes, and its rows."""
        if self.packed:
            return cut_calls(rows, self.packed)
        cut = pieces(rows, self.widths[-1])
        return [(math.prod(self.prefill(call)[:2]), call) for call in cut]

    def cost(self, computed: int) -> int:
        """Of a call that computes so many positions, in positions."""
        return computed + (CALL_COST if self.packed else 0)

    def prefill(self, rows: Sequence[NewContext]) -> tuple[int, int, int]:
        """Count, width and span of the call that feeds these."""
        longest = max(len(row.tokens) for row in rows)
        end = max(row.start + len(row.tokens) for row in rows)
        return fit(self.rows, len(rows)), fit(self.widths, longest), self.span(end)

    def span(self, end: int) -> int:
        return fit(self.spans, min(end, self.length))


# Copying a position costs less than this share of computing it: estimated on a CPU with
# the built-in model, the worst case, for larger ones compute more per position.
COPY_COST = 1 / 16
# A plan with more calls must halve the work: what it saves less drowns in the calls.
WORTHWHILE = 1 / 2


@dataclasses.dataclass
class Stage:
    """First the copies, all at once, then the rows.

    copies: {slot: slot to copy from}, of as many positions as ``end``, at least.
    """

    copies: dict[int, int] = dataclasses.field(default_factory=dict)
    end: int = 0
    rows: list[NewContext] = dataclasses.field(default_factory=list)

    def copy(self, slot: int, source: int, end: int) -> None:
        self.copies[slot], self.end = source, max(self.end, end)


def plan(
    requests: Sequence[Request],
    reuse: dict[int, int],
    held: Sequence[Sequence[int]],
    shapes: EngineShapes,
) -> list[Stage]:
    """What brings every slot to all of its context but the last id.

    reuse: ids of each context that its slot holds. held: ids that every slot holds.
    """
    chosen = _Contexts(requests, reuse)
    plain = chosen.stages(chosen.alone())
    cost = price(plain, shapes)
    # The least that any copied beginning costs; mostly this ends the search.
    least = 0 if shapes.packed else shapes.rows[0] * shapes.widths[0]
    least += shapes.slots * shapes.spans[0] * COPY_COST
    if least > cost * WORTHWHILE:
        return plain
    shared = chosen.stages(chosen.shared(held))
    return shared if price(shared, shapes) <= cost * WORTHWHILE else plain


def price(stages: Sequence[Stage], shapes: EngineShapes) -> float:
    """Positions computed, padding included; what else costs, by its share of that."""
    total = 0.0
    for stage in stages:
        if stage.copies:
            total += shapes.slots * shapes.span(stage.end) * COPY_COST
        total += sum(shapes.cost(size) for size, _ in shapes.calls(stage.rows))
    return total


@dataclasses.dataclass(frozen=True)
class _Origin:
    """Where the first ``count`` ids of a context come from: its slot, or another one,
    before (``late`` False) or after other contexts have been fed."""

    count: int
    source: int | None = None
    late: bool = False


class _Contexts:
    """The distinct contexts of some requests, each with one slot that gets it first:
    the one that holds most of it. The others of equal context copy that."""

    def __init__(self, requests: Sequence[Request], reuse: dict[int, int]) -> None:
        self._tokens = {r.slot: r.tokens for r in requests}
        self._reuse = reuse
        groups: dict[tuple, list[int]] = {}
        for slot, tokens in self._tokens.items():
            groups.setdefault(tuple(tokens), []).append(slot)
        self._equal = {
            max(slots, key=lambda slot: reuse[slot]): slots for slots in groups.values()
        }

    def alone(self) -> dict[int, _Origin]:
        """Every context begins with what its slot holds."""
        return {slot: _Origin(self._reuse[slot]) for slot in self._equal}

    def shared(self, held: Sequence[Sequence[int]]) -> dict[int, _Origin]:
        """Every context begins with the most that any slot holds or is to hold."""
        table = _Table(held)
        origins: dict[int, _Origin] = {}
        for slot in self._equal:
            tokens = self._tokens[slot][:-1]
            best = _Origin(self._reuse[slot])
            count, source = table.longest(tokens)
            if count > best.count:
                best = _Origin(count, source)
            for leader, origin in origins.items():
                count = common(self._tokens[leader][:-1], tokens)
                if not origin.late and count > best.count:
                    best = _Origin(count, leader, late=True)
            origins[slot] = best
        return origins

    def stages(self, origins: dict[int, _Origin]) -> list[Stage]:
        """Leaders; what begins like them; what equals those."""
        stages = [Stage(), Stage(), Stage()]
        for slot, origin in origins.items():
            tokens = self._tokens[slot]
            stage = stages[origin.late]
            if origin.source is not None:
                stage.copy(slot, origin.source, origin.count)
            if origin.count < len(tokens) - 1:
                stage.rows.append(
                    NewContext(slot, origin.count, tokens[origin.count : -1])
                )
            for other in self._equal[slot]:
                if other != slot and self._reuse[other] < len(tokens) - 1:
                    stages[origin.late + 1].copy(other, slot, len(tokens))
        for stage in stages:
            stage.rows.sort(key=lambda row: row.slot)
        return [stage for stage in stages if stage.copies or stage.rows]


class _Table:
    """Ids of all slots as one array, to compare a context with all at once."""

    def __init__(self, held: Sequence[Sequence[int]]) -> None:
        width = max((len(ids) for ids in held), default=0)
        self._ids = np.full((len(held), width + 1), -1, np.int64)
        for slot, ids in enumerate(held):
            self._ids[slot, : len(ids)] = ids

    def longest(self, tokens: Sequence[int]) -> tuple[int, int]:
        """The most leading ids that one slot holds, and the first such slot."""
        asked = np.full(self._ids.shape[1], -2, np.int64)
        part = tokens[: len(asked) - 1]
        asked[: len(part)] = part
        counts = np.argmin(self._ids == asked, axis=1)
        return int(counts.max()), int(counts.argmax())
