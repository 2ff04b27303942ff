import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.training.loss import count_tokens, scan_row_chunks
from mempo_jax.training.step import CPU_PASS, Accumulator, TrainPrograms
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
        return Accumulator(grads, sums.loss_sum, sums.count + 1, {}), 2 * part[0]

    batch = np.arange(rows * length, dtype="f").reshape(rows, -1), np.ones(rows, "f")
    nothing = jnp.zeros(())
    sums, doubled = scan_row_chunks(
        one, Accumulator(nothing, nothing, nothing, {}), batch, tokens
    )
    np.testing.assert_array_equal(doubled, 2 * batch[0])  # in the order of the rows
    assert set(seen) == {(rows // parts, length)}
    assert sums.count == parts
    assert sums.grads == batch[0].sum() + rows


def test_passes_change_no_gradient_and_no_score():
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
        policy, _ = programs.accumulate(
            *(params, programs.zeros(), rows, old, old - 0.2, inputs),
            *(0.05, case.TEMPERATURE),
        )
        zeros = programs.supervised_zeros()
        return policy, programs.supervised_accumulate(params, zeros, rows)

    ours, theirs = sums(cut), sums(whole)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, ours, theirs)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(ours[0].grads))
    scores = cut.score(params, rows, case.TEMPERATURE)
    jax.tree.map(close, scores, whole.score(params, rows, case.TEMPERATURE))
    assert "while" in cut.jitted()["score"].lower(params, rows, 1.0).as_text()


@pytest.mark.parametrize("pass_tokens", [0, case.B * case.T // 4])
@pytest.mark.parametrize("devices", [1, 2])
def test_the_first_update_computes_the_old_log_probs_itself(pass_tokens, devices):
    """The same sums as with those that a pass of scoring gives, and these scores."""
    optimiser, mesh, _ = case.build((devices, 1, 1))
    objective = dataclasses.replace(case.OBJECTIVE, importance_cap=1.5)
    given = case.MODEL, mesh, optimiser, objective, case.CREDIT
    programs = TrainPrograms(*given, outcome_gate=True, pass_tokens=pass_tokens)
    rows, facts = case.make_rows(), case.make_trajectories()
    params = case.new_state().params
    inputs = programs.loss_inputs(facts, count_tokens([rows], facts.valid))
    scores = programs.score(params, rows, case.TEMPERATURE)

    def sums(old):
        return programs.accumulate(
            *(params, programs.zeros(), rows, old, scores.log_probs - 0.2, inputs),
            *(0.05, case.TEMPERATURE),
        )

    (ours, own), (theirs, nothing) = sums(None), sums(scores.log_probs)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)
    jax.tree.map(close, ours, theirs)
    jax.tree.map(close, own, scores)
    assert nothing is None
    assert ours.aux["old_kl"] == 0
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(ours.grads))


def test_without_a_reference_no_token_pays():
    _, _, programs = case.build()
    rows, facts = case.make_rows(), case.make_trajectories()
    params = case.new_state().params
    inputs = programs.loss_inputs(facts, count_tokens([rows], facts.valid))
    old, _ = programs.score(params, rows, case.TEMPERATURE)

    def sums(ref, coefficient):
        return programs.accumulate(
            *(params, programs.zeros(), rows, old, ref, inputs),
            *(coefficient, case.TEMPERATURE),
        )[0]

    without, free, paid = sums(None, 0.5), sums(old - 0.2, 0.0), sums(old - 0.2, 0.5)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7)
    jax.tree.map(close, without.grads, free.grads)
    assert without.aux["kl"] == 0 < free.aux["kl"]
    assert paid.loss_sum > free.loss_sum


def test_only_one_cpu_goes_in_passes():
    assert case.build()[2]._pass_tokens == CPU_PASS
    assert case.build((2, 2, 2))[2]._pass_tokens == 0
