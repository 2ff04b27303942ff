import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.core import group_normalise
from mempo_jax.types import Kind
from tests.training.step_case import (
    TEMPERATURE,
    B,
    N,
    assert_close,
    assert_same_bits,
    build,
    log_softmax,
    make_rows,
    make_trajectories,
    new_state,
    update,
)


@pytest.mark.parametrize("aggregation", ["token_mean", "trajectory_mean", "constant"])
def test_micro_batches_change_nothing(aggregation):
    programs = build(aggregation=aggregation)[2]
    rows, facts = make_rows(), make_trajectories()
    whole, _, metrics = update(new_state(), programs, [rows], facts)
    # Each trajectory has a row in both parts, and the cut is uneven in tokens.
    first = np.arange(B) < N
    halves = [rows._replace(valid=rows.valid & part) for part in (first, ~first)]
    split, _, split_metrics = update(new_state(), programs, halves, facts)
    assert_close(split, whole, 1e-5 * float(metrics["count"]))
    assert_close(split_metrics, metrics, 1e-5)


def test_loss_is_the_one_written_by_hand():
    programs, state = build()[2], new_state()
    rows, facts = make_rows(), make_trajectories()
    facts = facts._replace(turn_reward=np.zeros_like(facts.turn_reward))  # no bonus
    scores = np.asarray(programs.score(state.params, rows, TEMPERATURE)[0])
    _, _, metrics = update(state, programs, [rows], facts, old_shift=0.1)

    table = log_softmax(new_state().params, rows)[:, :-1]
    expected = jnp.take_along_axis(table, rows.tokens[:, 1:, None], -1)[..., 0]
    mask = rows.action_mask & rows.valid[:, None]
    mask[:, 0] = False
    seen = mask[:, 1:]
    np.testing.assert_allclose(scores[:, 1:][seen], expected[seen], atol=1e-5)
    assert not scores[~mask].any()

    group = np.asarray(group_normalise(facts.reward, facts.valid)).reshape(-1)
    gain = group[rows.trajectory_index][:, None]
    ratio = np.exp(-0.1)
    surrogate = np.minimum(ratio * gain, np.clip(ratio, 0.8, 1.2) * gain)
    kl = np.exp(-0.2) - 1 + 0.2
    loss = ((-surrogate + 0.05 * kl) * mask).sum() / mask.sum()
    np.testing.assert_allclose(metrics["loss"], loss, atol=1e-5)
    np.testing.assert_allclose(metrics["kl"], kl, rtol=1e-4)
    np.testing.assert_allclose(metrics["ratio"], ratio, rtol=1e-5)
    assert metrics["tokens"] == mask.sum()


def test_entropy_of_score():
    programs, state, rows = build()[2], new_state(), make_rows()
    _, entropy = programs.score(state.params, rows, TEMPERATURE)
    table = log_softmax(state.params, rows)
    expected = -(jnp.exp(table) * table).sum(-1)[:, :-1]
    seen = (rows.action_mask & rows.valid[:, None])[:, 1:]
    np.testing.assert_allclose(entropy[:, 1:][seen], expected[seen], atol=1e-5)
    assert not entropy[:, 1:][~seen].any()


def test_learning_rate_zero_leaves_parameters_bit_identical():
    programs, state = build(learning_rate=0.0)[2], new_state(learning_rate=0.0)
    start = jax.device_get(state.params)
    rows, facts = make_rows(), make_trajectories()
    first = np.array(programs.score(state.params, rows, TEMPERATURE)[0])
    for _ in range(20):
        _, state, metrics = update(state, programs, [rows], facts)
    assert_same_bits(state.params, start)
    assert state.step == 20
    assert metrics["grad_norm"] > 0
    again = programs.score(state.params, rows, TEMPERATURE)[0]
    np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize("where", ["reward", "turn_reward", "old"])
@pytest.mark.parametrize("garbage", [np.nan, np.inf])
def test_not_finite_never_reaches_the_parameters(where, garbage):
    programs, state = build()[2], new_state()
    before = jax.device_get(state)
    facts, shift = make_trajectories(), 0.1
    if where == "old":
        shift = np.nan
    else:
        values = getattr(facts, where).copy()
        values[0, -1] = garbage
        facts = facts._replace(**{where: values})
        kind, use = facts.ops.kind.copy(), facts.ops.last_use.copy()
        kind[0], use[0] = Kind.WRITE, 2
        facts = facts._replace(ops=facts.ops._replace(kind=kind, last_use=use))
    _, state, metrics = update(state, programs, [make_rows()], facts, old_shift=shift)
    assert metrics["skipped"]
    assert_same_bits(jax.device_get(state), before)
    # The next, sound batch trains as if nothing had happened.
    _, state, metrics = update(state, programs, [make_rows()], make_trajectories())
    assert not metrics["skipped"]
    assert state.step == 1


def test_garbage_of_an_invalid_trajectory_changes_nothing():
    programs = build()[2]
    rows, facts = make_rows(), make_trajectories()
    dirty = facts._replace(
        reward=np.where(facts.valid, facts.reward, np.nan),
        turn_reward=np.where(facts.valid.reshape(-1, 1), facts.turn_reward, np.nan),
    )
    rows = rows._replace(valid=np.ones_like(rows.valid))
    clean, _, _ = update(new_state(), programs, [rows], facts)
    grads, _, metrics = update(new_state(), programs, [rows], dirty)
    assert not metrics["skipped"]
    assert_same_bits(grads, clean)


def test_nothing_counted_changes_nothing():
    programs, state = build()[2], new_state()
    before = jax.device_get(state)
    rows = make_rows()._replace(valid=np.zeros(B, bool))
    _, state, metrics = update(state, programs, [rows], make_trajectories())
    assert metrics["loss"] == 0
    assert metrics["empty"]
    assert not metrics["skipped"]
    assert_same_bits(jax.device_get(state), before)


def test_padding_and_pad_ids_change_no_score():
    programs, state, rows = build()[2], new_state(), make_rows()
    scores = np.asarray(programs.score(state.params, rows, TEMPERATURE)[0])
    other = rows._replace(tokens=np.where(rows.token_mask, rows.tokens, 7))
    again = np.asarray(programs.score(state.params, other, TEMPERATURE)[0])
    np.testing.assert_allclose(again, scores, atol=1e-6)
    assert not scores[~rows.token_mask].any()
    # Pad id = end-of-turn id: the mask says what counts, never the id.
    end = int(rows.tokens[0, 1])
    action = np.zeros_like(rows.action_mask)
    action[0, 1] = True
    rows = rows._replace(
        tokens=np.where(rows.token_mask, rows.tokens, end), action_mask=action
    )
    _, _, metrics = update(state, programs, [rows], make_trajectories())
    assert metrics["tokens"] == 1
    assert metrics["grad_norm"] > 0


def test_supervised_learns_action_tokens_alone():
    programs, state, rows = build()[2], new_state(), make_rows()
    scores = np.asarray(programs.score(state.params, rows, 1.0)[0])
    mask = rows.action_mask & rows.valid[:, None]
    mask[:, 0] = False
    losses = []
    for _ in range(8):
        sums = programs.supervised_zeros()
        for part in (np.arange(B) < N, np.arange(B) >= N):
            half = rows._replace(valid=rows.valid & part)
            sums = programs.supervised_accumulate(state.params, sums, half)
        state, metrics = programs.apply(state, sums)
        losses.append(float(metrics["loss"]))
    np.testing.assert_allclose(losses[0], -scores[mask].mean(), rtol=1e-5)
    assert losses[-1] < losses[0] - 0.3
    assert metrics["tokens"] == mask.sum()
