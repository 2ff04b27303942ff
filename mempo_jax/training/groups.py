"""The groups of one step: sampled, and sampled anew where one teaches nothing.

A group whose rewards are all equal has no advantage, and is not trained on. Up to
``sampling.max_resample_rounds`` times, a group gives its place to a group of another
task (dynamic sampling; Yu et al. 2025, DAPO, arXiv:2503.14476, section 3.2) where task
score and penalties are equal: efficiency differs within nearly every group, also where
all members solve the task or none does, and alone is no reason to keep it. Such a group
that no other replaced does train, on the small advantage it has.

Which task follows from step, round and place alone, so a continued run samples what the
uninterrupted one would have. Places that no round fills train as a smaller batch; the
arrays keep their shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from mempo_jax.builders.suites import reward_function
from mempo_jax.config import RunConfig
from mempo_jax.core.advantages import degenerate
from mempo_jax.distributed import hosts
from mempo_jax.envs import TaskSuite
from mempo_jax.envs.reward import EFFICIENCY, call_reward_function, rescored
from mempo_jax.rollout.assemble import BatchShapes, assemble_trajectories
from mempo_jax.rollout.collect import Collector, Job
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.training import checks
from mempo_jax.training.step_metrics import group_metrics
from mempo_jax.types import Trajectories


class Groups(NamedTuple):
    """What one step sampled.

    kept: one group for each place, G x S trajectories, groups contiguous.
    arrays: facts of ``kept``; a group that is not trained on is marked invalid.
    sampled: every trajectory of every round, groups contiguous, ``kept`` among them.
    figures: metrics of the groups and of the rounds; groups_unfilled are the places
      that do not train.
    """

    kept: list[Trajectory]
    arrays: Trajectories
    sampled: list[Trajectory]
    figures: dict[str, Any]


def task_index(step: int, round_: int, place: int, settings: RunConfig) -> int:
    """Which training task stands at a place of a step in a round; none comes twice.

    It depends on ``max_resample_rounds``, which a continued run may therefore not
    change (``rundir.FREE_FIELDS``).
    """
    sampling = settings.sampling
    rounds = 1 + sampling.max_resample_rounds
    return (step * rounds + round_) * sampling.tasks_per_step + place


class GroupSampler:
    """Runs the groups of a step; see the module docstring."""

    def __init__(
        self,
        collector: Collector,
        suite: TaskSuite,
        settings: RunConfig,
        shapes: BatchShapes,
    ) -> None:
        self._collector, self._suite = collector, suite
        self._settings, self._shapes = settings, shapes
        self._reward_function = reward_function(settings)

    def warm_up(self, arrays: Trajectories) -> None:
        """Compiles what looks at groups, for facts of this shape."""
        self._dropped(arrays.reward, arrays)
        self._metrics([arrays])

    def sample(self, step: int) -> Groups:
        """The groups of one step, with the policy that the engine holds.

        Raises:
          RunStopped: too many of the trajectories so far failed.
          RewardError: a reward function of the user's broke its contract.
        """
        sampling = self._settings.sampling
        size, most = sampling.group_size, sampling.max_resample_rounds
        places = list(range(sampling.tasks_per_step))
        standing: dict[int, list[Trajectory]] = {}  # the newest group of each place
        sampled: list[Trajectory] = []
        rounds: list[Trajectories] = []
        while places and len(rounds) <= most:
            fresh = self._run(step, len(rounds), places)
            sampled += fresh
            checks.failed_share(sampled, sampling.max_failed_share)
            for at, place in enumerate(places):
                standing[place] = fresh[at * size : (at + 1) * size]
            kept = [t for place in sorted(standing) for t in standing[place]]
            arrays = assemble_trajectories(kept, len(standing), self._shapes)
            rounds.append(_only(arrays, places))
            places = self._dropped(without_efficiency(kept, arrays.reward), arrays)
        places = self._dropped(arrays.reward, arrays)
        figures = self._metrics(rounds)
        groups = len(sampled) // size
        figures["resample_rounds"] = len(rounds) - 1
        figures["groups_resampled"] = groups - sampling.tasks_per_step
        figures["groups_unfilled"] = len(places)
        trained = np.ones(sampling.tasks_per_step, bool)
        trained[places] = False
        arrays = arrays._replace(valid=arrays.valid & trained[:, None])
        return Groups(kept, arrays, sampled, figures)

    def jobs(self, step: int, round_: int, places: Sequence[int]) -> list[Job]:
        """The trajectories of a round: contiguous groups of one task each."""
        s = self._settings
        indices = [task_index(step, round_, place, s) for place in places]
        tasks = [self._suite.task("train", index) for index in indices]
        return [
            Job(task, sample, s.seed, "train", step)
            for task in tasks
            for sample in range(s.sampling.group_size)
        ]

    def _metrics(self, rounds: Sequence[Trajectories]) -> dict[str, float | None]:
        gate = self._settings.reward.outcome_gate
        return group_metrics(rounds, self._settings.objective, outcome_gate=gate)

    def _run(self, step: int, round_: int, places: Sequence[int]) -> list[Trajectory]:
        """The groups of these places, each run and rewarded by one of the processes."""

        def own() -> list[Trajectory]:
            jobs = self.jobs(step, round_, hosts.share(places))
            made = self._collector.run(jobs, self._settings.sampling)
            self._apply_reward_function(made)
            return made

        return list(itertools.chain.from_iterable(hosts.gather(own)))

    def _dropped(self, reward: np.ndarray, arrays: Trajectories) -> list[int]:
        """Places of groups in which this reward [G, S] tells no members apart."""
        if not self._settings.sampling.drop_degenerate:
            return []
        flat = jax.device_get(degenerate(reward, arrays.valid))
        return np.flatnonzero(flat).tolist()

    def _apply_reward_function(self, trajectories: Sequence[Trajectory]) -> None:
        if self._reward_function is None:
            return
        counted = [t for t in trajectories if t.reward is not None]
        values = call_reward_function(self._reward_function, counted)
        settings = self._settings.reward
        source = f"config.reward.function = {settings.function!r}"
        for trajectory, value in zip(counted, values, strict=True):
            trajectory.reward = rescored(trajectory.reward, value, settings, source)
            earned = trajectory.reward.weighted["task"]
            trajectory.turn_reward = [0.0] * len(trajectory.turn_reward)
            trajectory.turn_reward[-1:] = [earned]


def without_efficiency(
    trajectories: Sequence[Trajectory], reward: np.ndarray
) -> np.ndarray:
    """The total rewards [G, S] less what efficiency terms added to them."""
    weighted = [t.reward.weighted if t.reward else {} for t in trajectories]
    added = [sum(w.get(name, 0.0) for name in EFFICIENCY) for w in weighted]
    return reward - np.array(added, reward.dtype).reshape(reward.shape)


def _only(arrays: Trajectories, places: Sequence[int]) -> Trajectories:
    """The same arrays with the groups of other places marked invalid."""
    here = np.zeros(len(arrays.valid), bool)
    here[list(places)] = True
    return arrays._replace(valid=arrays.valid & here[:, None])
