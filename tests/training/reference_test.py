"""The reference of the KL: the initial policy, checked; or another model."""

import dataclasses
import gc
import weakref

import jax
import jax.numpy as jnp
import pytest

from mempo_jax.builders.policies import Policy, make_nano
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.distributed.hosts import RunStopped
from mempo_jax.distributed.placement import make_mesh
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.training.loop import Trainer
from tests.experiments.tiny import get_config


@pytest.fixture(scope="module")
def setting():
    config = get_config()
    config.env.ledger.max_turns = 2
    config.sampling.drop_degenerate = False
    config.train.minibatches = 1
    settings = from_config(config.to_dict())
    suite = make_suite(settings)
    mesh = make_mesh(1, 1, 1)
    return settings, suite, mesh, make_nano(suite, settings)


def test_a_smaller_reference_serves_and_pulls(setting):
    settings, suite, mesh, policy = setting
    config = dataclasses.replace(
        policy.config, width=8, heads=1, kv_heads=1, head_dim=8
    )
    model = LanguageModel(config, "float32")
    params = model.init(jax.random.key(1))
    small = Policy(config, model, policy.tokenizer, params)
    own = dataclasses.replace(policy, params=jax.tree.map(jnp.copy, policy.params))
    held = [weakref.ref(leaf) for leaf in jax.tree.leaves(own.params)]
    trainer = Trainer(own, suite, settings, mesh, reference=small)
    del own
    gc.collect()
    assert all(leaf() is None for leaf in held), "a copy beside state and reference"
    figures, _ = trainer.step(0)
    assert figures["kl_first_update"] > 1e-4
    assert figures["log_prob_gap"] < 1e-4


def test_without_a_kl_there_is_no_reference_and_one_update_scores_nothing(
    setting, monkeypatch
):
    settings, suite, mesh, policy = setting
    objective = dataclasses.replace(settings.objective, kl_coef=0.0)
    settings = dataclasses.replace(settings, objective=objective)
    own = dataclasses.replace(policy, params=jax.tree.map(jnp.copy, policy.params))
    held = [weakref.ref(leaf) for leaf in jax.tree.leaves(own.params)]
    trainer = Trainer(own, suite, settings, mesh)
    del own
    gc.collect()
    assert trainer.reference is None
    assert all(leaf() is None for leaf in held), "a copy beside the state"
    monkeypatch.setattr(trainer.programs, "score", None)
    trainer.warm_up()
    before = jax.device_get(trainer.state.params)
    figures, _ = trainer.step(0)
    assert [figures[k] for k in ("kl", "kl_first_update", "kl_ops")] == [None] * 3
    assert figures["compilations"] == 0
    assert figures["entropy"] > 0.1
    assert 0 < figures["log_prob_gap"] < 1e-4
    after = jax.tree.leaves(trainer.state.params)
    assert any((a != b).any() for a, b in zip(after, jax.tree.leaves(before)))


def test_a_wrong_log_prob_stops_before_the_update_that_found_it(setting, monkeypatch):
    settings, suite, mesh, policy = setting
    trainer = Trainer(policy, suite, settings, mesh)
    before = jax.device_get(trainer.state)
    sample = trainer.groups.sample

    def shifted(step):
        groups = sample(step)
        for trajectory in groups.trajectories:
            for segment in trajectory.segments:
                segment.log_probs[:] = [x - 0.1 for x in segment.log_probs]
        return groups

    monkeypatch.setattr(trainer.groups, "sample", shifted)
    with pytest.raises(RunStopped, match=r"log-prob gap 0\.1"):
        trainer.step(0)
    same = jax.tree.map(
        lambda a, b: (a == b).all(), jax.device_get(trainer.state), before
    )
    assert all(jax.tree.leaves(same))


def test_the_own_reference_starts_at_zero_and_a_changed_one_stops(setting):
    settings, suite, mesh, policy = setting
    trainer = Trainer(policy, suite, settings, mesh)
    trainer.reference = jax.tree.map(lambda x: x * 1.5, trainer.reference)
    with pytest.raises(RunStopped, match="policy and reference differ"):
        trainer.step(0)
    trainer = Trainer(policy, suite, settings, mesh)
    figures, _ = trainer.step(0)
    assert figures["kl_first_update"] < 1e-6
    assert figures["compilations"] > 0
