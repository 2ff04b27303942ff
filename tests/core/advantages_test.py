from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mempo_jax.core import advantages

RULES = ("eps", "ddof", "divide_by_std")
degenerate = jax.jit(advantages.degenerate)
group_normalise = jax.jit(advantages.group_normalise, static_argnames=RULES)
gated_normalise = jax.jit(advantages.gated_normalise, static_argnames=RULES)


def test_hand_numbers():
    # mean 2, population std 1
    reward = np.array([[1.0, 3.0, 1.0, 3.0]])
    np.testing.assert_allclose(
        group_normalise(reward, eps=0.0), [[-1, 1, -1, 1]], rtol=1e-6
    )
    np.testing.assert_allclose(
        group_normalise(reward, eps=1.0), [[-0.5, 0.5, -0.5, 0.5]], rtol=1e-6
    )
    np.testing.assert_allclose(
        group_normalise(reward, divide_by_std=False), [[-1, 1, -1, 1]], rtol=1e-6
    )


def test_huge_rewards_keep_their_units():
    reward = [[-3e30, 3e30]]  # their squares are above any float32
    np.testing.assert_allclose(
        group_normalise(reward, divide_by_std=False), reward, rtol=1e-5
    )
    np.testing.assert_allclose(
        group_normalise(reward, eps=3e30), [[-0.5, 0.5]], rtol=1e-5
    )


def test_unbiased_std_divides_by_one_less_and_warns():
    reward = np.array([[1.0, 3.0, 1.0, 3.0]])
    with pytest.warns(UserWarning, match="learning rate"):
        unbiased = group_normalise(reward, eps=0.0, ddof=1)
    np.testing.assert_allclose(
        unbiased, np.sqrt(3 / 4) * np.sign(reward - 2), rtol=1e-6
    )


def test_members_left_out_vote_in_neither_mean_nor_std():
    reward = np.array([[1.0, np.nan, 3.0, np.inf]])
    valid = np.array([[True, False, True, False]])
    np.testing.assert_allclose(
        group_normalise(reward, valid, eps=0.0), [[-1, 0, 1, 0]], rtol=1e-6
    )


@pytest.mark.parametrize("value", [0.37, 0.1, 0.0, -7.3e20, 1e-30])
def test_equal_rewards_give_exactly_zero(value):
    reward = np.full((2, 8), value, np.float32)
    assert not group_normalise(reward).any()
    assert not group_normalise(reward, eps=1e-8).any()
    assert np.asarray(degenerate(reward)).all()


def test_equal_up_to_rounding_counts_as_equal():
    reward = np.array([[0.1 + 0.2, 0.3, 0.3, np.nextafter(np.float32(0.3), 1)]])
    assert degenerate(reward)[0]
    assert not group_normalise(reward, eps=0.0).any()
    cancelled = np.array([[1.1 - 1.0 - 0.1, 0.0, 0.0]])
    assert degenerate(cancelled)[0]


def test_a_small_but_real_difference_is_bounded_by_the_group_size():
    reward = np.array([[0.35] * 7 + [0.4]], np.float32)
    advantage = np.asarray(group_normalise(reward, eps=1e-8))
    assert not degenerate(reward)[0]
    assert np.abs(advantage).max() <= np.sqrt(8) + 1e-4
    np.testing.assert_allclose(advantage[0, -1], np.sqrt(7), rtol=1e-4)


def test_group_of_one_or_none_valid_is_degenerate():
    valid = np.array([[True, False], [False, False]])
    reward = np.array([[5.0, 1.0], [np.nan, np.nan]])
    assert np.asarray(degenerate(reward, valid)).all()
    assert not np.asarray(group_normalise(reward, valid)).any()


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
def test_a_counted_reward_that_is_not_finite_is_not_hidden(garbage):
    reward = np.array([[1.0, garbage, 1.0], [0.0, 1.0, 2.0]])
    assert not degenerate(reward)[0]
    advantage = np.asarray(group_normalise(reward))
    assert np.isnan(advantage[0]).any()
    assert np.isfinite(advantage[1]).all()


LARGEST = 2.0**127
finite = st.floats(-LARGEST, LARGEST, width=32, allow_subnormal=False)


@partial(jax.jit, static_argnums=2)
def _value_and_gradient(reward, valid, divide):
    def total(reward):
        advantage = group_normalise(reward, valid, divide_by_std=divide)
        weights = jnp.arange(10.0).reshape(2, 5) / 100
        return (advantage * weights).sum(), advantage

    (_, advantage), gradient = jax.value_and_grad(total, has_aux=True)(reward)
    return advantage, gradient


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(np.float32, (2, 5), elements=finite),
    hnp.arrays(bool, (2, 5)),
    st.booleans(),
)
def test_any_finite_reward_gives_finite_value_and_gradient(reward, valid, divide):
    reward = np.where(valid, reward, np.nan).astype(np.float32)

    advantage, gradient = _value_and_gradient(reward, valid, divide)
    if divide:
        assert np.isfinite(advantage).all()
        assert np.abs(advantage).max() <= np.sqrt(5) + 1e-3
    assert np.isfinite(gradient).all()


def test_gradient_equals_finite_differences():
    reward = np.array([[0.3, -1.2, 0.7, 2.0]])
    weights = np.array([[1.0, -0.5, 0.3, 0.8]])

    @jax.jit
    def total(reward):
        return (group_normalise(reward, eps=1e-2) * weights).sum()

    with jax.enable_x64(True):
        exact = np.asarray(jax.grad(total)(jnp.asarray(reward)))
        for i in range(4):
            step = np.zeros_like(reward)
            step[0, i] = 1e-6
            slope = (total(reward + step) - total(reward - step)) / 2e-6
            np.testing.assert_allclose(exact[0, i], slope, rtol=1e-6)


def test_penalties_alone_make_no_full_size_advantage():
    # All answers wrong, bank sizes 10 ... 17, a penalty of 0.01 an entry.
    penalty = -0.01 * np.arange(10, 18)[None]
    score = np.zeros((1, 8))
    assert np.abs(group_normalise(penalty)).max() > 1.4
    gated = np.asarray(gated_normalise(penalty, score))
    np.testing.assert_allclose(gated, penalty - penalty.mean(), atol=1e-5)


def test_gate_leaves_groups_with_an_outcome_alone():
    score = np.array([[0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    reward = score + np.array([[0.0, -0.1, 0.0, 0.0], [0.0, -0.1, 0.0, 0.0]])
    gated = np.asarray(gated_normalise(reward, score))
    np.testing.assert_array_equal(gated[0], np.asarray(group_normalise(reward))[0])
    np.testing.assert_allclose(gated[1], [0.025, -0.075, 0.025, 0.025], atol=1e-5)


def test_gate_never_enlarges_and_ignores_scores_left_out():
    reward = np.array([[0.0, -8.0, 0.0, -8.0, 100.0]])
    valid = np.array([[True, True, True, True, False]])
    score = np.array([[0.0, 0.0, 0.0, 0.0, 1.0]])
    gated = np.asarray(gated_normalise(reward, score, valid))
    np.testing.assert_allclose(gated, [[1, -1, 1, -1, 0]], atol=1e-4)


@pytest.mark.parametrize("gate", [False, True])
def test_settings_choose_the_rule(gate):
    settings = {"eps": 1e-4, "ddof": 0, "divide_by_std": True, "outcome_gate": gate}
    reward, score = np.array([[0.0, -0.1]]), np.zeros((1, 2))
    valid = np.ones((1, 2), bool)
    result = advantages.group_advantage(reward, score, valid, **settings)
    expected = gated_normalise(reward, score) if gate else group_normalise(reward)
    np.testing.assert_array_equal(result, expected)
    assert (np.abs(result).max() < 0.1) == gate


def test_wrong_shapes_and_ddof_are_refused():
    with pytest.raises(ValueError, match=r"\[G, S\]"):
        group_normalise(np.zeros(4))
    with pytest.raises(ValueError, match="valid"):
        group_normalise(np.zeros((2, 2)), np.ones((2, 1), bool))
    with pytest.raises(ValueError, match="ddof"):
        group_normalise(np.zeros((2, 2)), ddof=2)
    with pytest.raises(ValueError, match="task_score"):
        gated_normalise(np.zeros((2, 2)), np.zeros((2, 1)))
