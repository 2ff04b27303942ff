"""The few sizes that the engine's programs have, and which of them a call takes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from mempo_jax.rollout import flat_calls
from mempo_jax.rollout.slots import Row, fit, pieces


@dataclasses.dataclass(frozen=True)
class Shapes:
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
    flat: tuple[int, ...]
    spans: tuple[int, ...]
    chunk: int

    def calls(self, rows: Sequence[Row]) -> list[tuple[int, list[Row]]]:
        """What feeds these: the positions that each call computes, and its rows."""
        if self.flat:
            return flat_calls.cut(rows, self.flat)
        cut = pieces(rows, self.widths[-1])
        return [(math.prod(self.prefill(call)[:2]), call) for call in cut]

    def cost(self, computed: int) -> int:
        """Of a call that computes so many positions, in positions."""
        return computed + (flat_calls.CALL_COST if self.flat else 0)

    def prefill(self, rows: Sequence[Row]) -> tuple[int, int, int]:
        """Count, width and span of the call that feeds these."""
        longest = max(len(row.tokens) for row in rows)
        end = max(row.start + len(row.tokens) for row in rows)
        return fit(self.rows, len(rows)), fit(self.widths, longest), self.span(end)

    def span(self, end: int) -> int:
        return fit(self.spans, min(end, self.length))
