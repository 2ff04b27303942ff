"""The groups of one step: sampled, and sampled again if one carries no signal.

A group whose rewards are all equal has no advantage, and is not trained on. Up to
``sampling.max_resample_rounds`` times, a group is replaced by a group of another task
(dynamic sampling; Yu et al. 2025, DAPO, arXiv:2503.14476, section 3.2) if its task
scores and penalties are equal. Efficiency terms do not count for that: they differ in
nearly every group, even if all members solve the task or none does. A group that only
differs in efficiency and was not replaced does train, on the small advantage it has.

The task follows from step, round and slot alone, so a continued run samples what the
uninterrupted one would have. Slots that no round fills make the batch smaller; the
arrays keep their shapes.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Sequence
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

    Attributes:
      trajectories: one group for each slot, G * S of them, groups contiguous.
      arrays: facts of ``trajectories``; a group that is not trained on is invalid.
      sampled: every trajectory of every round, groups contiguous, ``trajectories``
        among them.
      figures: metrics of the groups and of the rounds; groups_unfilled are the slots
        that do not train.
    """

    trajectories: list[Trajectory]
    arrays: Trajectories
    sampled: list[Trajectory]
    figures: dict[str, Any]


def task_index(step: int, round_: int, slot: int, settings: RunConfig) -> int:
    """Index of the training task for (step, round, slot); unique over a run.

    Args:
      step: from 0.
      round_: of sampling, 0 for the first.
      slot: group of the step, below ``tasks_per_step``.
      settings: its ``max_resample_rounds`` enters, so a continued run may not change it
        (``runs.run_dir.FREE_FIELDS``).
    """
    sampling = settings.sampling
    rounds = 1 + sampling.max_resample_rounds
    return (step * rounds + round_) * sampling.tasks_per_step + slot


class SampledStep(NamedTuple):
    """The groups of a step, and what it took to sample them.

    Attributes:
      groups: of the step.
      policy_step: the step whose first weights sampled them.
      seconds: of sampling.
      seconds_waiting: of them, those in which training waited.
      counters: of the engine's work, as in ``rollout.sampler.Counters``.
    """

    groups: Groups
    policy_step: int
    seconds: float
    seconds_waiting: float
    counters: dict[str, int]


class StepSampler:
    """Samples the groups of each step, or has them sampled before they are needed.

    Whoever samples, the groups of a step follow from its number and the weights alone.
    """

    def __init__(self, collector: Collector, groups: GroupSampler):
        """Samples nothing yet.

        Args:
          collector: its engine is given the weights.
          groups: runs the groups of a step.
        """
        self._collector, self._groups = collector, groups
        self._thread: concurrent.futures.Executor | None = None
        self._under_way: tuple[int, concurrent.futures.Future] | None = None
        self._cancelled = threading.Event()

    def ask_between(self, ask: Callable[[], None]) -> None:
        """Sets what is called between two pieces of work.

        Args:
          ask: called with nothing; what it raises ends the sampling.
        """

        def ask_both() -> None:
            ask()
            # No thread can be ended from outside: this one has to look for itself.
            if self._cancelled.is_set():
                raise concurrent.futures.CancelledError

        self._collector.ask_between(ask_both)

    def take(self, step: int, params: Any, policy_step: int) -> SampledStep:
        """The groups of a step, begun before or sampled now.

        Args:
          step: from 0.
          params: the weights that sample; not read if the step was begun.
          policy_step: the step that begins with these weights.

        Raises:
          RunStopped, RewardError, Stopped: as ``GroupSampler.sample``.
        """
        began = time.perf_counter()
        under_way, self._under_way = self._under_way, None
        if under_way is not None and under_way[0] == step:
            sampled = under_way[1].result()
        else:
            sampled = self._sample(step, params)
        waited = time.perf_counter() - began
        groups, seconds, counters = sampled
        for trajectory in groups.sampled:
            trajectory.policy_step = policy_step
        return SampledStep(groups, policy_step, seconds, waited, counters)

    def begin(self, step: int, params: Any) -> None:
        """Begins to sample a step in another thread.

        Args:
          step: to be taken next.
          params: the weights that sample; they must outlive the sampling.
        """
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "sampling")
        future = self._thread.submit(self._sample, step, params)
        self._under_way = step, future

    def cancel(self) -> None:
        """Ends what was begun, and returns when it has ended."""
        if self._under_way is None:
            return
        (_, future), self._under_way = self._under_way, None
        self._cancelled.set()
        # Its errors belong to a step that nobody takes: if it is sampled again, they
        # come again.
        future.exception()
        self._cancelled.clear()

    def _sample(self, step: int, params: Any) -> tuple[Groups, float, dict[str, int]]:
        began = time.perf_counter()
        engine = self._collector.engine
        before = dataclasses.asdict(engine.counters)
        engine.set_params(params)
        groups = self._groups.sample(step)
        after = dataclasses.asdict(engine.counters)
        counters = {name: count - before[name] for name, count in after.items()}
        return groups, time.perf_counter() - began, counters


class GroupSampler:
    """Runs the groups of a step; see the module docstring."""

    def __init__(
        self,
        collector: Collector,
        suite: TaskSuite,
        settings: RunConfig,
        shapes: BatchShapes,
    ) -> None:
        """Samples nothing yet.

        Args:
          collector: runs trajectories with the engine's policy.
          suite: gives the training tasks.
          settings: of the run.
          shapes: widths of the tables of facts.
        """
        self._collector, self._suite = collector, suite
        self._settings, self._shapes = settings, shapes
        self._reward_function = reward_function(settings)

    def warm_up(self, arrays: Trajectories) -> None:
        """Compiles the checks and metrics of groups.

        Args:
          arrays: facts in the shapes of a step; their values do not matter.
        """
        self._degenerate_slots(arrays.reward, arrays)
        self._metrics([arrays])

    def sample(self, step: int) -> Groups:
        """The groups of one step, with the policy that the engine holds.

        Args:
          step: from 0; tasks and randomness follow from it.

        Raises:
          RunStopped: too many of the trajectories so far failed.
          RewardError: a reward function of the user's broke its contract.
        """
        sampling = self._settings.sampling
        size, most = sampling.group_size, sampling.max_resample_rounds
        slots = list(range(sampling.tasks_per_step))  # those to be sampled next
        newest: dict[int, list[Trajectory]] = {}  # the last group of each slot
        sampled: list[Trajectory] = []
        rounds: list[Trajectories] = []
        while slots and len(rounds) <= most:
            fresh = self._run(step, len(rounds), slots)
            sampled += fresh
            # Over all rounds so far: a broken environment stops the run at once.
            checks.failed_share(sampled, sampling.max_failed_share)
            for n, slot in enumerate(slots):
                newest[slot] = fresh[n * size : (n + 1) * size]
            trajectories = [t for slot in sorted(newest) for t in newest[slot]]
            arrays = assemble_trajectories(trajectories, len(newest), self._shapes)
            rounds.append(_only(arrays, slots))
            # Only a difference in score or penalties is worth keeping a group for.
            reward = without_efficiency(trajectories, arrays.reward)
            slots = self._degenerate_slots(reward, arrays)
        # After the last round any difference will do: what is left can still train.
        slots = self._degenerate_slots(arrays.reward, arrays)
        figures = self._metrics(rounds)
        groups = len(sampled) // size
        figures["resample_rounds"] = len(rounds) - 1
        figures["groups_resampled"] = groups - sampling.tasks_per_step
        figures["groups_unfilled"] = len(slots)
        trained = np.ones(sampling.tasks_per_step, bool)
        trained[slots] = False
        arrays = arrays._replace(valid=arrays.valid & trained[:, None])
        return Groups(trajectories, arrays, sampled, figures)

    def jobs(self, step: int, round_: int, slots: Sequence[int]) -> list[Job]:
        """The trajectories of a round: contiguous groups of one task each.

        Args:
          step: from 0.
          round_: of sampling, 0 for the first.
          slots: groups of the step to be sampled.
        """
        settings = self._settings
        indices = [task_index(step, round_, slot, settings) for slot in slots]
        tasks = [self._suite.task("train", index) for index in indices]
        return [
            Job(task, sample, settings.seed, "train", step)
            for task in tasks
            for sample in range(settings.sampling.group_size)
        ]

    def _metrics(self, rounds: Sequence[Trajectories]) -> dict[str, float | None]:
        gate = self._settings.reward.outcome_gate
        return group_metrics(rounds, self._settings.objective, outcome_gate=gate)

    def _run(self, step: int, round_: int, slots: Sequence[int]) -> list[Trajectory]:
        """The groups of these slots, each run and rewarded by one of the processes."""

        def own() -> list[Trajectory]:
            jobs = self.jobs(step, round_, hosts.share(slots))
            trajectories = self._collector.run(jobs, self._settings.sampling)
            # Before the gather, so that a slow function judges this process's share
            # alone.
            self._apply_reward_function(trajectories)
            return trajectories

        # Every process gets all groups, since each builds the same arrays from them.
        return list(itertools.chain.from_iterable(hosts.gather(own)))

    def _degenerate_slots(self, reward: np.ndarray, arrays: Trajectories) -> list[int]:
        """Slots of groups in which this reward [G, S] is the same for all members."""
        if not self._settings.sampling.drop_degenerate:
            return []
        is_degenerate = jax.device_get(degenerate(reward, arrays.valid))
        return np.flatnonzero(is_degenerate).tolist()

    def _apply_reward_function(self, trajectories: Sequence[Trajectory]) -> None:
        """Replaces task scores by those of the user's function, if there is one."""
        if self._reward_function is None:
            return
        counted = [t for t in trajectories if t.reward is not None]
        values = call_reward_function(self._reward_function, counted)
        settings = self._settings.reward
        source = f"config.reward.function = {settings.function!r}"
        for trajectory, value in zip(counted, values, strict=True):
            trajectory.reward = rescored(trajectory.reward, value, settings, source)
            task_reward = trajectory.reward.weighted["task"]
            # The function judges a whole trajectory, so its last turn earns all of it.
            trajectory.turn_reward = [0.0] * len(trajectory.turn_reward)
            trajectory.turn_reward[-1:] = [task_reward]


def without_efficiency(
    trajectories: Sequence[Trajectory], reward: np.ndarray
) -> np.ndarray:
    """The total rewards less what efficiency terms added to them.

    Args:
      trajectories: G * S of them, groups contiguous.
      reward: [G, S], their totals.

    Returns:
      [G, S].
    """
    # A failed trajectory has no reward, yet keeps its place in the array.
    weighted = [t.reward.weighted if t.reward else {} for t in trajectories]
    added = [sum(w.get(name, 0.0) for name in EFFICIENCY) for w in weighted]
    return reward - np.array(added, reward.dtype).reshape(reward.shape)


def _only(arrays: Trajectories, slots: Sequence[int]) -> Trajectories:
    """The same arrays with the groups of other slots marked invalid."""
    in_slots = np.zeros(len(arrays.valid), bool)
    in_slots[list(slots)] = True
    return arrays._replace(valid=arrays.valid & in_slots[:, None])
