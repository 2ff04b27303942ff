import jax
import numpy as np

from mempo_jax.core import credit
from mempo_jax.types import Kind, Outcome
from tests.core.credit_case import assign, evidence, table, write

AS_WEIGHT = {"attribution_form": "weight", "attribution_weight": 1.0}
contributions = jax.jit(credit.contributions)


def test_contribution_is_the_reward_between_the_write_and_its_last_use():
    ops = table([write(0, 2), write(1, 3), write(2), write(3, 3)])
    got = contributions(ops, np.array([[8.0, 4.0, 2.0, 1.0]]), np.array([4]))
    np.testing.assert_allclose(got, [[6, 3, 0, 0]])


def test_reward_after_the_end_and_ops_that_store_nothing_do_not_count():
    ops = table(
        [write(0, 3), write(0, 3, Outcome.DUPLICATE), write(0, 3, Outcome.ERROR)]
    )
    got = contributions(ops, np.array([[0, 1.0, np.nan, np.nan]]), np.array([2]))
    np.testing.assert_allclose(got, [[1, 0, 0, 0]])


def test_attribution_pays_the_useful_write_and_charges_the_unused():
    # Two trajectories: one write of four was in the final recall of a right answer.
    ops = table([write(0, 3), write(1)], [write(0, 3), write(2)])
    reward = np.zeros((2, 4))
    reward[0, 3] = 1.0
    credit = assign(ops, ("attribution",), reward)
    good, bad = 0.75 / np.sqrt(3 / 16), -0.25 / np.sqrt(3 / 16)
    expected = np.array([[good, bad, 0, 0], [bad, bad, 0, 0]])
    np.testing.assert_allclose(credit.bonus, 2.0 * expected, rtol=1e-3)
    assert (credit.weight == 1).all()


def test_attribution_of_equal_contributions_is_exactly_zero():
    ops = table([write(0, 3)], [write(1, 3)])
    reward = np.zeros((2, 4))
    reward[:, 3] = 0.37
    assert not assign(ops, ("attribution",), reward).bonus.any()


def test_attribution_normalises_inside_each_group_over_valid_trajectories():
    ops = table([write(0, 3), write(1)], [write(0, 3)], [write(0, 3)], [])
    reward = np.zeros((4, 4))
    reward[:, 3] = 1.0, np.nan, 1.0, 1.0
    valid = np.array([[True, False], [True, True]])
    credit = assign(ops, ("attribution",), reward, valid=valid)
    # Group 0: contributions 1 and 0; the failed trajectory is out. Group 1: one write.
    np.testing.assert_allclose(credit.bonus[0, :2], [2, -2], rtol=1e-3)
    assert not credit.bonus[1:].any()


def test_other_ops_of_a_recalled_entry_earn_no_bonus():
    recall = (Kind.RECALL, 2, 3, Outcome.DONE)
    skip = (Kind.SKIP, 1, -1, Outcome.DONE)
    ops = table([write(0, 3), skip, recall], [write(1)])
    reward = np.zeros((2, 4))
    reward[:, 3] = 1.0
    bonus = assign(ops, ("attribution",), reward).bonus
    np.testing.assert_allclose(bonus, [[2, 0, 0, 0], [-2, 0, 0, 0]], rtol=1e-3)


def test_entries_recalled_together_earn_alike_but_one_never_recalled_pays():
    """The known bias of attribution, stated: access is not yet usefulness."""
    ops = table([write(0, 3), write(1, 3), write(2)])
    credit = assign(ops, ("attribution",), reward=[[0, 0, 0, 1.0]])
    together, _, unused = np.asarray(credit.bonus[0, :3])
    assert credit.bonus[0, 1] == together > 0 > unused


def test_the_change_of_the_answers_log_prob_can_stand_for_reward():
    # The first trajectory's recall brought 3 nats at turn 3, the second's nothing.
    ops = table([write(0, 3), write(1)], [write(0, 3), write(2)])
    potential = np.zeros((2, 4))
    potential[0, 3] = 3.0
    probed = evidence(ops, turn_potential=potential)
    by_probe = {"attribution_probe": "answer_log_prob"}
    bonus = assign(ops, ("attribution",), probed=probed, **by_probe).bonus
    assert bonus[0, 0] > 0 > bonus[0, 1] == bonus[1, 0] == bonus[1, 1]
    reward = np.ones((2, 4))
    again = assign(ops, ("attribution",), reward, probed=probed, **by_probe).bonus
    np.testing.assert_array_equal(again, bonus)
    assert not assign(ops, ("attribution",), probed=probed).bonus.any()


def test_a_contribution_is_the_potential_of_the_last_use_less_that_of_the_write():
    potential = np.array([[0.5, 0.5, 2.0, 3.0]])
    ops = table([write(0, 2), write(1, 3), write(2, 3), write(3)])
    got = contributions(ops, np.diff(potential, axis=1, prepend=0), np.array([4]))
    np.testing.assert_allclose(got, [[1.5, 2.5, 1.0, 0]])


def test_a_potential_that_was_reached_before_the_write_is_not_its_work():
    ops = table([write(0, 1), write(1, 3), write(2)])
    probed = evidence(ops, turn_potential=[[0, 2.0, 2.0, 3.0]])
    by_probe = {"attribution_probe": "answer_log_prob"}
    bonus = assign(ops, ("attribution",), probed=probed, **by_probe).bonus[0, :3]
    earned = np.array([2.0, 1.0, 0.0])
    expected = 2.0 * (earned - 1) / (earned.std() + 0.5)
    np.testing.assert_allclose(bonus, expected, rtol=1e-5, atol=1e-6)


def test_small_changes_of_the_log_prob_make_no_full_size_bonus():
    ops = table([write(0, 3), write(1)])
    probed = evidence(ops, turn_potential=[[0, 0, 0, 0.01]])
    by_probe = {"attribution_probe": "answer_log_prob"}
    bonus = assign(ops, ("attribution",), probed=probed, **by_probe).bonus
    assert np.abs(bonus).max() < 0.05


def test_as_a_weight_writes_count_by_their_contribution_and_keep_a_floor():
    recall = (Kind.RECALL, 2, 3, Outcome.DONE)
    duplicate = write(1, -1, Outcome.DUPLICATE)
    ops = table([write(0, 3), write(1), recall, duplicate], [write(0, 2), write(1, 3)])
    reward = np.array([[0, 0, 0, 1.0], [0, 0, 0.5, 0]])
    credit = assign(ops, ("attribution",), reward, **AS_WEIGHT)
    np.testing.assert_allclose(
        credit.weight, [[1, 0.25, 1, 1], [0.5, 0.5, 1, 1]], rtol=1e-6
    )
    assert not credit.bonus.any()


def test_as_a_weight_groups_and_failed_trajectories_are_kept_apart():
    ops = table([write(0, 3)], [write(0, 3)], [write(0, 3)], [write(0)])
    reward = np.zeros((4, 4))
    reward[:, 3] = 0.1, np.nan, 8.0, 8.0
    valid = np.array([[True, False], [True, True]])
    credit = assign(ops, ("attribution",), reward, valid=valid, **AS_WEIGHT)
    np.testing.assert_allclose(credit.weight[:, 0], [1, 0.25, 1, 0.25])
