"""Figures of a step, against small cases counted by hand."""

import numpy as np

from mempo_jax.core.advantages import AdvantageSettings
from mempo_jax.training import figures
from mempo_jax.types import Rows
from tests.training import step_case


def rows_of(action):
    action = np.array(action, bool)
    rows = step_case.take(step_case.make_rows(), slice(0, len(action)))
    length = action.shape[1]
    rows = Rows(*(leaf[:, :length] if leaf.ndim == 2 else leaf for leaf in rows))
    everywhere = np.ones_like(action)
    valid = np.ones(len(action), bool)
    return rows._replace(token_mask=everywhere, action_mask=action, valid=valid)


def test_entropy_is_the_mean_over_action_tokens():
    rows = rows_of([[1, 1, 0, 1]])  # the first token of a row is predicted by nothing
    entropy = np.array([[9.0, 1.0, np.nan, 2.0]], np.float32)
    assert figures.mean_entropy([(rows, entropy)]) == 1.5
    assert figures.mean_entropy([(rows, entropy)] * 3) == 1.5
    assert figures.mean_entropy([]) is None
    assert figures.mean_entropy([(rows_of([[1, 0, 0, 0]]), entropy)]) is None


def test_means_over_updates_and_sums_of_counts():
    first = {"kl": 1.0, "skipped": True, "empty": False, "count": 4, "tokens": 3.0}
    second = first | {"kl": 2.0, "skipped": False, "tokens": 5.0}
    assert figures.mean_figures([first, second]) == {
        "kl": 1.5,
        "kl_first_update": 1.0,
        "skipped_updates": 1,
        "trained_tokens": 8,
        "empty_steps": 0,
    }
    assert figures.mean_figures([])["empty_steps"] == 1


def test_padding_is_what_the_token_mask_leaves_out():
    rows = rows_of([[1, 1, 1, 1], [1, 1, 1, 1]])
    half = rows._replace(token_mask=np.array([[1, 1, 1, 1], [0, 0, 0, 0]], bool))
    assert figures.padding_share([half]) == 0.5
    assert figures.padding_share([half, rows]) == 0.25
    assert figures.padding_share([]) is None


def test_the_spread_of_rewards_is_that_of_counted_members():
    facts = step_case.make_trajectories()
    reward = np.array([[0, 1, 0, 1], [5, 5, 5, 99]], np.float32)
    valid = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], bool)
    facts = facts._replace(reward=reward, valid=valid)
    facts = facts._replace(task_score=np.zeros_like(reward))
    settings = AdvantageSettings(1e-4, 0, True, False)
    got = figures.group_metrics(facts, settings)
    assert got["reward_std_in_group"] == 0.25
    assert got["degenerate_groups"] == 0.5
    assert got["no_outcome_groups"] == 1
    nobody = facts._replace(valid=np.zeros_like(valid))
    assert set(figures.group_metrics(nobody, settings).values()) == {None}
