"""Pieces of HTML: well formed, escaped, readable figures and colours."""

import pytest

from mempo_jax.report.page import box, colour, number
from tests.report.reading import Read


def test_a_table_holds_its_rows_and_escapes_what_is_text():
    cells = ["<td>1</td><td>2</td>", "<td>3</td><td>4</td>"]
    read = Read(box(("a", "<b>"), cells, "over <above>", "below"))
    assert read.rows == [["a", "<b>"], ["1", "2"], ["3", "4"]]
    assert read.text.startswith("over <above>")
    assert read.text.endswith("below")
    assert "<div" not in box(("a",), [], "").removeprefix("<div"), "no empty lines"


def test_colours_tell_sign_and_size():
    strong, weak, against = colour(2.0, 2.0), colour(1.0, 2.0), colour(-2.0, 2.0)
    assert strong.endswith("0.75)")
    assert weak.endswith("0.38)")
    assert strong != against
    assert colour(0.0, 2.0).endswith("0.00)")
    assert colour(0.0, 0.0).endswith("0.00)"), "nothing to compare with"
    assert colour(9.0, 2.0) == strong, "no more than full"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.0, "0.00"), (-0.256, "-0.26"), (12.34, "12.3"), (321.4, "321")],
)
def test_figures_are_short(value, shown):
    assert number(value) == shown
