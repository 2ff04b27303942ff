"""Numbers as steps of a colour: by the square root, up to the strongest."""

import pytest

from mempo_jax.report import shades
from mempo_jax.report.choosing import Group
from mempo_jax.report.records import read_record
from tests.report import run_case

SCALES = {"advantage": 4.0, "weight": 1.0, "bonus": 0.0}


@pytest.mark.parametrize(
    ("value", "shade"),
    [
        (0.0, ""),
        (4.0, "ap8"),
        (1.0, "ap4"),
        (-1.0, "an4"),
        (99.0, "ap8"),
        (1e-9, "ap1"),
    ],
)
def test_steps(value, shade):
    assert shades.Shades(SCALES).of("advantage", value) == shade


def test_a_measure_that_is_0_everywhere_has_no_colour():
    made = shades.Shades(SCALES)
    assert made.classes(1.0, 0.0, -4.0) == "an8 wp8"


def test_every_class_has_a_rule():
    style = shades.style()
    for letter in "awb":
        for side in "pn":
            for step in range(1, shades.STEPS + 1):
                assert f" .{letter}{side}{step}{{background-color:" in style
    assert style.count(";--deep:rgba(") == 6 * shades.STEPS, "what drawings take"


def test_scales_are_those_of_what_is_shown():
    made = read_record("step_000000", run_case.record())
    found = shades.shades_of([Group(0, made.task, (made,))])
    assert found.scales["bonus"] == 0.5
    assert 1.0 <= found.scales["advantage"] <= 1.5
    old = read_record("step_000000", run_case.record(credit=False))
    assert shades.shades_of([Group(0, old.task, (old,))]) is None


def test_what_a_record_does_not_tell_is_0():
    made = read_record("step_000000", run_case.record())
    assert shades.token_numbers(made, 0, 0) == (1.0, 0.5, 1.5)
    assert shades.token_numbers(made, -1, 2) == (0.25, 0.0, 0.25)
    assert shades.token_numbers(made, 99, 0) == (0.0, 0.0, 0.0)
    assert shades.token_numbers(made, -1, 99) == (0.0, 0.0, 0.0)
