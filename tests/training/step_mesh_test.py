"""The programs of ``step`` on meshes of eight virtual devices."""

import jax
import numpy as np
import pytest

from mempo_jax.training import state as states
from mempo_jax.training.loss import count_tokens
from mempo_jax.training.step_metrics import CompilationCounter
from tests.training.step_case import (
    CONFIG,
    DECODER,
    TEMPERATURE,
    B,
    T,
    assert_close,
    build,
    make_rows,
    make_trajectories,
    new_state,
    take,
    update,
)


def test_many_devices_give_the_update_of_one():
    rows, facts = make_rows(), make_trajectories()
    token_count = count_tokens([rows], facts.valid)
    inputs = jax.device_get(build()[2].loss_inputs(facts, token_count))
    params = jax.device_get(jax.jit(DECODER.init)(jax.random.key(1)))
    noise = np.random.default_rng(0).normal(size=(2, B, T))
    old, ref = (-3 + 0.3 * noise).astype(np.float32)
    results = []
    # Logits in one piece, and in a loop over two columns of tokens.
    for axes, chunk in (((1, 1, 1), 1024), ((8, 1, 1), 4), ((4, 2, 1), 4)):
        optimiser, mesh, programs = build(axes, model=DECODER, logit_chunk=chunk)
        state = states.state_from_params(params, optimiser, mesh)
        sums, _ = programs.accumulate(
            *(state.params, programs.zeros(), rows, old, ref, inputs),
            *(0.05, TEMPERATURE),
        )
        state, metrics = programs.apply(state, sums)
        results.append(jax.device_get((state.params, metrics)))
    after, metrics = results[0]
    assert metrics["grad_norm"] > 1e-3
    moved = np.abs(after["embed"]["embedding"] - params["embed"]["embedding"])
    assert moved.max() > 1e-3
    for many in results[1:]:
        assert_close(many, results[0], 1e-5)


def test_parameters_split_three_ways_give_the_update_of_one_device():
    results = []
    for axes in ((1, 1, 1), (2, 2, 2)):
        facts, rows = make_trajectories(), make_rows()
        _, state, metrics = update(new_state(axes), build(axes)[2], [rows], facts)
        results.append(jax.device_get((state.params, metrics)))
    kernel = state.params["head"]["kernel"]
    shape = CONFIG.width // 2, CONFIG.vocab_size // 2
    assert {shard.data.shape for shard in kernel.addressable_shards} == {shape}
    assert_close(results[1], results[0], 1e-5)


def test_nothing_recompiles_and_nothing_is_moved_in_silence():
    axes = (2, 2, 2)
    programs, state = build(axes)[2], new_state(axes)

    def step(state, seed):
        rows, facts = make_rows(seed), make_trajectories(seed)
        with jax.transfer_guard("disallow"):
            tokens = count_tokens([rows], facts.valid)
            inputs = programs.loss_inputs(facts, tokens)
            scores, _ = programs.score(state.params, rows, TEMPERATURE + seed / 10)
            sums, _ = programs.accumulate(
                *(state.params, programs.zeros(), rows, scores, scores, inputs),
                *(0.01 * seed, TEMPERATURE),
            )
            state, _ = programs.apply(state, sums)
            sums = programs.supervised_accumulate(
                state.params, programs.supervised_zeros(), rows
            )
            return programs.apply(state, sums)[0]

    for seed in (0, 1):
        state = step(state, seed)
    with CompilationCounter() as counter:
        for seed in (2, 3):
            state = step(state, seed)
    assert counter.count == 0


def test_rows_that_the_mesh_cannot_split_are_refused():
    programs, state = build((2, 2, 2))[2], new_state((2, 2, 2))
    with pytest.raises(ValueError, match="multiple of data x fsdp = 4, got 6"):
        programs.score(state.params, take(make_rows(), slice(0, 6)), 1.0)
