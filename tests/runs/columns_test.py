"""Rows become columns, in the order of their steps, in the bytes of their numbers."""

import math
import tracemalloc

import numpy as np

from mempo_jax.runs import Columns

ROWS, METRICS = 4000, 50


def table(*rows):
    return table_from(rows)


def table_from(rows):
    columns = Columns()
    for number, row in enumerate(rows):
        assert len(columns) == number
        columns.add(row)
    return columns.table()


def test_no_rows():
    assert len(table()) == 0
    assert table().columns == {}


def test_gaps_are_nan_and_what_is_no_number_is_left_out():
    got = table(
        {"step": 0, "late": None, "text": "1", "early": 1.5, "flag": True},
        {"step": 1, "late": -3, "huge": 10**400},
        {"step": 2, "flag": False},
    )
    assert list(got.columns) == ["early", "flag", "late", "huge"]
    np.testing.assert_equal(got.column("early"), [1.5, np.nan, np.nan])
    np.testing.assert_equal(got.column("flag"), [1, np.nan, 0])
    np.testing.assert_equal(got.column("late"), [np.nan, -3, np.nan])
    np.testing.assert_equal(got.column("huge"), [np.nan, math.inf, np.nan])


def test_the_last_row_of_a_step_counts_whole():
    got = table(
        *({"step": 3, "a": 1, "b": 1}, {"step": 1, "a": 2}),
        *({"step": 3, "a": 3}, {"step": 2, "a": 4}),
    )
    assert got.steps.tolist() == [1, 2, 3]
    assert got.column("a").tolist() == [2, 4, 3]
    assert np.isnan(got.column("b")).all(), "of a row that another one replaced"


def test_rows_are_not_kept():
    names = [f"metric {n}" for n in range(METRICS)]
    rows = ({"step": n} | dict.fromkeys(names, n + 0.5) for n in range(ROWS))
    tracemalloc.start()
    try:
        got = table_from(rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert got.column("metric 7")[-1] == ROWS - 0.5
    assert peak < 1.5 * 8 * ROWS * (METRICS + 1)
