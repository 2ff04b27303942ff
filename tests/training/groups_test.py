"""Sampling of groups, and sampling anew where a group teaches nothing."""

import dataclasses

import jax
import numpy as np
import pytest

from mempo_jax.builders.engines import batch_shapes, make_run_mesh
from mempo_jax.builders.policies import make_nano
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.distributed.hosts import RunStopped
from mempo_jax.distributed.placement import make_mesh
from mempo_jax.envs import EpisodeStatus, Reward
from mempo_jax.envs.reward import EFFICIENCY, PENALTIES
from mempo_jax.training.checks import EMPTY_STEPS
from mempo_jax.training.groups import GroupSampler, task_index
from mempo_jax.training.loop import Trainer
from tests.experiments import tiny
from tests.rollout.assemble_test import trajectory


def settings_of(**changes):
    config = tiny.get_config()
    config.sampling.tasks_per_step = 3
    for name, value in changes.items():
        config.sampling[name] = value
    return from_config(config.to_dict())


class Collector:
    """Gives each job a trajectory whose reward is a function of task and sample."""

    def __init__(self, reward, failing=lambda task: False, saved=lambda *_: 0.0):
        self.reward, self.failing, self.saved = reward, failing, saved
        self.rounds = []

    def run(self, jobs, decoding):
        self.rounds.append(list(jobs))
        return [self.one(job) for job in jobs]

    def one(self, job):
        score = float(self.reward(job.task.index, job.sample))
        made = trajectory(score=score, total=score)
        made = dataclasses.replace(made, task=job.task, sample=job.sample)
        if self.failing(job.task.index):
            return dataclasses.replace(made, status=EpisodeStatus.FAILED, failure="why")
        zeros = dict.fromkeys((*PENALTIES, *EFFICIENCY), 0.0)
        saved = self.saved(job.task.index, job.sample)
        raw = {"task": score, **zeros, "efficiency_size": saved}
        return dataclasses.replace(made, reward=Reward(raw, raw, score + saved))


def sampler(collector, settings):
    suite, mesh = make_suite(settings), make_run_mesh(settings)
    shapes = batch_shapes(settings, mesh)
    return GroupSampler(collector, suite, settings, shapes)


def tasks_of(jobs):
    return [job.task.index for job in jobs[::4]]


def alternating(task, sample):
    return sample % 2


def odd_tasks_teach(task, sample):
    return sample % 2 if task % 2 else 1


def test_without_rounds_tasks_come_in_order():
    settings = settings_of()
    collector = Collector(lambda task, sample: task == 7 and sample)
    groups = sampler(collector, settings).sample(2)
    [jobs] = collector.rounds
    assert [(j.task.index, j.sample) for j in jobs] == [
        (task, sample) for task in (6, 7, 8) for sample in range(4)
    ]
    assert {(j.seed, j.purpose, j.step) for j in jobs} == {(0, "train", 2)}
    assert groups.trajectories == groups.sampled
    assert groups.arrays.valid.tolist() == [[False] * 4, [True] * 4, [False] * 4]
    assert groups.figures["groups_unfilled"] == 2
    assert groups.figures["groups_resampled"] == groups.figures["resample_rounds"] == 0


def test_no_task_stands_at_two_places():
    settings = settings_of(max_resample_rounds=2)
    seen = [
        task_index(step, round_, place, settings)
        for step in range(4)
        for round_ in range(3)
        for place in range(3)
    ]
    assert seen == list(range(36))


def test_a_group_that_teaches_nothing_gives_its_place_to_another_task():
    settings = settings_of(max_resample_rounds=2)
    collector = Collector(odd_tasks_teach)
    groups = sampler(collector, settings).sample(1)  # rounds of tasks 9, 12 and 15
    assert [tasks_of(jobs) for jobs in collector.rounds] == [[9, 10, 11], [13]]
    assert tasks_of(groups.trajectories) == [9, 13, 11]
    assert [t.sample for t in groups.trajectories] == [0, 1, 2, 3] * 3
    assert tasks_of(groups.sampled) == [9, 10, 11, 13]
    assert groups.arrays.valid.all()
    assert groups.arrays.reward.tolist() == [[0, 1, 0, 1]] * 3
    assert groups.figures["degenerate_groups"] == pytest.approx(1 / 4)
    assert groups.figures["resample_rounds"] == 1
    assert groups.figures["groups_resampled"] == 1
    assert groups.figures["groups_unfilled"] == 0


def test_what_no_round_fills_makes_a_smaller_batch():
    settings = settings_of(max_resample_rounds=3)
    collector = Collector(lambda task, sample: task == 2 and sample)
    groups = sampler(collector, settings).sample(0)
    assert [len(jobs) for jobs in collector.rounds] == [12, 8, 8, 8]
    assert groups.arrays.valid.tolist() == [[False] * 4, [False] * 4, [True] * 4]
    assert groups.arrays.valid.shape == (3, 4)
    assert groups.figures["groups_unfilled"] == 2
    assert groups.figures["groups_resampled"] == 6
    assert groups.figures["degenerate_groups"] == pytest.approx(8 / 9)


def test_groups_that_are_kept_in_any_case_are_not_replaced():
    collector = Collector(lambda task, sample: 1)
    groups = sampler(collector, settings_of(drop_degenerate=False)).sample(0)
    assert groups.arrays.valid.all()
    assert groups.figures["groups_unfilled"] == 0


def test_efficiency_alone_is_no_reason_to_keep_a_group_nor_to_drop_one():
    settings = settings_of(max_resample_rounds=1)
    collector = Collector(
        odd_tasks_teach, saved=lambda task, sample: task % 3 * sample / 64
    )
    groups = sampler(collector, settings).sample(0)  # rounds of tasks 0 and 3
    assert [tasks_of(jobs) for jobs in collector.rounds] == [[0, 1, 2], [3, 5]]
    settings = settings_of(max_resample_rounds=1, tasks_per_step=1)
    collector = Collector(
        lambda task, sample: 1, saved=lambda task, sample: task * sample / 64
    )
    groups = sampler(collector, settings).sample(0)
    assert [tasks_of(jobs) for jobs in collector.rounds] == [[0], [1]]
    assert groups.arrays.valid.all()  # nothing better came: it trains as it is
    assert groups.arrays.reward[0].tolist() == [1 + s / 64 for s in range(4)]
    assert groups.figures["groups_unfilled"] == 0


def test_penalties_are_a_reason_to_keep_a_group():
    settings = settings_of(max_resample_rounds=1, tasks_per_step=1)
    collector = Collector(lambda task, sample: 1 - 0.05 * (sample == 2))
    groups = sampler(collector, settings).sample(0)
    assert len(collector.rounds) == 1
    assert groups.arrays.valid.all()


def test_a_step_does_not_depend_on_the_steps_before_it():
    settings = settings_of(max_resample_rounds=2)
    once, all_along = Collector(odd_tasks_teach), Collector(odd_tasks_teach)
    sampler(once, settings).sample(3)
    long = sampler(all_along, settings)
    for step in (0, 1, 2):
        long.sample(step)
    del all_along.rounds[:]
    long.sample(3)
    assert once.rounds == all_along.rounds
    keys = [j.turn_key(0).tobytes() for jobs in once.rounds for j in jobs]
    assert len(set(keys)) == len(keys) > 12


def test_a_group_that_failed_gives_its_place_too():
    settings = settings_of(max_resample_rounds=1)
    collector = Collector(alternating, failing=lambda task: task == 1)
    groups = sampler(collector, settings).sample(0)
    assert tasks_of(groups.trajectories) == [0, 4, 2]
    assert groups.arrays.valid.all()


def test_failures_stop_a_run_before_more_is_sampled():
    settings = settings_of(max_resample_rounds=5)
    collector = Collector(alternating, failing=lambda task: True)
    with pytest.raises(RunStopped, match=r"12 of 12 trajectories failed.*why"):
        sampler(collector, settings).sample(0)
    assert len(collector.rounds) == 1


def own_reward(trajectories):
    """A reward function of the user's: even tasks teach."""
    return [float(t.task.index % 2 == 0 and t.sample == 0) for t in trajectories]


def test_a_reward_function_decides_in_every_round():
    config = tiny.get_config()
    config.sampling.max_resample_rounds = 1
    config.reward.function = f"{__name__}:own_reward"
    collector = Collector(lambda task, sample: sample / 4)
    groups = sampler(collector, from_config(config.to_dict())).sample(0)
    assert [tasks_of(jobs) for jobs in collector.rounds] == [[0, 1], [3]]
    assert tasks_of(groups.trajectories) == [0, 3]
    assert groups.arrays.valid.tolist() == [[True] * 4, [False] * 4]
    assert [t.reward.total for t in groups.trajectories] == [1.0] + [0.0] * 7


@pytest.fixture(scope="module")
def trainer():
    config = tiny.get_config()
    config.env.ledger.max_turns = 2
    config.sampling.max_resample_rounds = 2
    config.train.minibatches = 1
    config.reward.malformed = 0.0
    config.reward.function = f"{__name__}:own_reward"
    settings = from_config(config.to_dict())
    suite, mesh = make_suite(settings), make_mesh(1, 1, 1)
    return Trainer(make_nano(suite, settings), suite, settings, mesh)


def copy_of(state):
    return jax.tree.map(lambda x: jax.device_put(np.array(x), x.sharding), state)


def test_a_continued_run_samples_and_trains_as_the_whole_one(trainer):
    trainer.step(0)
    saved = copy_of(trainer.state)
    figures, sampled = trainer.step(1)
    assert figures["groups_resampled"] > 0
    assert len(sampled) == 4 * (2 + figures["groups_resampled"])
    params = jax.tree.map(np.array, trainer.state.params)
    trainer.state = saved
    again, sampled_again = trainer.step(1)
    assert [t.actions for t in sampled_again] == [t.actions for t in sampled]
    assert again["loss"] == figures["loss"]
    jax.tree.map(np.testing.assert_array_equal, trainer.state.params, params)


def test_a_run_that_cannot_be_filled_counts_empty_steps_and_says_so(
    trainer, monkeypatch
):
    sampling = dataclasses.replace(trainer.settings.sampling, temperature=1e-3)
    settings = dataclasses.replace(trainer.settings, sampling=sampling)
    monkeypatch.setattr(trainer.groups, "_settings", settings)  # members are alike
    monkeypatch.setattr(trainer.groups, "_reward_function", None)
    before = jax.tree.map(np.array, trainer.state.params)
    for step in range(EMPTY_STEPS - 1):
        figures, sampled = trainer.step(step)
        assert figures["empty_steps"] == 1
        assert figures["groups_unfilled"] == 2
        assert len(sampled) == 4 * 2 * 3
    with pytest.warns(UserWarning, match="5 steps in a row trained on nothing"):
        trainer.step(EMPTY_STEPS - 1)
    jax.tree.map(np.testing.assert_array_equal, trainer.state.params, before)
