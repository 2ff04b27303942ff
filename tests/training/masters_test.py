"""Small updates arrive: the masters are float32, whatever the passes compute with."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mempo_jax.builders.policies import make_nano
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.distributed.placement import make_mesh
from mempo_jax.models import lora
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.settings import ConfigError
from mempo_jax.training import checkpoints
from mempo_jax.training.loop import Trainer
from mempo_jax.training.state import state_from_params
from mempo_jax.training.step import TrainPrograms
from tests.experiments import tiny
from tests.training import step_case as case

UPDATES, RATE = 50, 1e-6


def programs_for(param_dtype, model):
    train = dataclasses.replace(case.TRAIN, learning_rate=RATE, weight_decay=0.0)
    optimiser = case.states.policy_optimiser(train)
    mesh = make_mesh(1, 1, 1)
    programs = TrainPrograms(
        *(model, mesh, optimiser, case.OBJECTIVE, case.CREDIT),
        outcome_gate=True,
        param_dtype=param_dtype,
    )
    return programs, optimiser, mesh


def after_updates(param_dtype, model=None):
    """Masters before and state after ``UPDATES`` updates on one batch."""
    model = case.DECODER if model is None else model
    programs, optimiser, mesh = programs_for(param_dtype, model)
    params = model.init(jax.random.key(0))
    trained, frozen = lora.split(params)
    if not frozen:
        trained = jax.tree.map(lambda p: p.astype(param_dtype), trained)
    state = state_from_params(trained, optimiser, mesh)
    before = jax.device_get(state.params)
    rows, facts = case.make_rows(), case.make_trajectories()
    for _ in range(UPDATES):
        inputs = programs.loss_inputs(facts, case.count_tokens([rows], facts.valid))
        passed = lora.join(programs.trained(state), frozen)
        sums, _ = programs.accumulate(
            passed, programs.zeros(), rows, None, None, inputs, 0.0, case.TEMPERATURE
        )
        state, metrics = programs.apply(state, sums)
        assert not metrics["skipped"]
        assert metrics["grad_norm"] > 0
    return before, state, programs


def moved(before, after):
    """The share of numbers that changed, of those that had a gradient at all."""
    pairs = list(zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True))
    changed = sum(int((np.asarray(a) != np.asarray(b)).sum()) for a, b in pairs)
    return changed / sum(np.asarray(a).size for a, _ in pairs)


def test_bfloat16_passes_move_every_weight_that_has_a_gradient():
    model = LanguageModel(case.CONFIG, jnp.bfloat16)
    before, state, programs = after_updates("bfloat16", model)
    moments = optax.tree.get(state.opt_state, "mu")
    had = jax.tree.map(lambda m: np.asarray(m) != 0, moments)
    total = sum(int(h.sum()) for h in jax.tree.leaves(had))
    changed = sum(
        int(((np.asarray(a) != np.asarray(b)) & h).sum())
        for a, b, h in zip(*map(jax.tree.leaves, (before, state.params, had)))
    )
    assert changed / total >= 0.99
    # As it was: each update is added to the bfloat16 weight, and rounded away.
    rounded = before
    for _ in range(UPDATES):
        rounded = jax.tree.map(
            lambda p: (p.astype(jnp.bfloat16).astype("f") - RATE).astype(jnp.bfloat16),
            rounded,
        )
    assert moved(before, jax.tree.map(lambda p: p.astype("f"), rounded)) < 0.1
    passed = programs.trained(state)
    assert {leaf.dtype for leaf in jax.tree.leaves(passed)} == {jnp.dtype(jnp.bfloat16)}
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {
        np.dtype(np.float32)
    }


def test_float32_policies_and_adapters_pass_their_masters_themselves():
    _, state, programs = after_updates("float32")
    assert programs.trained(state) is state.params
    base = case.DECODER
    adapters = lora.LoraConfig(2, 4.0, ("query", "up"))
    programs, optimiser, mesh = programs_for("bfloat16", base.with_lora(adapters))
    shapes = jax.eval_shape(base.with_lora(adapters).init, jax.random.key(0))
    trained, _ = lora.split(jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes))
    state = state_from_params(trained, optimiser, mesh)
    assert not programs.narrows
    assert programs.trained(state) is state.params


@pytest.fixture(scope="module")
def trainer():
    config = tiny.get_config()
    config.policy.param_dtype = config.policy.compute_dtype = "bfloat16"
    config.env.ledger.max_turns = 2
    config.sampling.drop_degenerate = False
    config.train.learning_rate, config.train.warmup_steps = RATE, 0
    config.mesh.data = 1
    settings = from_config(config.to_dict())
    suite, mesh = make_suite(settings), make_mesh(1, 1, 1)
    policy = make_nano(suite, settings)
    return Trainer(policy, suite, settings, mesh), policy


def test_a_run_in_bfloat16_samples_and_scores_with_one_copy_an_update(trainer):
    trainer, policy = trainer
    first = trainer.params
    assert trainer.params is not None
    leaves = jax.tree.leaves
    assert all(a is b for a, b in zip(leaves(first), leaves(trainer.params)))
    given = leaves(policy.params)
    assert all(
        (np.asarray(a) == np.asarray(b)).all() for a, b in zip(leaves(first), given)
    )
    before = jax.device_get(trainer.state.params)
    for step in range(2):
        figures, _ = trainer.step(step)
        assert figures["log_prob_gap"] < trainer.settings.max_log_prob_gap
    assert moved(before, trainer.state.params) > 0.5
    assert {x.dtype for x in leaves(trainer.params)} == {jnp.dtype(jnp.bfloat16)}
    assert not any(a is b for a, b in zip(leaves(first), leaves(trainer.params)))


def test_checkpoints_from_before_the_masters_are_widened(tmp_path):
    old = {"w": jnp.linspace(0.5, 1, 8, dtype=jnp.bfloat16), "n": jnp.zeros(2)}
    kept = checkpoints.Checkpoints(tmp_path, keep=1)
    kept.save(old, {"step": 3})
    kept.wait()
    mesh = make_mesh(1, 1, 1)
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def target(dtype):
        leaf = jax.ShapeDtypeStruct((8,), dtype, sharding=where)
        return {"w": leaf, "n": jax.ShapeDtypeStruct((2,), "float32", sharding=where)}

    restored = kept.restore(target("float32")).state
    assert restored["w"].dtype == np.float32
    np.testing.assert_array_equal(restored["w"], old["w"].astype(np.float32))
    with pytest.raises(ConfigError, match=r"w is .* in the checkpoint"):
        kept.restore(target("float16"))
    kept.close()
