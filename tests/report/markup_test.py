"""Texts as HTML, and figures for reading."""

import pytest

from mempo_jax.report import markup


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
    assert markup.escaped(text) == shown


def test_what_is_too_long_is_cut_before_it_is_escaped():
    assert markup.escaped("<<<<", 3) == "&lt;&lt;&lt; [… 1 more characters]"
    assert markup.brief("one  two\nthree", 9) == "one two …"


def test_elements():
    made = markup.element("p", "x", class_="a", data_of=1, hidden=True, title=None)
    assert made == '<p class="a" data-of="1" hidden>x</p>'
    assert markup.single("line", x1=0, class_='"') == '<line x1="0" class="&quot;"/>'


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
