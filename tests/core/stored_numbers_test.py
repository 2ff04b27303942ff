"""Reward to loss on one small batch whose every number was worked out by hand.

Two trajectories with 2 and 3 counted tokens. With ln 2 = 0.693147:

    ratio      1.5  0.5 |  1.0   1.5   0.5     policy / old policy
    advantage    2    2 |   -1    -1    -1
    surrogate  2.6  1.0 | -1.0  -1.5  -0.8     clipped to [0.8, 1.3]
    ref / pi     2    1 |  0.5     1     2
    k1       -ln 2    0 | ln 2     0 -ln 2
    k2    ln^2 2/2    0 |  0.240   0  0.240
    k3    1 - ln 2    0 | ln 2 - 0.5  0  1 - ln 2
"""

import numpy as np
import pytest

from mempo_jax.core import group_normalise, policy_objective

RATIO = np.array([[1.5, 0.5, 9.0], [1.0, 1.5, 0.5]])
REF = np.array([[2.0, 1.0, 9.0], [0.5, 1.0, 2.0]])
MASK = np.array([[1, 1, 0], [1, 1, 1]], bool)
ADVANTAGE = np.array([[2.0, 2.0, 9.0], [-1.0, -1.0, -1.0]])


@pytest.mark.parametrize(
    ("ddof", "expected"), [(0, 1.4138137), (1, 1.2244449)], ids=["n", "n - 1"]
)
@pytest.mark.filterwarnings("ignore:ddof=1")
def test_group_advantage(ddof, expected):
    # mean 0.5, deviations 0.5, -0.5, 0, 0; std sqrt(1/8) or sqrt(1/6), eps 1e-4
    got = group_normalise(np.array([[1.0, 0.0, 0.5, 0.5]]), ddof=ddof)
    np.testing.assert_allclose(got, [[expected, -expected, 0, 0]], rtol=1e-5)


@pytest.mark.parametrize(
    ("aggregation", "estimator", "expected"),
    [
        ("token_mean", "k3", -0.04386294),  # (-0.3 + 0.1 x 0.8068528) / 5
        ("token_mean", "k1", -0.07386294),  # (-0.3 - 0.1 x 0.6931472) / 5
        ("token_mean", "k2", -0.04558641),  # (-0.3 + 0.1 x 0.7206796) / 5
        ("trajectory_mean", "k3", -0.33399535),  # (-3.5693147 / 2 + 3.35 / 3) / 2
        ("constant", "k3", -0.02741434),  # (-0.3 + 0.1 x 0.8068528) / (2 x 4)
    ],
)
def test_loss(aggregation, estimator, expected):
    log_probs = np.full(RATIO.shape, -1.0)
    total, count, _ = policy_objective(
        log_probs,
        log_probs - np.log(RATIO),
        log_probs + np.log(REF),
        ADVANTAGE,
        MASK,
        clip_low=0.2,
        clip_high=0.3,
        kl_coef=0.1,
        kl_estimator=estimator,
        aggregation=aggregation,
        constant_length=4,
    )
    np.testing.assert_allclose(total / count, expected, rtol=1e-5)
