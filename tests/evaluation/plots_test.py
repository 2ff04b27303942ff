"""Pictures are drawn where matplotlib is there; figures may be unknown."""

import pytest

from mempo_jax.evaluation.plots import plot_lengths, plot_rows

pytestmark = pytest.mark.extras
PNG = b"\x89PNG"


def made(policy, success, tokens):
    known = {"mean": success, "ci95": [None, None]}
    cost = {"mean": tokens, "ci95": [tokens, tokens]}
    return {
        "policy": policy,
        "success_sampled": known,
        "tokens_peak": cost,
        "tokens_total": cost,
    }


ROWS = [made("trained", 0.9, 60.0), made("rag", 0.2, 800.0), made("none", None, 0.0)]


def test_success_against_cost(tmp_path):
    plot_rows(tmp_path / "a.png", ROWS, "ledger")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)


def test_figures_over_lengths(tmp_path):
    plot_lengths(tmp_path / "b.png", {10: ROWS, 40: ROWS[:1]})
    assert (tmp_path / "b.png").read_bytes().startswith(PNG)
