"""Texts as HTML, figures for reading, and numbers as steps of a colour."""

import re

import jinja2
import pytest

from mempo_jax.report import markup
from mempo_jax.report.run_files import read_record
from tests.report import run_case


def shown_by_a_template(text):
    row = (text, False, [])
    page = markup.render(
        "notebook_comparison.html.j2", heads=[], rows=[row], caption="", figure=None
    )
    return re.search("<td[^>]*>(.*)</td>", page, re.S)[1]


def source(name):
    return markup.asset(name).splitlines()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<b>&\"'", "&lt;b&gt;&amp;&quot;&#x27;"),
        ("a\ud800b", "a\ufffdb"),
        ("\ud83d\ude00", "\U0001f600"),
        ("a\x00\x1b\r\x7f", "a\u2400\u241b\u240d\u2421"),
        ("line\n\tnext", "line\n\tnext"),
    ],
)
def test_text_is_escaped(text, shown):
    assert shown_by_a_template(text) == shown


def test_what_is_too_long_is_cut_before_it_is_escaped():
    shown = shown_by_a_template(markup.cut("<<<<", 3))
    assert shown == "&lt;&lt;&lt; [… 1 more characters]"
    assert markup.brief("one  two\nthree", 9) == "one two …"


def test_a_value_that_is_missing_is_an_error_at_its_line():
    name = "notebook_comparison.html.j2"
    with pytest.raises(jinja2.UndefinedError, match="'rows' is undefined") as raised:
        markup.render(name, heads=[], caption="")
    (line,) = [n for n, text in enumerate(source(name)) if "in rows" in text]
    places = [(str(each.path), each.lineno) for each in raised.traceback]
    assert (name, line) in [(path.rpartition("/")[2], at) for path, at in places]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.5, "0.50"), (-0.0, "0.00"), (-0.001, "0.00"), (-2, "−2.00")],
)
def test_numbers(value, shown):
    assert markup.number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((0, "0"), (0.12345, "0.123"), (1e-5, "1e-05"), (-1234.5, "−1234")),
        *((56_789, "56.8k"), (2.5e6, "2.5M"), (3e9, "3G")),
    ],
)
def test_compact_numbers(value, shown):
    assert markup.compact(value) == shown


def test_signs_and_counts():
    assert [markup.signed(v) for v in (0.5, -0.5, 0.001, -0.001)] == [
        *("+0.50", "−0.50", "0", "0")
    ]
    assert markup.count(1, "group") == "1 group"
    assert markup.count(2_000, "group") == "2,000 groups"


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
    assert markup.TokenColours(SCALES).shade("advantage", value) == shade


def test_a_measure_that_is_0_everywhere_has_no_colour():
    numbers = markup.TokenNumbers(weight=1.0, bonus=0.0, advantage=-4.0)
    assert markup.TokenColours(SCALES).classes(numbers) == "an8 wp8"


def test_every_class_has_a_rule():
    style = markup.render(
        "token_colours.css.j2", measures=markup.MEASURES, steps=markup.STEPS
    )
    for letter in "awb":
        for side in "pn":
            for step in range(1, markup.STEPS + 1):
                assert f" .{letter}{side}{step}{{background-color:" in style
    assert style.count(";--deep:rgba(") == 6 * markup.STEPS, "what drawings take"


def test_scales_are_those_of_what_is_shown():
    made = read_record("step_000000", run_case.record())
    found = markup.TokenColours.of([made])
    assert found.scales["bonus"] == 0.5
    assert 1.0 <= found.scales["advantage"] <= 1.5
    old = read_record("step_000000", run_case.record(credit=False))
    assert markup.TokenColours.of([old]) is None


def test_what_a_record_does_not_tell_is_0():
    made = read_record("step_000000", run_case.record())
    assert markup.token_numbers(made, 0, 0) == (1.0, 0.5, 1.5)
    assert markup.token_numbers(made, -1, 2) == (0.25, 0.0, 0.25)
    assert markup.token_numbers(made, 99, 0) == (0.0, 0.0, 0.0)
    assert markup.token_numbers(made, -1, 99) == (0.0, 0.0, 0.0)
