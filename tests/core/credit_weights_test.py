import numpy as np

from mempo_jax.types import Kind, Outcome
from tests.core.credit_case import assign, table, write


def test_uniform():
    ops = table([write(0), (Kind.ANSWER, 3, -1, Outcome.DONE)])
    credit = assign(ops, ("uniform",))
    assert (credit.weight == 1).all()
    assert not credit.bonus.any()


def test_ops_only_keeps_memory_decisions_skipped_and_malformed_ones_included():
    kinds = (Kind.WRITE, Kind.SKIP, Kind.ANSWER, Kind.MALFORMED, Kind.REWRITE)
    ops = table([(kind, 0, -1, Outcome.DONE) for kind in kinds], width=5)
    credit = assign(ops, ("ops_only",))
    np.testing.assert_allclose(credit.weight, [[1, 1, 0.1, 1, 1]])


def test_discounted():
    ops = table([write(0), write(1), write(3)])
    credit = assign(ops, ("discounted",))
    np.testing.assert_allclose(credit.weight, [[1 / 8, 1 / 4, 1, 1]])


def test_weights_multiply():
    ops = table([write(1), (Kind.ACT, 1, -1, Outcome.DONE)])
    credit = assign(ops, ("ops_only", "discounted"))
    np.testing.assert_allclose(credit.weight[0, :2], [1 / 4, 0.1 / 4])
