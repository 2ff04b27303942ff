"""Intervals against published figures and coverage; answer scores by hand."""

import math

import numpy as np
import pytest

from mempo_jax.envs.answers import exact_match, normalise_answer, token_f1
from mempo_jax.evaluation.stats import mean_ci95


def test_wilson_agrees_with_the_closed_form_by_hand():
    # 8 of 10: Wilson's 95 % interval is [0.4902, 0.9433]
    estimate = mean_ci95([1] * 8 + [0] * 2)
    assert estimate["mean"] == pytest.approx(0.8)
    assert estimate["ci95"] == pytest.approx([0.4902, 0.9433], abs=5e-5)


@pytest.mark.parametrize(("value", "n"), [(1, 1), (1, 20), (0, 1), (0, 20), (True, 3)])
def test_equal_zeros_and_ones_still_have_a_width_within_bounds(value, n):
    mean, (low, high) = mean_ci95([value] * n).values()
    assert 0.0 <= low <= mean <= high <= 1.0
    assert high - low > 0.1


def test_normal_interval_of_other_values():
    values = [1.0, 2.0, 4.0]
    half = 1.96 * np.std(values, ddof=1) / math.sqrt(3)
    estimate = mean_ci95(values)
    assert estimate["mean"] == pytest.approx(7 / 3)
    assert estimate["ci95"] == pytest.approx([7 / 3 - half, 7 / 3 + half], rel=1e-4)


def test_bounds_cut_the_interval():
    assert mean_ci95([0.9, 1.0, 0.5])["ci95"][1] > 1.0
    assert mean_ci95([0.9, 1.0, 0.5], bounds=(0.0, 1.0))["ci95"][1] == 1.0


def test_nothing_known_is_none():
    assert mean_ci95([]) == {"mean": None, "ci95": [None, None]}
    assert mean_ci95([None, float("nan")]) == {"mean": None, "ci95": [None, None]}
    assert mean_ci95([0.5]) == {"mean": 0.5, "ci95": [None, None]}


def test_undefined_values_are_left_out():
    assert mean_ci95([1, None, 0, float("nan")]) == mean_ci95([1, 0])


@pytest.mark.parametrize("kind", ["binary", "normal"])
def test_covers_the_truth_about_95_times_in_100(kind):
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        if kind == "binary":
            values, truth = rng.random(30) < 0.9, 0.9
        else:
            values, truth = rng.normal(3.0, 2.0, 60), 3.0
        low, high = mean_ci95(values)["ci95"]
        covered += low <= truth <= high
    assert 0.93 <= covered / 2000 <= 0.975


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Eiffel-Tower!", "eiffeltower"),
        ("An apple, a day.", "apple day"),
        ("Another theme", "another theme"),
        ("\tÉcole\nNormale ", "école normale"),
        ("the", ""),
    ],
)
def test_normalise_answer(text, expected):
    assert normalise_answer(text) == expected


def test_exact_match():
    assert exact_match("The kitchen.", "kitchen") == 1.0
    assert exact_match("kitchen table", "kitchen") == 0.0


@pytest.mark.parametrize(
    ("prediction", "gold", "expected"),
    [
        ("the red red house", "red house", 0.8),  # 2 of 3 right, 2 of 2 found
        ("red", "red house red", 0.5),
        ("blue", "red", 0.0),
        ("", "red", 0.0),
        ("the", "a", 1.0),
        ("Red, house", "house red", 1.0),
    ],
)
def test_token_f1(prediction, gold, expected):
    assert token_f1(prediction, gold) == pytest.approx(expected)
    assert token_f1(gold, prediction) == pytest.approx(expected)
