"""Reading ``metrics.jsonl`` by column: its rows together may be larger than memory."""

from __future__ import annotations

import math
import pathlib
from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mempo_jax.runs.records import JsonLines
from mempo_jax.runs.table import Table

MAX_STEP = 2**62  # larger ones do not fit the column of steps


class Metrics(NamedTuple):
    """What ``metrics.jsonl`` holds.

    Attributes:
      table: the metrics by column, one row a step.
      broken_lines: lines that hold no JSON object with a step, without a last line that
        is cut off.
      cut_off: whether the last line is cut off.
      repeated_steps: rows that a later row of the same step replaced.
    """

    table: Table
    broken_lines: int = 0
    cut_off: bool = False
    repeated_steps: int = 0


class Columns:
    """Collects rows into columns, at eight bytes a number; other values are dropped."""

    def __init__(self) -> None:
        """Starts without rows."""
        self._steps = array("q")
        self._columns: dict[str, array] = {}

    def __len__(self) -> int:
        """Number of rows so far."""
        return len(self._steps)

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds a row.

        Args:
          row: values by metric, with an integer ``step`` below ``MAX_STEP`` in size.
        """
        at = len(self._steps)
        for name, value in row.items():
            kind = type(value)  # faster than isinstance, a hundred times a row
            if (kind is not float and kind is not int and kind is not bool) or (
                name == "step"
            ):
                continue
            values = self._columns.get(name)
            if values is None:
                values = self._columns[name] = array("d")
            if len(values) < at:
                _pad(values, at)
            try:
                values.append(value)
            except OverflowError:  # an integer beyond all floats
                values.append(math.inf)
        self._steps.append(row["step"])

    def table(self) -> Table:
        """Gives the rows away, so that no number is held twice; call it once, last.

        Returns:
          The rows by rising step, of each step the one that was added last; columns in
          the order of their first numbers.
        """
        steps, columns = self._steps, self._columns
        self._steps, self._columns = array("q"), {}
        number = len(steps)
        by_row = np.frombuffer(steps, np.int64) if number else np.zeros(0, np.int64)
        rows = _last_row_of_each_step(by_row)
        ordered = {}
        for name in list(columns):
            values = columns.pop(name)  # so that it is freed when it has been copied
            _pad(values, number)
            ordered[name] = np.frombuffer(values, np.float64)[rows]
        return Table(by_row[rows], ordered)


def read_metrics(path: pathlib.Path) -> Metrics:
    """Reads ``metrics.jsonl``, without the lines that cannot be read.

    Args:
      path: the file, which may be missing, cut off or damaged.

    Returns:
      The metrics; an empty table if there is no file.

    Raises:
      OSError: the file is there and cannot be read.
    """
    columns = Columns()
    lines = JsonLines(path, accept=_has_step)
    for row in lines if path.is_file() else ():
        columns.add(row)
    number, table = len(columns), columns.table()
    return Metrics(table, lines.broken, lines.cut_off, number - len(table))


def _has_step(row: Mapping[str, Any]) -> bool:
    step = row.get("step")
    return isinstance(step, int) and abs(step) < MAX_STEP


def _pad(values: array, length: int) -> None:
    """Adds NaN for the rows in which the metric was not measured."""
    values.extend(array("d", [math.nan]) * (length - len(values)))


def _last_row_of_each_step(steps: np.ndarray) -> np.ndarray:
    order = np.argsort(steps, kind="stable")
    ordered = steps[order]
    is_last = np.ones(len(order), bool)
    is_last[:-1] = ordered[1:] != ordered[:-1]
    return order[is_last]
