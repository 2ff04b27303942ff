"""Numbers of rows that come one by one, kept by column: the rows together may be
larger than memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from mempo_jax.doctor.table import Table


class Columns:
    """Eight bytes for a number; what is no number is left out."""

    def __init__(self) -> None:
        self._steps = array("q")
        self._columns: dict[str, array] = {}

    def __len__(self) -> int:
        """Rows so far."""
        return len(self._steps)

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds a row; its ``step`` is an integer of 64 bits."""
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
                _fill(values, at)
            try:
                values.append(value)
            except OverflowError:  # an integer beyond all floats
                values.append(math.inf)
        self._steps.append(row["step"])

    def table(self) -> Table:
        """The rows by rising step, of each step the one that was added last; columns in
        the order of their first numbers. Takes the numbers away: no row follows."""
        steps, columns = self._steps, self._columns
        self._steps, self._columns = array("q"), {}
        number = len(steps)
        at = np.frombuffer(steps, np.int64) if number else np.zeros(0, np.int64)
        keep = _last_of_each(at)
        made = {}
        for name in list(columns):
            values = columns.pop(name)  # so that none is held twice for long
            _fill(values, number)
            made[name] = np.frombuffer(values, np.float64)[keep]
        return Table(at[keep], made)


def _fill(values: array, length: int) -> None:
    """NaN for the rows in which nothing was measured."""
    values.extend(array("d", [math.nan]) * (length - len(values)))


def _last_of_each(steps: np.ndarray) -> np.ndarray:
    """Indices that put steps in order, of each the row that was written last."""
    order = np.argsort(steps, kind="stable")
    ordered = steps[order]
    last = np.ones(len(order), bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    return order[last]
