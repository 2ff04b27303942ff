import dataclasses

import jax
import numpy as np
import pytest

from mempo_jax.core import credit as module
from mempo_jax.core.credit import MODES
from mempo_jax.types import Kind, Outcome
from tests.core.credit_case import SETTINGS, assign, evidence, table, write

to_tokens = jax.jit(module.to_tokens, static_argnames="settings")


def _with(*modes):
    return dataclasses.replace(SETTINGS, modes=modes)


def test_malformed_or_failed_op_never_gets_a_positive_bonus():
    # Useful writes lost reward here, so 0 is above the mean.
    failed = write(2, -1, Outcome.ERROR)
    ops = table([write(0, 3), failed], [write(1, 3)])
    reward = np.zeros((2, 4))
    reward[:, 3] = -1.0
    credit = assign(ops, ("attribution",), reward)
    assert credit.bonus[0, 1] == 0
    assert credit.bonus[0, 0] < 0


@pytest.mark.parametrize("mode", list(MODES))
def test_empty_table_is_neutral(mode):
    credit = assign(table([], []), (mode,))
    assert (credit.weight == 1).all()
    assert not credit.bonus.any()


def test_no_credit_depends_on_garbage_in_invalid_rows():
    ops = table([write(0, 3), write(1)], [write(0, 3)])
    reward = np.array([[0, 0, 0, 1.0], [np.nan, np.inf, 0, 0]])
    valid = np.array([[True, False]])
    modes = ("uniform", "discounted", "attribution")
    credit = assign(ops, modes, reward, valid=valid)
    assert np.isfinite(credit.bonus).all()
    assert np.isfinite(credit.weight).all()


def _tokens(ops, credit, settings, op_id, turn_id, action, index, turns):
    args = (np.asarray(x) for x in (op_id, turn_id, action, index, turns))
    return to_tokens(credit, ops, *args, settings=settings)


def test_tokens_take_the_credit_of_their_op():
    settings = _with("ops_only", "discounted", "attribution")
    ops = table([write(0, 1)], [write(1), write(0)])
    reward = np.array([[0.0, 1.0], [0.0, 0.0]])
    credit = assign(ops, settings.modes, reward, turns=2)
    weight, bonus = _tokens(
        ops,
        credit,
        settings,
        op_id=[[-1, 0, 0, -1, -1], [-1, 1, 0, -1, -1]],
        turn_id=[[0, 0, 0, 1, 1], [0, 0, 1, 1, 1]],
        action=np.array([[0, 1, 1, 1, 0], [0, 1, 1, 1, 0]], bool),
        index=[0, 1],
        turns=[2, 2],
    )
    np.testing.assert_allclose(weight, [[0, 0.5, 0.5, 0.1, 0], [0, 0.5, 1, 0.1, 0]])
    expected = np.array(
        [
            [0, credit.bonus[0, 0], credit.bonus[0, 0], 0, 0],
            [0, credit.bonus[1, 1], credit.bonus[1, 0], 0, 0],
        ]
    )
    np.testing.assert_allclose(bonus, expected)
    assert bonus[0, 1] > 0 > bonus[1, 1]


def test_tool_tokens_neither_earn_nor_discount():
    # One action token, a hundred tokens of a result, one action token.
    settings = _with("discounted")
    ops = table([])
    credit = assign(ops, settings.modes, turns=2)
    action = np.zeros((1, 102), bool)
    action[0, [0, 101]] = True
    turn = np.concatenate([[0], np.ones(101)])[None].astype(int)
    weight, _ = _tokens(
        ops, credit, settings, np.full((1, 102), -1), turn, action, [0], [2]
    )
    np.testing.assert_allclose(weight[action], [0.5, 1.0])
    assert weight.sum() == 1.5


def test_uniform_is_the_action_mask():
    rng = np.random.default_rng(0)
    ops = table([write(0, 3)], [write(1)])
    credit = assign(ops, ("uniform",))
    action = rng.random((3, 9)) < 0.5
    op_id = rng.integers(-1, 4, (3, 9))
    weight, bonus = _tokens(
        ops, credit, SETTINGS, op_id, np.zeros((3, 9), int), action, [0, 1, 0], [4, 4]
    )
    np.testing.assert_array_equal(weight, action)
    assert not bonus.any()


def test_groups_must_match_the_table():
    with pytest.raises(ValueError, match="group_valid"):
        assign(table([], []), ("uniform",), valid=np.ones((1, 3), bool))


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("probe", ["turn_reward", "answer_log_prob"])
def test_no_mode_ever_rewards_a_malformed_or_failed_op(mode, probe):
    rng = np.random.default_rng(0)
    failed = [write(0, 3, Outcome.ERROR), (Kind.MALFORMED, 1, 3, Outcome.ERROR)]
    for _ in range(20):
        ops = table([*failed, write(0, 3), write(1, 2)], [write(0, 3), *failed])
        draws = rng.normal(size=(3, 2, 4))
        fields = dict(
            zip(("answer_gain", "leave_out", "turn_potential"), draws, strict=True)
        )
        probed = evidence(ops, **fields)
        reward = rng.normal(size=(2, 4))
        change = {"attribution_probe": probe}
        bonus = assign(ops, (mode,), reward, probed=probed, **change).bonus
        assert np.isfinite(bonus).all()
        assert (bonus[0, :2] <= 0).all()
        assert (bonus[1, 1:3] <= 0).all()


def test_bonuses_of_listed_modes_add_up():
    ops = table([write(0, 3), write(1, 2)], [write(0), write(2)])
    rng = np.random.default_rng(0)
    drop, gain = rng.normal(size=(2, 2, 4))
    probed = evidence(ops, leave_out=drop, answer_gain=gain)
    modes = ("counterfactual", "answer_probability")
    both = assign(ops, modes, probed=probed).bonus
    one, other = (assign(ops, (mode,), probed=probed).bonus for mode in modes)
    np.testing.assert_allclose(both, one + other, rtol=1e-6)
    assert np.abs(one).max() > 0 < np.abs(other).max()
