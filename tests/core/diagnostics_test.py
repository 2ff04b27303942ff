import jax
import numpy as np

from mempo_jax.core import diagnostics, group_normalise


def test_group_figures_hand_numbers():
    reward = np.array([[1.0, 3.0], [2.0, 2.0], [np.nan, np.nan]])
    score = np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
    valid = np.array([[True, True], [True, True], [False, False]])
    advantage = group_normalise(reward, valid, eps=0.0)
    figures = jax.jit(diagnostics.group_figures)(reward, score, valid, advantage)
    expected = {
        "reward_mean": 2,
        "task_score_mean": 0.25,
        "reward_std": 0.5,
        "degenerate_share": 0.5,
        "no_outcome_share": 0.5,
        "advantage_abs_mean": 0.5,
        "valid_share": 4 / 6,
    }
    assert set(figures) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(figures[name], value, rtol=1e-6, err_msg=name)
