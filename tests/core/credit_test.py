import dataclasses

import jax
import numpy as np
import pytest

from mempo_jax.core import CreditSettings
from mempo_jax.core import credit as module
from mempo_jax.core.credit import MODES
from mempo_jax.types import Kind, OpTable, Outcome

assign = jax.jit(module.assign, static_argnames="settings")
to_tokens = jax.jit(module.to_tokens, static_argnames="settings")
contributions = jax.jit(module.contributions)

SETTINGS = CreditSettings(
    modes=("uniform",), gamma=0.5, other_weight=0.1, attribution_weight=2.0
)


def _with(*modes):
    return dataclasses.replace(SETTINGS, modes=modes)


def _table(*trajectories, width=4):
    """Rows (kind, turn, last_use, outcome) of each trajectory, as an OpTable."""
    table = np.full((5, len(trajectories), width), -1, np.int32)
    for n, ops in enumerate(trajectories):
        for k, (kind, turn, last_use, outcome) in enumerate(ops):
            table[:, n, k] = kind, turn, last_use, last_use, outcome
    return OpTable(*table)


def _write(turn, last_use=-1, outcome=Outcome.NEW):
    return (Kind.WRITE, turn, last_use, outcome)


def _assign(ops, modes, reward=None, turns=4, valid=None, settings=SETTINGS):
    count = ops.kind.shape[0]
    reward = np.zeros((count, turns)) if reward is None else np.asarray(reward)
    valid = np.ones((1, count), bool) if valid is None else valid
    settings = dataclasses.replace(settings, modes=modes)
    turns = np.full(count, turns)
    return assign(ops, reward, turns, valid, settings=settings)


def test_uniform():
    ops = _table([_write(0), (Kind.ANSWER, 3, -1, Outcome.DONE)])
    credit = _assign(ops, ("uniform",))
    assert (credit.weight == 1).all()
    assert not credit.bonus.any()


def test_ops_only_keeps_memory_decisions_skipped_and_malformed_ones_included():
    kinds = (Kind.WRITE, Kind.SKIP, Kind.ANSWER, Kind.MALFORMED)
    ops = _table([(kind, 0, -1, Outcome.DONE) for kind in kinds])
    credit = _assign(ops, ("ops_only",))
    np.testing.assert_allclose(credit.weight, [[1, 1, 0.1, 1]])


def test_discounted():
    ops = _table([_write(0), _write(1), _write(3)])
    credit = _assign(ops, ("discounted",))
    np.testing.assert_allclose(credit.weight, [[1 / 8, 1 / 4, 1, 1]])


def test_weights_multiply():
    ops = _table([_write(1), (Kind.ACT, 1, -1, Outcome.DONE)])
    credit = _assign(ops, ("ops_only", "discounted"))
    np.testing.assert_allclose(credit.weight[0, :2], [1 / 4, 0.1 / 4])


def test_contribution_is_the_reward_between_the_write_and_its_last_use():
    ops = _table([_write(0, 2), _write(1, 3), _write(2), _write(3, 3)])
    got = contributions(ops, np.array([[8.0, 4.0, 2.0, 1.0]]), np.array([4]))
    np.testing.assert_allclose(got, [[6, 3, 0, 0]])


def test_reward_after_the_end_and_ops_that_store_nothing_do_not_count():
    ops = _table(
        [_write(0, 3), _write(0, 3, Outcome.DUPLICATE), _write(0, 3, Outcome.ERROR)]
    )
    got = contributions(ops, np.array([[0, 1.0, np.nan, np.nan]]), np.array([2]))
    np.testing.assert_allclose(got, [[1, 0, 0, 0]])


def test_attribution_pays_the_useful_write_and_charges_the_unused():
    # Two trajectories: one write of four was in the final recall of a right answer.
    ops = _table([_write(0, 3), _write(1)], [_write(0, 3), _write(2)])
    reward = np.zeros((2, 4))
    reward[0, 3] = 1.0
    credit = _assign(ops, ("attribution",), reward)
    good, bad = 0.75 / np.sqrt(3 / 16), -0.25 / np.sqrt(3 / 16)
    expected = np.array([[good, bad, 0, 0], [bad, bad, 0, 0]])
    np.testing.assert_allclose(credit.bonus, 2.0 * expected, rtol=1e-3)
    assert (credit.weight == 1).all()


def test_attribution_of_equal_contributions_is_exactly_zero():
    ops = _table([_write(0, 3)], [_write(1, 3)])
    reward = np.zeros((2, 4))
    reward[:, 3] = 0.37
    assert not _assign(ops, ("attribution",), reward).bonus.any()


def test_attribution_normalises_inside_each_group_over_valid_trajectories():
    ops = _table([_write(0, 3), _write(1)], [_write(0, 3)], [_write(0, 3)], [])
    reward = np.zeros((4, 4))
    reward[:, 3] = 1.0, np.nan, 1.0, 1.0
    valid = np.array([[True, False], [True, True]])
    credit = _assign(ops, ("attribution",), reward, valid=valid)
    # Group 0: contributions 1 and 0; the failed trajectory is out. Group 1: one write.
    np.testing.assert_allclose(credit.bonus[0, :2], [2, -2], rtol=1e-3)
    assert not credit.bonus[1:].any()


def test_other_ops_of_a_recalled_entry_earn_no_bonus():
    recall = (Kind.RECALL, 2, 3, Outcome.DONE)
    skip = (Kind.SKIP, 1, -1, Outcome.DONE)
    ops = _table([_write(0, 3), skip, recall], [_write(1)])
    reward = np.zeros((2, 4))
    reward[:, 3] = 1.0
    bonus = _assign(ops, ("attribution",), reward).bonus
    np.testing.assert_allclose(bonus, [[2, 0, 0, 0], [-2, 0, 0, 0]], rtol=1e-3)


def test_malformed_or_failed_op_never_gets_a_positive_bonus():
    # Useful writes lost reward here, so 0 is above the mean.
    failed = _write(2, -1, Outcome.ERROR)
    ops = _table([_write(0, 3), failed], [_write(1, 3)])
    reward = np.zeros((2, 4))
    reward[:, 3] = -1.0
    credit = _assign(ops, ("attribution",), reward)
    assert credit.bonus[0, 1] == 0
    assert credit.bonus[0, 0] < 0


@pytest.mark.parametrize("mode", list(MODES))
def test_empty_table_is_neutral(mode):
    credit = _assign(_table([], []), (mode,))
    assert (credit.weight == 1).all()
    assert not credit.bonus.any()


def test_no_credit_depends_on_garbage_in_invalid_rows():
    ops = _table([_write(0, 3), _write(1)], [_write(0, 3)])
    reward = np.array([[0, 0, 0, 1.0], [np.nan, np.inf, 0, 0]])
    valid = np.array([[True, False]])
    modes = ("uniform", "discounted", "attribution")
    credit = _assign(ops, modes, reward, valid=valid)
    assert np.isfinite(credit.bonus).all()
    assert np.isfinite(credit.weight).all()


def _tokens(ops, credit, settings, op_id, turn_id, action, index, turns):
    args = (np.asarray(x) for x in (op_id, turn_id, action, index, turns))
    return to_tokens(credit, ops, *args, settings=settings)


def test_tokens_take_the_credit_of_their_op():
    settings = _with("ops_only", "discounted", "attribution")
    ops = _table([_write(0, 1)], [_write(1), _write(0)])
    reward = np.array([[0.0, 1.0], [0.0, 0.0]])
    credit = _assign(ops, settings.modes, reward, turns=2)
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
    ops = _table([])
    credit = _assign(ops, settings.modes, turns=2)
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
    ops = _table([_write(0, 3)], [_write(1)])
    credit = _assign(ops, ("uniform",))
    action = rng.random((3, 9)) < 0.5
    op_id = rng.integers(-1, 4, (3, 9))
    weight, bonus = _tokens(
        ops, credit, SETTINGS, op_id, np.zeros((3, 9), int), action, [0, 1, 0], [4, 4]
    )
    np.testing.assert_array_equal(weight, action)
    assert not bonus.any()


def test_entries_recalled_together_earn_alike_but_one_never_recalled_pays():
    """The known bias of attribution, stated: access is not yet usefulness."""
    ops = _table([_write(0, 3), _write(1, 3), _write(2)])
    credit = _assign(ops, ("attribution",), reward=[[0, 0, 0, 1.0]])
    together, _, unused = np.asarray(credit.bonus[0, :3])
    assert credit.bonus[0, 1] == together > 0 > unused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modes": ()}, "uniform, ops_only, discounted, attribution"),
        ({"modes": ("discount",)}, "discount"),
        ({"modes": ("uniform", "uniform")}, "each once"),
        ({"gamma": 0.0}, "gamma"),
        ({"gamma": 1.5}, "gamma"),
        ({"other_weight": -0.1}, "other_weight"),
        ({"attribution_weight": float("nan")}, "attribution_weight"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SETTINGS, **change)


def test_groups_must_match_the_table():
    with pytest.raises(ValueError, match="group_valid"):
        _assign(_table([], []), ("uniform",), valid=np.ones((1, 3), bool))
