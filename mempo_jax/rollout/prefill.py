"""How contexts get into slots with little computing: what is fed, what is copied.

Three sources save work: what a slot holds already, a context that is equal to another
one (members of a group), and a beginning that another slot holds or is about to hold
(such as the instructions). The last is only used where it is cheap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mempo_jax.rollout.shapes import Shapes
from mempo_jax.rollout.slots import Request, Row, common

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
    rows: list[Row] = dataclasses.field(default_factory=list)

    def copy(self, slot: int, source: int, end: int) -> None:
        self.copies[slot], self.end = source, max(self.end, end)


def plan(
    requests: Sequence[Request],
    reuse: dict[int, int],
    held: Sequence[Sequence[int]],
    shapes: Shapes,
) -> list[Stage]:
    """What brings every slot to all of its context but the last id.

    reuse: ids of each context that its slot holds. held: ids that every slot holds.
    """
    chosen = _Contexts(requests, reuse)
    plain = chosen.stages(chosen.alone())
    cost = price(plain, shapes)
    # The least that any copied beginning costs; mostly this ends the search.
    least = 0 if shapes.flat else shapes.rows[0] * shapes.widths[0]
    least += shapes.slots * shapes.spans[0] * COPY_COST
    if least > cost * WORTHWHILE:
        return plain
    shared = chosen.stages(chosen.shared(held))
    return shared if price(shared, shapes) <= cost * WORTHWHILE else plain


def price(stages: Sequence[Stage], shapes: Shapes) -> float:
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
                stage.rows.append(Row(slot, origin.count, tokens[origin.count : -1]))
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
