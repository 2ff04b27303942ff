"""Training adapters alone: what moves, what it costs, and that it can be continued."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mempo_jax.builders.engines import make_run_mesh
from mempo_jax.builders.policies import adapt, make_nano
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.distributed import placement
from mempo_jax.models import hf, lora
from mempo_jax.models.lora import LoraConfig
from mempo_jax.runs.run_dir import RunDir
from mempo_jax.settings import ConfigError
from mempo_jax.training import checks
from mempo_jax.training import cold_start as cold_starts
from mempo_jax.training import state as states
from mempo_jax.training.checkpoints import RunCheckpoints
from mempo_jax.training.loop import Trainer
from tests.experiments.tiny import get_config
from tests.training.step_case import (
    DECODER,
    assert_close,
    assert_same_bits,
    build,
    make_rows,
)

TARGETS = ("query", "down")
LORA = LoraConfig(rank=2, alpha=4.0, targets=TARGETS)
MODEL = DECODER.with_lora(LORA)


@functools.cache
def whole_tree():
    """A base, and adapters that act; numpy."""
    base = jax.device_get(jax.jit(DECODER.init)(jax.random.key(1)))
    shapes = jax.eval_shape(lambda: lora.new_adapters(base, LORA, jax.random.key(2)))
    draw = np.random.default_rng(0).normal
    adapters = jax.tree.map(lambda x: draw(0, 0.3, x.shape).astype(np.float32), shapes)
    return lora.join(adapters, base)


def one_update(axes):
    """The gradient, the state and the figures of one step on a mesh."""
    optimiser, mesh, programs = build(axes, model=MODEL)
    trained, frozen = lora.split(placement.place_params(whole_tree(), mesh))
    state = states.state_from_params(trained, optimiser, mesh)
    sums = programs.supervised_accumulate(
        lora.join(state.params, frozen), programs.supervised_zeros(), make_rows()
    )
    grads = jax.device_get(sums.grads)
    state, figures = programs.apply(state, sums)
    assert_same_bits(frozen, lora.split(whole_tree())[1])
    return grads, state, figures


def test_a_step_moves_adapters_alone_and_many_devices_agree():
    results = []
    before, _ = lora.split(whole_tree())
    for axes in ((1, 1, 1), (2, 2, 2)):
        grads, state, figures = one_update(axes)
        assert jax.tree.structure(grads) == jax.tree.structure(before)
        assert min(np.abs(leaf).max() for leaf in jax.tree.leaves(grads)) > 0
        moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), state.params, before)
        assert min(jax.tree.leaves(moved)) > 1e-3
        results.append(jax.device_get((state.params, figures)))
    assert_close(results[1], results[0], 1e-5)
    pair = state.params["layers"]["mlp"]["down"]["adapter"]
    shards = {name: pair[name].addressable_shards[0].data.shape for name in "ab"}
    assert shards == {"a": (1, 8, 2), "b": (1, 2, 8)}, "split as the kernel is"


def test_the_optimiser_holds_moments_of_adapters_alone():
    adapters, base = lora.split(whole_tree())
    optimiser = build(model=MODEL)[0]
    state = jax.eval_shape(lambda p: states.fresh_state(p, optimiser), adapters)

    def count(tree):
        return sum(np.size(leaf) for leaf in jax.tree.leaves(tree))

    assert count(optax.tree.get(state.opt_state, "mu")) == count(adapters)
    assert count(state) < 3 * count(adapters) + 10 < count(base)


@pytest.fixture(scope="module")
def setting():
    config = get_config()
    config.mesh.data = 1
    config.policy.lora.rank = 2
    config.policy.lora.targets = TARGETS
    config.train.learning_rate = 0.01
    config.sampling.drop_degenerate = False
    config.train.minibatches = 1
    config.train.cold_start_steps = 1
    settings = from_config(config.to_dict())
    suite, mesh = make_suite(settings), make_run_mesh(settings)
    return settings, suite, mesh, make_nano(suite, settings)


@pytest.fixture(scope="module")
def trainer(setting):
    settings, suite, mesh, policy = setting
    return Trainer(policy, suite, settings, mesh)


def test_a_run_continues_to_the_same_bits(setting, trainer, tmp_path, monkeypatch):
    settings, suite, mesh, policy = setting
    scored = []
    monkeypatch.setattr(checks, "reference_is_policy", scored.extend)
    for step in range(2):
        figures, _ = trainer.step(step)
        if step == 0:
            assert figures["kl_first_update"] < 1e-10, "adapters that are off"
            assert scored
            for _, old, ref in scored:
                # Two programs: one of them computes the gradient as well.
                np.testing.assert_allclose(old, ref, rtol=0, atol=1e-6)
            RunCheckpoints(trainer, {}, RunDir(str(tmp_path))).save_now(1)
        assert figures["log_prob_gap"] < 1e-4
    assert figures["kl"] > 1e-5, "adapters that are on"
    assert_same_bits(trainer.frozen, policy.params)
    for a, b in zip(*(map(jax.tree.leaves, lora_bases(trainer)))):
        assert a.unsafe_buffer_pointer() == b.unsafe_buffer_pointer(), "one copy"

    again = Trainer(policy, suite, settings, mesh)
    again.programs, again._reference_programs = trainer.programs, trainer.programs
    again.engine = again.collector.engine = trainer.engine
    assert RunCheckpoints(again, {}, RunDir(str(tmp_path))).restore() == 1
    assert len(jax.tree.leaves(again.state.params)) == 2 * len(TARGETS)
    again.step(1)
    assert_same_bits(again.state, trainer.state)


def lora_bases(trainer):
    return trainer.frozen, lora.split(trainer.reference)[1]


def test_checkpoints_of_another_base_are_refused(setting, tmp_path):
    place = RunDir(str(tmp_path))
    policy = SimpleNamespace(lora=SimpleNamespace(rank=1), ref_path="elsewhere")
    ours, theirs = {"a": np.zeros(2)}, {"a": np.ones(2)}
    trainer = SimpleNamespace(
        settings=SimpleNamespace(train=setting[0].train, policy=policy),
        state={"w": jnp.zeros(2)},
        reference=ours,
        frozen=ours,
        in_a_row={},
    )
    trainer.to_save = lambda: trainer.state
    trainer.put_back = lambda saved: setattr(trainer, "state", saved)
    RunCheckpoints(trainer, {}, place).save_now(1)
    assert RunCheckpoints(trainer, {}, place).restore() == 1
    trainer.frozen = theirs
    with pytest.raises(ConfigError, match="another base policy"):
        RunCheckpoints(trainer, {}, place).restore()


def test_adapters_start_by_seed_and_purpose(setting):
    settings, _, mesh, policy = setting

    def drawn(settings, purpose):
        made = adapt(policy, settings, mesh, purpose)
        return made.params["layers"]["mlp"]["down"]["adapter"]["a"]

    first = drawn(settings, "training")
    np.testing.assert_array_equal(drawn(settings, "training"), first)
    assert not np.array_equal(drawn(settings, "cold start"), first)
    other = dataclasses.replace(settings, seed=settings.seed + 1)
    assert not np.array_equal(drawn(other, "training"), first)


def test_a_narrow_base_has_wide_adapters(setting):
    settings, _, mesh, policy = setting
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), policy.params)
    policy = dataclasses.replace(policy, params=narrow)
    made = adapt(policy, settings, mesh, "training")
    adapters, base = lora.split(made.params)
    assert {leaf.dtype for leaf in jax.tree.leaves(base)} == {jnp.dtype("bfloat16")}
    assert {leaf.dtype for leaf in jax.tree.leaves(adapters)} == {jnp.dtype("float32")}


class Nudge:
    """In place of compiled programs: adds 1 to all that is trained."""

    def __init__(self, *args, **named):
        pass

    def trained(self, state):
        return state.params

    def supervised_zeros(self):
        return None

    def supervised_accumulate(self, params, sums, rows):
        return None

    def apply(self, state, sums):
        moved = jax.tree.map(lambda x: x + 1, state.params)
        return state._replace(params=moved), {"loss": np.float32(0)}


def test_a_cold_start_of_a_given_policy_trains_adapters_and_merges_them(
    setting, monkeypatch
):
    settings, suite, mesh, policy = setting
    monkeypatch.setattr(cold_starts, "TrainPrograms", Nudge)
    given = dataclasses.replace(settings.policy, path="somewhere")
    given = dataclasses.replace(settings, policy=given)
    made = cold_starts.cold_start(policy, suite, given, mesh)
    assert jax.tree.structure(made) == jax.tree.structure(policy.params)
    moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), made, policy.params)
    named = jax.tree.leaves_with_path(moved)
    paths = [jax.tree_util.keystr(path) for path, was_moved in named if was_moved]
    assert len(paths) == len(TARGETS)
    assert all(any(name in path for name in TARGETS) for path in paths)
    # Random weights leave nothing to adapt: a policy made here is trained whole.
    made = cold_starts.cold_start(policy, suite, settings, mesh)
    moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), made, policy.params)
    assert all(jax.tree.leaves(moved))


def test_a_policy_is_saved_merged(setting, trainer, tmp_path):
    moved = jax.tree.map(lambda x: np.asarray(x) + 0.1, trainer.state.params)
    params = lora.join(moved, trainer.frozen)
    trainer.policy.save(tmp_path, params)
    config, saved, _ = hf.load(tmp_path)
    assert config == trainer.policy.config
    assert_same_bits(saved, lora.merge(params, trainer.policy.model.lora))
    up = [tree["layers"]["mlp"]["down"]["kernel"] for tree in (saved, trainer.frozen)]
    assert np.abs(up[0] - up[1]).max() > 1e-2
