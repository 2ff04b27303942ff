import numpy as np

from mempo_jax.types import Kind, Outcome
from tests.core.credit_case import assign, evidence, table, write

MODE = ("answer_probability",)


def test_writes_stand_by_their_gain_among_all_writes_of_the_group():
    ops = table([write(0), write(1)], [write(0), write(2)])
    gain = np.array([[0.9, 0, 0, 0], [0.1, 0, 0, 0]])
    bonus = assign(ops, MODE, probed=evidence(ops, answer_gain=gain)).bonus
    counted = gain[:, :2]
    expected = (counted - counted.mean()) / (counted.std() + 0.05)
    np.testing.assert_allclose(bonus[:, :2], 3.0 * expected, rtol=1e-5)
    assert not bonus[:, 2:].any()


def test_writes_alone_earn_and_a_refused_one_pays_at_most():
    ops = table(
        [write(0), (Kind.RECALL, 1, -1, Outcome.DONE), write(2, -1, Outcome.ERROR)]
    )
    bonus = assign(
        ops, MODE, probed=evidence(ops, answer_gain=[[-0.5, 0.9, 0.9, 0]])
    ).bonus
    assert bonus[0, 0] < 0
    assert bonus[0, 1] == bonus[0, 2] == bonus[0, 3] == 0


def test_equal_or_tiny_gains_teach_next_to_nothing():
    ops = table([write(0), write(1)])
    for gain, most in (([0.7, 0.7, 0, 0], 0), ([1e-3, 0, 0, 0], 0.05)):
        probed = evidence(ops, answer_gain=[gain])
        assert np.abs(assign(ops, MODE, probed=probed).bonus).max() <= most


def test_a_failed_trajectory_neither_earns_nor_votes():
    ops = table([write(0), write(1)], [write(0), write(1)])
    gain = np.array([[0.9, 0, 0, 0], [np.nan, np.inf, 0, 0]])
    valid = np.array([[True, False]])
    probed = evidence(ops, answer_gain=gain)
    bonus = assign(ops, MODE, valid=valid, probed=probed).bonus
    np.testing.assert_allclose(bonus[0, :2], [2.7, -2.7], rtol=1e-5)
    assert not bonus[1].any()


def test_a_rewritten_block_stands_among_the_writes():
    rewrite = (Kind.REWRITE, 1, -1, Outcome.DONE)
    as_written, as_rewritten = (
        assign(ops, MODE, probed=evidence(ops, answer_gain=[[0.9, 0.1, 0, 0]])).bonus
        for ops in (table([write(0), write(1)]), table([write(0), rewrite]))
    )
    np.testing.assert_array_equal(as_written, as_rewritten)
    assert as_rewritten[0, 1] < 0 < as_rewritten[0, 0]
