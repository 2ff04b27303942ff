"""Windows of steps."""

import numpy as np
import pytest

from mempo_jax.runs import Table, Window, differ


def table(values, first=0):
    values = np.asarray(values, float)
    return Table(np.arange(first, first + len(values)), {"x": values})


def test_the_first_and_last_tenth():
    steps = table(np.arange(200.0), first=1000)
    early, late = steps.early("x"), steps.late("x")
    assert (early.first_step, early.last_step, early.mean) == (1000, 1019, 9.5)
    assert (late.first_step, late.last_step, late.mean) == (1180, 1199, 189.5)


def test_only_measured_steps_count():
    values = np.full(40, np.nan)
    values[[3, 10, 11, 30, 31, 32]] = [1, 2, 3, 4, np.inf, 6]
    late = table(values).late("x")
    assert (late.first_step, late.last_step) == (3, 32)
    assert late.values.tolist() == [1, 2, 3, 4, 6]


@pytest.mark.parametrize("number", [0, 1, 4])
def test_too_few_steps_are_no_window(number):
    short = table(np.ones(number))
    for look in (short.early, short.late, short.whole, short.best):
        assert look("x") is None
    assert short.third("x", 0) is None


def test_the_best_window():
    values = np.zeros(100)
    values[40:50], values[70] = 1.0, 3.0
    best = table(values).best("x")
    assert (best.first_step, best.last_step, best.mean) == (40, 49, 1.0)


def test_a_difference_must_be_larger_than_the_noise():
    noise = np.random.default_rng(0).normal(size=200)
    low, high = Window("x", noise[:100], 0, 99), Window("x", noise[100:] + 1, 100, 199)
    assert differ(low, high, 3)
    assert not differ(low, Window("x", noise[100:] + 0.1, 0, 1), 3)
    assert not differ(low, low, 0)
    one = Window("x", np.ones(1), 0, 0)
    assert not differ(one, high, 3), "one step says nothing"


def test_the_median_of_wild_steps():
    window = Window("x", np.array([1.0, 1, 1, 1, 900]), 0, 4)
    assert window.median == 1
    assert window.mean == pytest.approx(180.8)
