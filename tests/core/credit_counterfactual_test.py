import numpy as np

from mempo_jax.types import Kind, Outcome
from tests.core.credit_case import assign, evidence, table, write

MODE = ("counterfactual",)


def op(kind, outcome=Outcome.DONE):
    return (kind, 2, -1, outcome)


def test_each_kind_of_op_is_set_against_its_own_kind():
    ops = table(
        [write(0), write(1), op(Kind.RECALL), op(Kind.MERGE, Outcome.MERGED)],
        [write(0), write(1), op(Kind.RECALL), op(Kind.MERGE, Outcome.MERGED)],
    )
    drop = np.array([[2.0, 0, 2.0, 2.0], [0, 0, 0, 0]])
    bonus = assign(ops, MODE, probed=evidence(ops, leave_out=drop)).bonus
    counted = drop[:, :2]
    expected = (counted - counted.mean()) / (counted.std() + 0.5)
    np.testing.assert_allclose(bonus[:, :2], 4.0 * expected, rtol=1e-5)
    pair = 4.0 / 1.5
    np.testing.assert_allclose(bonus[:, 2:], [[pair] * 2, [-pair] * 2], rtol=1e-5)


def test_the_memory_that_held_the_answer_earns_more_than_one_recalled_beside_it():
    ops = table([write(0, 3), write(1, 3), write(2)])
    reward = [[0, 0, 0, 1.0]]
    probed = evidence(ops, leave_out=[[4.0, 0.1, 0, 0]])
    needed, beside, unused = assign(ops, MODE, reward, probed=probed).bonus[0, :3]
    assert needed > 0 > beside
    assert abs(beside - unused) < 0.05 * (needed - unused)
    together = assign(ops, ("attribution",), reward, probed=probed).bonus[0]
    assert together[0] == together[1]


def test_duplicates_of_one_memory_earn_alike_and_more_than_junk():
    ops = table([write(0), write(1), write(2)])
    bonus = assign(ops, MODE, probed=evidence(ops, leave_out=[[2.0, 2.0, 0, 0]])).bonus[
        0
    ]
    assert bonus[0] == bonus[1] > 0 > bonus[2]


def test_noise_of_the_reader_makes_no_full_size_bonus():
    ops = table([write(0), write(1)], [write(0), write(1)])
    drop = 0.01 * np.array([[1.0, -1, 0, 0], [0, 1, 0, 0]])
    bonus = assign(ops, MODE, probed=evidence(ops, leave_out=drop)).bonus
    assert 0 < np.abs(bonus).max() < 0.1


def test_other_kinds_earn_nothing_and_failed_ops_never_gain():
    ops = table(
        [write(0), write(1, -1, Outcome.ERROR), op(Kind.MALFORMED), op(Kind.ANSWER)]
    )
    probed = evidence(ops, leave_out=[[-3.0, 3.0, 3.0, 3.0]])
    bonus = assign(ops, MODE, probed=probed).bonus[0]
    assert bonus[0] < 0
    assert not bonus[1:].any()


def test_nothing_probed_is_nothing_earned():
    ops = table([write(0), write(1), op(Kind.RECALL)])
    assert not assign(ops, MODE).bonus.any()


def test_a_write_that_repeats_gains_nothing_beside_one_that_did_harm():
    ops = table([write(0), write(1, -1, Outcome.DUPLICATE), write(2)])
    probed = evidence(ops, leave_out=[[-3.0, 0, 0, 0]])
    harmful, repeated, idle = assign(ops, MODE, probed=probed).bonus[0, :3]
    assert harmful < 0 == repeated < idle
