"""Rows of a comparison as a table."""

import pytest

from mempo_jax.evaluation.baselines import ToldTrajectory
from mempo_jax.evaluation.table import MEASURES, row
from mempo_jax.report.comparison import comparison_html
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
