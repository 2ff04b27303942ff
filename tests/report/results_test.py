"""Rows of a comparison as a table."""

import pytest

from mempo_jax.evaluation.baselines import ToldTrajectory
from mempo_jax.evaluation.result_rows import MEASURES, row
from mempo_jax.report.results import comparison_html
from tests.report.reading import Read
from tests.rollout.assemble_test import trajectory


@pytest.fixture(scope="module")
def rows():
    made = [ToldTrajectory(trajectory(score=score)) for score in (1.0, 0.0, 1.0, 1.0)]
    return [row("rag <all>", made), row("trained", made[:2], made[2:])]


def test_means_with_intervals_and_dashes(rows):
    read = Read(comparison_html(rows, ("success_sampled", "success_greedy", "em")))
    heads, rag, trained = read.rows
    assert heads == ["policy", "success, sampled", "success, greedy", "exact match"]
    assert rag[0] == "rag <all>"
    low, high = rows[0]["success_sampled"]["ci95"]
    assert rag[1] == f"0.75 [{low:.2f}, {high:.2f}]"
    assert rag[3] == "–", "there was no question"
    assert trained[2].startswith("1.00 [")
    assert ("b", {}) in read.elements, "what was learnt stands out"


def test_all_measures_unless_some_are_named(rows):
    heads = Read(comparison_html(rows, caption="ten tasks")).rows[0]
    assert heads == ["policy", *MEASURES.values()]
    with pytest.raises(KeyError, match="speed"):
        comparison_html(rows, ("speed",))


def test_a_table_escapes_its_caption_and_has_no_empty_lines(rows):
    page = comparison_html(rows, ("em",), caption="over <above>")
    assert Read(page).text.startswith("over <above>")
    assert page.count("<div") == 2, "the box and the caption"
    assert comparison_html(rows, ("em",)).count("<div") == 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.0, "0.00"), (-0.256, "-0.26"), (12.34, "12.3"), (321.4, "321")],
)
def test_figures_are_short(value, shown):
    row = {"policy": "one", "em": {"mean": value, "ci95": [None, None]}}
    assert Read(comparison_html([row], ("em",))).rows[1] == ["one", shown]
