import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.training.loss import count_tokens
from mempo_jax.training.step import (
    CPU_PASS,
    Accumulator,
    TrainPrograms,
    scan_row_chunks,
)
from tests.training import step_case as case


@pytest.mark.parametrize(
    ("rows", "tokens", "parts"),
    [
        *((8, 0, 1), (8, 41, 1), (8, 40, 1), (8, 20, 2), (8, 11, 2), (8, 10, 4)),
        *((6, 7, 3), (6, 10, 3), (7, 10, 1), (8, 1, 8), (1, 1, 1)),
    ],
)
def test_rows_are_cut_into_equal_parts_of_so_many_tokens_at_least(rows, tokens, parts):
    length, seen = 5, []

    def one(sums, part):
        seen.append(part[0].shape)
        grads = sums.grads + jnp.sum(part[0]) + jnp.sum(part[1])
        return Accumulator(grads, sums.loss_sum, sums.count + 1, {})

    batch = np.ones((rows, length), "f"), np.ones(rows, "f")
    nothing = jnp.zeros(())
    sums = scan_row_chunks(
        one, Accumulator(nothing, nothing, nothing, {}), batch, tokens
    )
    assert set(seen) == {(rows // parts, length)}
    assert sums.count == parts
    assert sums.grads == rows * length + rows


def test_passes_change_no_gradient():
    """Of both losses, with trajectories whose rows lie in different passes."""
    optimiser, mesh, whole = case.build(aggregation="trajectory_mean")
    objective = dataclasses.replace(case.OBJECTIVE, aggregation="trajectory_mean")
    given = case.MODEL, mesh, optimiser, objective, case.CREDIT
    cut = TrainPrograms(*given, outcome_gate=True, pass_tokens=case.B * case.T // 4)
    rows, facts = case.make_rows(), case.make_trajectories()
    params = case.new_state().params
    inputs = whole.loss_inputs(facts, count_tokens([rows], facts.valid))
    old, _ = whole.score(params, rows, case.TEMPERATURE)

    def sums(programs):
        policy = programs.accumulate(
            *(params, programs.zeros(), rows, old, old - 0.2, inputs),
            *(0.05, case.TEMPERATURE),
        )
        zeros = programs.supervised_zeros()
        return policy, programs.supervised_accumulate(params, zeros, rows)

    ours, theirs = sums(cut), sums(whole)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, ours, theirs)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(ours[0].grads))


def test_only_one_cpu_goes_in_passes():
    assert case.build()[2]._pass_tokens == CPU_PASS
    assert case.build((2, 2, 2))[2]._pass_tokens == 0
