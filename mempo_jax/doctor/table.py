"""The metrics of a run by column, and means over windows of steps.

A single step is noisy, so nothing here is judged by one: figures are means over the
first or last tenth of the steps in which something was measured, at least ``SHORTEST``
of them where there are so many.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from mempo_jax.doctor.findings import Seen

SHORTEST, LONGEST = 5, 100  # rows of a window
PART = 10  # a window is this part of the rows
ENOUGH = 20  # steps before a trend, or the want of one, means anything


@dataclasses.dataclass(frozen=True)
class Window:
    """One metric over some neighbouring rows; ``values`` are finite, at least one."""

    metric: str
    values: np.ndarray
    first_step: int
    last_step: int

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def median(self) -> float:
        """Where one wild step would move the mean."""
        return float(np.median(self.values))

    @property
    def error(self) -> float:
        """Standard error of the mean; infinite for one row."""
        n = len(self.values)
        return float(self.values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf

    def seen(self, remark: str = "", *, median: bool = False) -> Seen:
        value = self.median if median else self.mean
        steps = self.first_step, self.last_step
        return Seen(self.metric, value, *steps, remark)


class Table:
    """Columns of equal length, NaN where a row has no such value.

    Args:
      steps: int [R], rising.
      columns: float [R] by metric.
    """

    def __init__(self, steps: np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
        self.steps = steps
        self.columns = columns

    def __len__(self) -> int:
        return len(self.steps)

    def column(self, metric: str) -> np.ndarray:
        """float [R]; all NaN where the run did not record it."""
        found = self.columns.get(metric)
        return np.full(len(self.steps), np.nan) if found is None else found

    def measured(self, metric: str) -> np.ndarray:
        """Indices of the rows in which it is finite."""
        return np.flatnonzero(np.isfinite(self.column(metric)))

    def early(self, metric: str) -> Window | None:
        """The first rows in which it was measured; None below ``SHORTEST`` of them."""
        rows = self.measured(metric)
        return self.window(metric, rows[: _length(len(rows))])

    def late(self, metric: str) -> Window | None:
        """The last rows in which it was measured; None below ``SHORTEST`` of them."""
        rows = self.measured(metric)
        return self.window(metric, rows[len(rows) - _length(len(rows)) :])

    def ends(self, metric: str) -> tuple[Window | None, Window | None]:
        """``early`` and ``late``, both or neither of them there."""
        return self.early(metric), self.late(metric)

    def whole(self, metric: str) -> Window | None:
        """All rows in which it was measured; None below ``SHORTEST`` of them."""
        return self.window(metric, self.measured(metric))

    def third(self, metric: str, which: int) -> Window | None:
        """The first (0), second or last (2) third of the rows where it was measured."""
        return self.window(metric, np.array_split(self.measured(metric), 3)[which])

    def latest(self, *metrics: str) -> tuple[Seen, ...]:
        """The late figures of these metrics, of those that have some."""
        windows = [self.late(metric) for metric in metrics]
        return tuple(window.seen() for window in windows if window is not None)

    def window(
        self, metric: str, rows: np.ndarray, least: int = SHORTEST
    ) -> Window | None:
        """The rows of these indices; None below ``least``: too few to judge."""
        if len(rows) < least:
            return None
        steps = self.steps[rows[[0, -1]]].tolist()
        return Window(metric, self.column(metric)[rows], *steps)

    def extreme(self, metric: str, *, highest: bool = True) -> Window | None:
        """The window with the highest (or lowest) mean of all; None as above."""
        rows = self.measured(metric)
        length = _length(len(rows))
        if length < SHORTEST:
            return None
        sums = np.cumsum(np.concatenate([[0.0], self.column(metric)[rows]]))
        means = sums[length:] - sums[:-length]
        at = int(means.argmax() if highest else means.argmin())
        return self.window(metric, rows[at : at + length])

    def total(self, metric: str) -> float:
        """The sum over all rows; 0 where it was never measured."""
        return float(np.nansum(self.column(metric)))


def _length(rows: int) -> int:
    """Rows of a window where ``rows`` were measured."""
    return min(rows, max(SHORTEST, min(rows // PART, LONGEST)))


def differ(before: Window, after: Window, errors: float) -> bool:
    """Whether two means lie further apart than ``errors`` standard errors of both."""
    gap = abs(after.mean - before.mean)
    return gap > 0 and gap > errors * math.hypot(before.error, after.error)
