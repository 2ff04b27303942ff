"""Curves of metrics: what is drawn, at which height, and what is left out."""

import itertools
import math
import re
import tracemalloc

import pytest

from mempo_jax.report import curves
from mempo_jax.report.markup import render
from mempo_jax.report.run_files import by_step
from tests.report import run_case
from tests.report.reading import Read


def series(rows):
    return curves.series_of(by_step(rows))


def drawn(title, series):
    """The drawing of one panel, HTML."""
    size = {"width": curves.WIDTH, "height": curves.HEIGHT, "left": curves.LEFT}
    size["right"] = curves.WIDTH - curves.RIGHT
    panel = curves.panel(title, series)
    page = render(
        "curves.html.j2", panels=[panel], others=[], unreadable=0, joined=1, **size
    )
    return re.search(r"<figure.*?</figure>", page, re.S)[0]


def heights(page):
    """(x, y) of the points of each curve as measured."""
    paths = re.findall(r'd="([^"]*)" class="pale"', page)
    return [
        [tuple(map(float, pair.split())) for pair in re.split("[ML]", path)[1:]]
        for path in paths
    ]


def test_values_stand_where_they_belong():
    made = series([{"step": n, "a": n / 2} for n in range(5)])
    page = drawn("a title", {"a": made["a"]})
    (points,) = heights(page)
    xs, ys = zip(*points, strict=True)
    assert xs[0] == curves.LEFT
    assert xs[-1] == curves.WIDTH - curves.RIGHT
    assert ys[0] == curves.HEIGHT - curves.BOTTOM, "0 is the bottom"
    steps = [a - b for a, b in itertools.pairwise(ys)]
    assert steps == pytest.approx([steps[0]] * 4, abs=0.01)
    read = Read(page)
    assert read.text.startswith("a title")
    assert "a from 0 to 2" in dict(read.elements)["svg"]["aria-label"]


def test_0_stands_where_its_line_does_and_the_highest_below_the_edge():
    made = series([{"step": n, "a": n - 2.0} for n in range(5)])
    page = drawn("a", {"a": made["a"]})
    ys = [y for _, y in heights(page)[0]]
    assert ys[0] == curves.HEIGHT - curves.BOTTOM, "the lowest is the bottom"
    assert curves.TOP + 3 < ys[-1] < curves.TOP + 12
    lines = {
        told: float(y)
        for y, told in re.findall(
            r'<line x1="[^"]*" x2="[^"]*" y1="([^"]*)"[^>]*><text[^>]*>([^<]*)', page
        )
    }
    assert lines["0"] == pytest.approx(ys[2], abs=0.1)
    assert lines["−1"] == pytest.approx(ys[1], abs=0.1)


def test_a_gap_is_a_gap_and_a_point_alone_is_a_dot():
    values = [1.0, None, 3.0, 4.0, float("nan"), float("inf")]
    made = series([{"step": n, "a": v} for n, v in enumerate(values)])
    assert made["a"].values == [1.0, None, 3.0, 4.0, None, None]
    page = drawn("a", {"a": made["a"]})
    pale = re.search(r'd="([^"]*)" class="pale"', page)[1]
    assert pale.count("M") == 2
    assert page.count("<circle") == 1


def test_rows_are_taken_by_step_and_the_last_counts():
    rows = [{"step": 2, "a": 5}, {"step": 1, "a": 1}, {"step": 2, "a": 6}, {"a": 9}]
    assert series(rows)["a"] == ([1, 2], [1.0, 6.0], 1)


def test_long_runs_are_joined():
    made = series([{"step": n, "a": float(n)} for n in range(1001)])["a"]
    assert made.joined == 3
    assert len(made.values) <= curves.POINTS
    assert made.values[:2] == [1.0, 4.0]
    assert made.steps[:2] == [2, 5]
    assert made.steps[-1] == 1000


def test_panels_hold_what_was_measured():
    made = curves.panels(series([run_case.metrics(n) for n in range(9)]))
    assert list(made) == [
        *("success and reward", "reward components, weighted"),
        *("operations in a turn", "KL to the reference, nats"),
    ]
    assert list(made["reward components, weighted"]) == ["task", "malformed"]


def test_what_was_never_measured_has_no_curve():
    assert series([{"step": 0, "a": None, "b": "text", "c": []}]) == {}
    assert curves.panels({}) == {}


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0, 0.97), (-3, 7), (0, 1e-6), (0, 2.5e7), (-0.2, 0)]
)
def test_ticks_are_round_and_few(low, high):
    ticks = curves._ticks(low, high)
    assert 2 <= len(ticks) <= 6
    assert low - 1e-9 <= ticks[0] < ticks[-1] <= high + 1e-9
    for tick in ticks:
        if tick:
            size = abs(tick) / 10 ** math.floor(math.log10(abs(tick)))
            assert size == pytest.approx(round(size, 1))


@pytest.mark.parametrize("value", [0.0, 5.0, -5.0, 1e-9, 5e-324])
def test_a_curve_that_is_flat(value):
    made = series([{"step": 3, "a": value}])
    assert "nan" not in drawn("a", {"a": made["a"]})


def test_the_running_mean():
    assert curves.running_mean([0, 2, 4, 6, 8, 10]) == [0, 1, 2, 3, 4, 6]


def test_a_long_run_is_read_without_its_rows():
    rows = ({"step": n} | {f"m{m}": n / 7 for m in range(50)} for n in range(4000))
    tracemalloc.start()
    try:
        table = by_step(rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(curves.series_of(table)["m3"].values) == curves.POINTS
    assert peak < 1.5 * 8 * 4000 * 51
