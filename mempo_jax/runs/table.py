"""The metrics of a run as columns, and means over windows of steps.

A single step is noisy, so a run is judged by means over the first or last tenth of the
steps in which something was measured, at least ``MIN_WINDOW`` of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

MIN_WINDOW = 5  # rows; the mean of fewer is as noisy as one step
MAX_WINDOW = 100  # rows; in a long run a tenth would mix different policies
WINDOWS_PER_RUN = 10


@dataclasses.dataclass(frozen=True)
class Window:
    """One metric over some neighbouring rows.

    Attributes:
      metric: its name.
      values: float [N], finite, N >= 1.
      first_step: step of the first row.
      last_step: step of the last row.
    """

    metric: str
    values: np.ndarray
    first_step: int
    last_step: int

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return float(self.values.mean())

    @property
    def median(self) -> float:
        """Median of the values; one extreme step does not move it."""
        return float(np.median(self.values))

    @property
    def error(self) -> float:
        """Standard error of the mean; infinite for a single row."""
        n = len(self.values)
        return float(self.values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf


class Table:
    """Columns of equal length, NaN if a row has no such value."""

    def __init__(self, steps: np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
        """Takes the columns as they are.

        Args:
          steps: int [R], rising.
          columns: float [R] by metric.
        """
        self.steps = steps
        self.columns = columns

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.steps)

    def column(self, metric: str) -> np.ndarray:
        """One column.

        Args:
          metric: its name.

        Returns:
          float [R]; all NaN if the run did not record the metric.
        """
        values = self.columns.get(metric)
        return np.full(len(self.steps), np.nan) if values is None else values

    def measured(self, metric: str) -> np.ndarray:
        """Rows in which a metric is a finite number.

        Args:
          metric: its name.

        Returns:
          Indices of rows, rising.
        """
        return np.flatnonzero(np.isfinite(self.column(metric)))

    def early(self, metric: str) -> Window | None:
        """The first window of a metric.

        Args:
          metric: its name.

        Returns:
          The window; None if fewer than ``MIN_WINDOW`` rows have the metric.
        """
        rows = self.measured(metric)
        return self.window(metric, rows[: _window_length(len(rows))])

    def late(self, metric: str) -> Window | None:
        """The last window of a metric.

        Args:
          metric: its name.

        Returns:
          The window; None if fewer than ``MIN_WINDOW`` rows have the metric.
        """
        rows = self.measured(metric)
        return self.window(metric, rows[len(rows) - _window_length(len(rows)) :])

    def ends(self, metric: str) -> tuple[Window | None, Window | None]:
        """The first and the last window of a metric.

        Args:
          metric: its name.

        Returns:
          What ``early`` and ``late`` return.
        """
        return self.early(metric), self.late(metric)

    def whole(self, metric: str) -> Window | None:
        """All rows in which a metric was measured.

        Args:
          metric: its name.

        Returns:
          The window; None if fewer than ``MIN_WINDOW`` rows have the metric.
        """
        return self.window(metric, self.measured(metric))

    def third(self, metric: str, which: int) -> Window | None:
        """One third of the rows in which a metric was measured.

        Args:
          metric: its name.
          which: 0 for the first third, 1 for the middle one, 2 for the last.

        Returns:
          The window; None if the third has fewer than ``MIN_WINDOW`` rows.
        """
        return self.window(metric, np.array_split(self.measured(metric), 3)[which])

    def window(
        self, metric: str, rows: np.ndarray, least: int = MIN_WINDOW
    ) -> Window | None:
        """A metric in chosen rows.

        Args:
          metric: its name.
          rows: indices of rows in which it was measured, rising.
          least: the smallest number of rows that may be judged.

        Returns:
          The window; None if there are fewer than ``least`` rows.
        """
        if len(rows) < least:
            return None
        steps = self.steps[rows[[0, -1]]].tolist()
        return Window(metric, self.column(metric)[rows], *steps)

    def best(self, metric: str) -> Window | None:
        """The window with the highest mean of all windows of a metric.

        Args:
          metric: its name.

        Returns:
          The window; None if fewer than ``MIN_WINDOW`` rows have the metric.
        """
        rows = self.measured(metric)
        length = _window_length(len(rows))
        if length < MIN_WINDOW:
            return None
        sums = np.cumsum(np.concatenate([[0.0], self.column(metric)[rows]]))
        at = int((sums[length:] - sums[:-length]).argmax())
        return self.window(metric, rows[at : at + length])

    def total(self, metric: str) -> float:
        """Sum of a metric over all rows.

        Args:
          metric: its name.

        Returns:
          The sum; 0 if the metric was never measured.
        """
        return float(np.nansum(self.column(metric)))


def differ(before: Window, after: Window, errors: float) -> bool:
    """Whether the means of two windows differ by more than their noise.

    Args:
      before: one window.
      after: the other.
      errors: how many standard errors of the difference count as noise.

    Returns:
      True if the gap is larger than that.
    """
    gap = abs(after.mean - before.mean)
    return gap > 0 and gap > errors * math.hypot(before.error, after.error)


def _window_length(rows: int) -> int:
    return min(rows, max(MIN_WINDOW, min(rows // WINDOWS_PER_RUN, MAX_WINDOW)))
