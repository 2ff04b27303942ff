"""Pictures are drawn where matplotlib is there; figures may be unknown."""

import pytest

from mempo_jax.evaluation.plots import (
    PANELS,
    curves_figure,
    plot_curves,
    plot_lengths,
    plot_rows,
    rows_figure,
)

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


STEPS = [
    {
        "step": at,
        "success": at / 10,
        "reward": at / 10 - 0.1,
        "kl": None,
        "entropy": 0.5,
    }
    for at in range(10)
] + [{"step": 10, "success": 1.0, "kl": 0.5}]


def test_curves_of_a_run(tmp_path):
    plot_curves(tmp_path / "c.png", STEPS, "ten steps")
    assert (tmp_path / "c.png").read_bytes().startswith(PNG)
    figure = curves_figure(STEPS, "ten steps")
    drawn = {axis.get_title(): axis for axis in figure.axes}
    measured = ("success in training", "KL to the initial policy, nats")
    assert list(drawn) == [*measured, "entropy of a token, nats"]
    success, mean, *reward = drawn["success in training"].lines
    assert list(success.get_xdata()) == list(range(11))
    assert mean.get_ydata()[2] == pytest.approx(0.1)
    assert mean.get_ydata()[9] == pytest.approx(0.7)
    assert len(reward[0].get_xdata()) == 10, "not measured in the last step"
    labels = [text.get_text() for text in drawn[measured[0]].get_legend().texts]
    assert labels == list(PANELS["success in training"].values())


def test_a_record_without_figures_has_no_curves():
    with pytest.raises(ValueError, match=r"curves of 1 steps: expected .* got rows"):
        curves_figure([{"step": 0, "success": None}], "")


def test_a_figure_shows_every_policy_that_was_measured():
    figure = rows_figure(ROWS, "ledger")
    texts = [text.get_text() for text in figure.axes[-1].get_legend().texts]
    assert texts == ["trained", "rag"]
