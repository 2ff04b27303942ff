import jax
import numpy as np

from mempo_jax.core import group_normalise
from mempo_jax.training import step_metrics
from mempo_jax.types import Kind, OpTable, Outcome


def test_group_figures_hand_numbers():
    reward = np.array([[1.0, 3.0], [2.0, 2.0], [np.nan, np.nan]])
    score = np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
    valid = np.array([[True, True], [True, True], [False, False]])
    advantage = group_normalise(reward, valid, eps=0.0)
    figures = jax.jit(step_metrics.group_reward_metrics)(
        reward, score, valid, advantage
    )
    expected = {
        "reward_std": 0.5,
        "degenerate_share": 0.5,
        "no_outcome_share": 0.5,
        "advantage_abs_mean": 0.5,
    }
    assert set(figures) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(figures[name], value, rtol=1e-6, err_msg=name)


def test_memory_sums_hand_numbers():
    kind = np.array(
        [
            [Kind.WRITE, Kind.WRITE, Kind.RECALL],
            [Kind.WRITE, Kind.MERGE, Kind.NONE],
            [Kind.WRITE, Kind.RECALL, Kind.NONE],  # the recall had an error
            [Kind.WRITE, Kind.RECALL, Kind.RECALL],  # left out
            [Kind.WRITE, Kind.ANSWER, Kind.NONE],  # the write had an error
        ]
    )
    outcome = np.full(kind.shape, Outcome.DONE)
    outcome[2, 1] = outcome[4, 0] = Outcome.ERROR
    unused = np.zeros_like(kind)
    ops = OpTable(kind, unused, unused, unused, outcome)
    valid = np.array([True, True, True, False, True])
    sums = jax.jit(step_metrics.memory_sums)(ops, valid)
    got = {name: float(value) for name, value in sums.items()}
    assert got == {"writes": 4, "recalls": 1, "write_only": 2}
