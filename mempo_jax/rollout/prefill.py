"""How contexts get into slots with little computing: what is fed, and what is copied.

Three sources save work: what a slot holds already; a context that is equal to another
one (members of a group); and a beginning that another slot holds or is about to hold
(such as the instructions). The last is used only if it clearly pays.

What remains is fed in calls of a few fixed sizes, either padded (rows by width) or
packed. Packed means that all new tokens of a stage form one row, one slot's after
another's, which is cut into calls; if a call ends in the middle of a slot's tokens, the
next call goes on with them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from mempo_jax.models.attention import PIECE, PackedRows
from mempo_jax.rollout.sampler import NewContext, Request, common, fit, pieces

# A packed call computes no more tokens: several such calls cost as much per token as
# one large one.
LARGEST = 1024
# Nor fewer, if there are several sizes: each is half of the next, and one more program
# to compile.
SMALLEST = 64
# A call costs as much as this many tokens, whatever it feeds: on a CPU the weights are
# laid out anew for each.
CALL_COST = 64
# Copying a position costs less than this share of computing it: estimated on a CPU with
# the built-in model, the worst case, for larger ones compute more per position.
COPY_COST = 1 / 16
# A plan with more calls must halve the work: what it saves less drowns in the calls.
WORTHWHILE = 1 / 2


@dataclasses.dataclass(frozen=True)
class EngineShapes:
    """The sizes that the cache and the calls of the engine may have.

    Attributes:
      slots: slots of the cache.
      length: positions of a slot.
      rows: numbers of rows that a call may compute; ``slots`` is one of them.
      widths: numbers of new context tokens in a padded row.
      packed: numbers of new context tokens in a packed call; () if they are padded.
      spans: numbers of positions that a call may attend to.
      chunk: decode steps of one call.
    """

    slots: int
    length: int
    rows: tuple[int, ...]
    widths: tuple[int, ...]
    packed: tuple[int, ...]
    spans: tuple[int, ...]
    chunk: int

    def calls(self, rows: Sequence[NewContext]) -> list[tuple[int, list[NewContext]]]:
        """Cuts rows into the calls that feed them.

        Args:
          rows: what to feed.

        Returns:
          For each call the positions that it computes, padding included, and its rows.
        """
        if self.packed:
            return cut_calls(rows, self.packed)
        padded_calls = pieces(rows, self.widths[-1])
        return [(math.prod(self.prefill(call)[:2]), call) for call in padded_calls]

    def cost(self, computed: int) -> int:
        """Returns what a prefill call costs, in positions.

        Args:
          computed: positions that it computes.
        """
        return computed + (CALL_COST if self.packed else 0)

    def prefill(self, rows: Sequence[NewContext]) -> tuple[int, int, int]:
        """Returns count, width and span of the padded call that feeds these rows.

        Args:
          rows: what to feed, none longer than the largest width.
        """
        longest = max(len(row.tokens) for row in rows)
        end = max(row.start + len(row.tokens) for row in rows)
        return fit(self.rows, len(rows)), fit(self.widths, longest), self.span(end)

    def span(self, end: int) -> int:
        """Returns the smallest span that holds position ``end``.

        Args:
          end: number of positions in use.
        """
        return fit(self.spans, min(end, self.length))


@dataclasses.dataclass
class Stage:
    """Copies, all made at once, and then rows to feed.

    Attributes:
      copies: {slot: slot to copy from}.
      end: number of positions to copy, at least.
      rows: what to feed.
    """

    copies: dict[int, int] = dataclasses.field(default_factory=dict)
    end: int = 0
    rows: list[NewContext] = dataclasses.field(default_factory=list)

    def copy(self, slot: int, source: int, end: int) -> None:
        """Adds a copy.

        Args:
          slot: the slot to fill.
          source: the slot to copy from.
          end: positions to copy.
        """
        self.copies[slot], self.end = source, max(self.end, end)


def plan(
    requests: Sequence[Request],
    reuse: dict[int, int],
    held: Sequence[Sequence[int]],
    shapes: EngineShapes,
) -> list[Stage]:
    """Plans what brings every slot to all of its context but the last id.

    Args:
      requests: new requests, each for a slot of its own.
      reuse: {slot: leading ids of its new context that it holds already}.
      held: the ids that every slot holds.
      shapes: the sizes that calls may have.

    Returns:
      Stages, to be carried out in order.
    """
    contexts = _Contexts(requests, reuse)
    separate_stages = contexts.stages(contexts.alone())
    cost = price(separate_stages, shapes)
    # The least that any copied beginning costs; mostly this ends the search.
    least = 0 if shapes.packed else shapes.rows[0] * shapes.widths[0]
    least += shapes.slots * shapes.spans[0] * COPY_COST
    if least > cost * WORTHWHILE:
        return separate_stages
    # The search compares every context with every slot, so it comes last.
    sharing_stages = contexts.stages(contexts.shared(held))
    return (
        sharing_stages
        if price(sharing_stages, shapes) <= cost * WORTHWHILE
        else separate_stages
    )


def price(stages: Sequence[Stage], shapes: EngineShapes) -> float:
    """Estimates the cost of some stages, in computed positions.

    Args:
      stages: what to price.
      shapes: the sizes that calls may have.

    Returns:
      Positions computed, padding included, and copies by their share of that.
    """
    total = 0.0
    for stage in stages:
        if stage.copies:
            total += shapes.slots * shapes.span(stage.end) * COPY_COST
        total += sum(shapes.cost(size) for size, _ in shapes.calls(stage.rows))
    return total


class _Contexts:
    """The distinct contexts of some requests.

    Each has one slot that gets it first, the one that holds most of it already. The
    other slots with an equal context copy that one.
    """

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
        """Every context begins with the most that a slot holds or is about to hold."""
        # All but the last id: its logits are needed, so it is always computed.
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
                # Only one level: a leader that waits for another leader cannot be
                # copied in time.
                if not origin.late and count > best.count:
                    best = _Origin(count, leader, late=True)
            origins[slot] = best
        return origins

    def stages(self, origins: dict[int, _Origin]) -> list[Stage]:
        """Three stages: leaders; contexts that begin like a leader; copies of equal
        contexts."""
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
                    # A copy needs its source fed, which happens in the stage before.
                    stages[origin.late + 1].copy(other, slot, len(tokens))
        for stage in stages:
            # Slot order, so that the calls do not depend on how the search went.
            stage.rows.sort(key=lambda row: row.slot)
        return [stage for stage in stages if stage.copies or stage.rows]


@dataclasses.dataclass(frozen=True)
class _Origin:
    """Where the first ``count`` ids of a context come from.

    source: None for its own slot, else another one. late: whether that slot holds them
    only after other contexts have been fed.
    """

    count: int
    source: int | None = None
    late: bool = False


class _Table:
    """The ids that all slots hold, as one array, to compare with all at once."""

    def __init__(self, held: Sequence[Sequence[int]]) -> None:
        width = max((len(ids) for ids in held), default=0)
        # -1 here and -2 below equal nothing, so that every comparison finds an end: the
        # extra column is never equal.
        self._ids = np.full((len(held), width + 1), -1, np.int64)
        for slot, ids in enumerate(held):
            self._ids[slot, : len(ids)] = ids

    def longest(self, tokens: Sequence[int]) -> tuple[int, int]:
        """The largest number of leading ids that one slot holds, and the first such
        slot."""
        padded = np.full(self._ids.shape[1], -2, np.int64)
        leading = tokens[: len(padded) - 1]
        padded[: len(leading)] = leading
        counts = np.argmin(self._ids == padded, axis=1)
        return int(counts.max()), int(counts.argmax())


def sizes(most: int) -> tuple[int, ...]:
    """Returns the numbers of tokens that packed calls may have, ascending.

    Args:
      most: the most tokens of one stage.
    """
    ascending = [min(most, LARGEST)]
    # Halving wastes at most half of a call, and needs few programs.
    while ascending[0] >= 2 * SMALLEST:
        ascending.insert(0, -(-ascending[0] // 2))
    return tuple(ascending)


def cut_calls(
    rows: Sequence[NewContext], sizes: tuple[int, ...]
) -> list[tuple[int, list[NewContext]]]:
    """Cuts rows into packed calls.

    Args:
      rows: what to feed.
      sizes: what ``sizes`` returned.

    Returns:
      (size, rows) of each call; a row may go on in the next call.
    """
    calls, remaining = [], list(rows)
    for size in _parts(sum(len(row.tokens) for row in rows), sizes):
        call_rows, room = [], size
        while remaining and room:
            slot, start, tokens = remaining.pop(0)
            call_rows.append(NewContext(slot, start, tokens[:room]))
            if len(tokens) > room:
                remaining.insert(0, NewContext(slot, start + room, tokens[room:]))
            room -= len(call_rows[-1].tokens)
        calls.append((size, call_rows))
    return calls


def pack_rows(
    rows: Sequence[NewContext],
    size: int,
    slots: int,
    length: int,
    spans: tuple[int, ...],
) -> PackedRows:
    """Lays rows into one packed row, as ``packed_attention`` takes it.

    Args:
      rows: what to feed; at most ``size`` tokens.
      size: tokens of the call, padding included.
      slots: slots of the cache.
      length: positions of a slot.
      spans: the numbers of positions that attention may read, ascending.
    """
    tokens, owners = np.zeros((2, size), np.int32)
    # Padding has a position past the cache's end, so that its keys are dropped.
    positions = np.full(size, length, np.int32)
    pieces, end = [], 0
    for slot, start, ids in rows:
        columns = slice(end, end + len(ids))
        tokens[columns], owners[columns] = ids, slot
        positions[columns] = np.arange(start, start + len(ids))
        for offset in range(0, len(ids), PIECE):
            end_position = start + min(offset + PIECE, len(ids))
            span_index = spans.index(fit(spans, end_position))
            pieces.append((end + offset, slot, start + offset, span_index))
        end = columns.stop
    # A fixed size: each slot has at most one piece that is not full.
    table = np.zeros((size // PIECE + slots, 4), np.int32)
    table[: len(pieces)] = np.reshape(pieces, (-1, 4))
    return PackedRows(tokens, owners, positions, table, np.int32(len(pieces)))


def _parts(count: int, sizes: tuple[int, ...]) -> list[int]:
    """Sizes of calls for ``count`` tokens: one that holds them, or smaller ones if
    these compute so much less that the further calls pay."""
    full = max(0, -(-count // sizes[-1]) - 1)
    return [sizes[-1]] * full + _last_parts(count - full * sizes[-1], sizes)


def _last_parts(count: int, sizes: tuple[int, ...]) -> list[int]:
    smaller = [size for size in sizes if size < count]
    if not smaller:
        return [sizes[0]] if count else []
    split = [smaller[-1], *_last_parts(count - smaller[-1], sizes)]
    single = fit(sizes, count)
    # Each further call costs ``CALL_COST``, which must not eat up what padding it
    # saves.
    if sum(split) + CALL_COST * (len(split) - 1) < single:
        return split
    return [single]
