"""Steps that are sampled while the step before them trains."""

import threading

import jax
import numpy as np
import pytest

from mempo_jax.builders.engines import make_run_mesh
from mempo_jax.builders.policies import make_nano
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.distributed import hosts
from mempo_jax.distributed.hosts import RunStopped, Stopped
from mempo_jax.distributed.placement import make_mesh
from mempo_jax.settings import ConfigError
from mempo_jax.training.loop import Trainer
from tests.experiments import tiny
from tests.training.loop_stops_test import StopAt, bits

STEPS = 4


def get_config():
    config = tiny.get_config()
    config.env.ledger.max_turns = 2
    config.sampling.steps_ahead = 1
    config.sampling.drop_degenerate = False
    config.objective.importance_cap = 2.0
    config.train.learning_rate = 0.01
    config.train.warmup_steps = 0
    config.mesh.data = 1
    return config


class Case:
    """One trainer, set back to its beginning for each test."""

    def __init__(self):
        settings = from_config(get_config().to_dict())
        suite, mesh = make_suite(settings), make_mesh(1, 1, 1)
        self.stop = StopAt()
        policy = make_nano(suite, settings)
        self.trainer = Trainer(policy, suite, settings, mesh, stop=self.stop)
        self.trainer.warm_up()
        self.start = jax.device_get(self.trainer.to_save())

    def set_back(self, saved=None):
        now = self.trainer.to_save()
        saved = self.start if saved is None else saved
        self.trainer.put_back(
            jax.tree.map(lambda x, old: jax.device_put(x, old.sharding), saved, now)
        )
        self.stop.at = self.stop.count = 0


@pytest.fixture(scope="module")
def made():
    return Case()


@pytest.fixture
def case(made):
    made.set_back()
    return made


def spoken(trajectories):
    return [(t.task.id, t.sample, tuple(t.actions)) for t in trajectories]


def test_each_step_is_sampled_by_the_weights_before_the_update_of_the_last(case):
    trainer = case.trainer
    begun_with = []
    for step, (figures, trajectories) in enumerate(trainer.run(0, STEPS)):
        begun_with.append(jax.device_get(trainer.older))
        assert {t.policy_step for t in trajectories} == {max(0, step - 1)}
        assert figures["policy_lag"] == min(step, 1)
        assert figures["log_prob_gap"] < 1e-4, "compared with the weights that sampled"
        assert step == 0 or figures["compilations"] == 0
        assert trajectories[0].to_json()["policy_step"] == max(0, step - 1)
    # What a step began with is what samples the step after it.
    assert bits(begun_with[0]) == bits(case.start[0].params)
    assert bits(begun_with[1]) != bits(begun_with[0])
    assert figures["importance_weight"] != 1.0


def test_the_next_step_is_sampled_while_this_one_trains(case, monkeypatch):
    trainer, begun = case.trainer, threading.Event()
    sample, apply = trainer.groups.sample, trainer._apply
    threads = []

    def note(step):
        threads.append((step, threading.current_thread() is threading.main_thread()))
        if step == 1:
            begun.set()
        return sample(step)

    def wait(step, *given):
        if step == 0:
            assert begun.wait(60), "step 1 is sampled after step 0 has trained"
        return apply(step, *given)

    monkeypatch.setattr(trainer.groups, "sample", note)
    monkeypatch.setattr(trainer, "_apply", wait)
    list(trainer.run(0, 3))
    assert threads == [(0, True), (1, False), (2, False)]


def test_a_run_that_stops_between_steps_goes_on_to_the_same_bits(case):
    straight = [spoken(t) for _, t in case.trainer.run(0, STEPS)]
    after = bits(case.trainer.to_save())
    for stops in ([1], [2, 3]):
        case.set_back()
        said, first = [], 0
        for last in [*stops, STEPS]:
            said += [spoken(t) for _, t in case.trainer.run(first, last)]
            case.set_back(jax.device_get(case.trainer.to_save()))  # a checkpoint
            first = last
        assert said == straight
        assert bits(case.trainer.to_save()) == after


def test_a_step_that_is_left_anywhere_is_done_over_to_the_same_bits(case):
    list(case.trainer.run(0, 3))
    after, checks = bits(case.trainer.to_save()), case.stop.count
    tried = 0
    for at in range(2, checks, max(1, checks // 7)):
        case.set_back()
        case.stop.at, done = at, []
        with pytest.raises(Stopped):
            done += case.trainer.run(0, 3)
        saved = jax.device_get(case.trainer.to_save())
        assert case.trainer._sampler._under_way is None
        case.set_back(saved)
        list(case.trainer.run(len(done), 3))
        assert bits(case.trainer.to_save()) == after, f"after check {at}"
        tried += 1
    assert tried >= 4


def test_an_error_of_the_step_that_is_sampled_ahead_comes_when_it_is_taken(
    case, monkeypatch
):
    sample = case.trainer.groups.sample

    def broken(step):
        if step == 1:
            raise RunStopped("the environment is gone")
        return sample(step)

    monkeypatch.setattr(case.trainer.groups, "sample", broken)
    steps = []
    with pytest.raises(RunStopped, match="is gone"):
        steps += case.trainer.run(0, 3)
    assert bits(case.trainer.state.params) != bits(case.start[0].params)


def test_a_sampler_of_other_weights_is_found(case, monkeypatch):
    trainer = case.trainer
    begin = trainer._sampler.begin

    def off(step, params):
        begin(step, jax.tree.map(lambda x: x * 1.2, params))

    monkeypatch.setattr(trainer._sampler, "begin", off)
    steps = trainer.run(0, 3)
    next(steps)
    with pytest.raises(RunStopped, match="log-prob gap"):
        next(steps)


def test_what_it_needs(monkeypatch):
    config = get_config()
    config.objective.importance_cap = 0.0
    with pytest.raises(ConfigError, match=r"importance_cap: expected above 0"):
        from_config(config.to_dict())
    config = get_config()
    config.sampling.steps_ahead = 2
    with pytest.raises(ConfigError, match="steps_ahead: expected 0 or 1"):
        from_config(config.to_dict())
    settings = from_config(get_config().to_dict())
    monkeypatch.setattr(hosts, "count", lambda: 2)
    with pytest.raises(ConfigError, match="steps_ahead: expected 0 with several"):
        make_run_mesh(settings)


def test_groups_do_not_depend_on_who_samples_them(case):
    """Begun in a thread or sampled when it is taken."""
    trainer = case.trainer
    params = trainer.params
    now = trainer._sampler.take(5, params, 5)
    trainer._sampler.begin(5, params)
    begun = trainer._sampler.take(5, None, 5)
    assert spoken(begun.groups.sampled) == spoken(now.groups.sampled)
    np.testing.assert_array_equal(begun.groups.arrays.reward, now.groups.arrays.reward)
    assert begun.counters["tokens_generated"] == now.counters["tokens_generated"] > 0


def test_two_threads_share_a_mesh_without_waiting_for_each_other():
    """Both exchange arrays between devices; in two orders they would hang."""
    config = get_config()
    config.mesh.data, config.mesh.fsdp, config.mesh.tensor = 2, 2, 1
    config.train.length_buckets = (80,)
    settings = from_config(config.to_dict())
    suite, mesh = make_suite(settings), make_mesh(2, 2, 1)
    trainer = Trainer(make_nano(suite, settings), suite, settings, mesh)
    lags = [figures["policy_lag"] for figures, _ in trainer.run(0, 4)]
    assert lags == [0, 1, 1, 1]
