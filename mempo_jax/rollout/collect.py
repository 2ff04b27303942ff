"""Runs many episodes against one engine, advancing each as soon as its turn is sampled.

Each episode owns an engine slot while it runs; when one ends, the next job takes its
slot over. An episode whose turn has been sampled acts and submits its next turn while
the turns of others are still being sampled. Randomness is keyed by (run seed, purpose,
step, task, sample, turn), so a trajectory does not depend on what it was batched with.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence

import numpy as np

from mempo_jax.envs import EnvironmentFault, Episode, EpisodeStatus, Task
from mempo_jax.envs.reward import RewardError
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.sampler import (
    Decoding,
    Generation,
    Request,
    Sampler,
    SamplingFault,
)
from mempo_jax.rollout.segments import SegmentBuilder
from mempo_jax.rollout.time_limits import HungCallError, call_with_limit, nothing
from mempo_jax.rollout.trajectory import Trajectory

# Errors that cost one trajectory; any other error is a bug of this program and is
# raised.
FAULTS = (EnvironmentFault, HungCallError, RewardError, SamplingFault)
# The position of each name enters the random keys: append new ones at the end.
PURPOSES = ("train", "evaluate", "trace")


@dataclasses.dataclass(frozen=True)
class Job:
    """One trajectory to run.

    Attributes:
      task: what to run.
      sample: number of the run within its group.
      seed: of the run.
      purpose: one of ``PURPOSES``.
      step: training step, or another number that keeps draws apart.
    """

    task: Task
    sample: int
    seed: int
    purpose: str
    step: int

    def turn_key(self, turn: int) -> np.ndarray:
        """Returns uint32 [2], the key of the draws of turn ``turn``."""
        words = (
            self.seed,
            PURPOSES.index(self.purpose),
            self.step,
            self.task.index,
            self.sample,
            turn,
        )
        return np.random.SeedSequence(words).generate_state(2, np.uint32)


class Collector:
    """Runs episodes on an engine, see the module's docstring.

    Args:
      engine: samples the turns.
      tokenizer: the policy's.
      make_episode: starts the episode of a job.
      step_timeout_s: seconds for each call of an environment.
      prefetch_verdicts: called with the (new, old) pairs that the writes of several
        episodes are about to ask a judge, before any of them runs its ops; None if no
        judge needs it.

    Attributes:
      engine: as above.
      seconds_engine: time spent in the engine so far.
      seconds_host: time spent in environments, memory and rendering so far.
    """

    def __init__(
        self,
        engine: Sampler,
        tokenizer: Tokenizer,
        make_episode: Callable[[Job], Episode],
        step_timeout_s: float,
        prefetch_verdicts: Callable[[list[tuple[str, str]]], None] | None = None,
    ) -> None:
        self.engine, self._tokenizer = engine, tokenizer
        self._make_episode, self._limit = make_episode, step_timeout_s
        self._prefetch = prefetch_verdicts
        self._ask_between: Callable[[], None] = nothing
        self.seconds_engine = 0.0
        self.seconds_host = 0.0

    def ask_between(self, ask: Callable[[], None]) -> None:
        """Sets what is called between two pieces of work, and while the engine or
        environments are waited for.

        Args:
          ask: called with nothing; what it raises ends ``run``.
        """
        self._ask_between = self.engine.between = ask

    def run(
        self,
        jobs: Sequence[Job],
        decoding: Decoding,
        on_done: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> list[Trajectory]:
        """Runs one trajectory per job.

        Args:
          jobs: what to run.
          decoding: how actions are drawn.
          on_done: called with each trajectory as soon as it has ended.

        Returns:
          Trajectories in the order of the jobs.
        """
        try:
            return self._run(jobs, decoding, on_done)
        finally:
            self.engine.cancel()  # where an error left turns under way

    def _run(self, jobs, decoding, on_done) -> list[Trajectory]:
        # Reversed, so that pop() takes the first job and the lowest slot.
        waiting = list(enumerate(jobs))[::-1]
        free = list(range(self.engine.slots))[::-1]
        running: dict[int, _Run] = {}
        done: dict[int, Trajectory] = {}
        while waiting or running:
            self._ask_between()
            while waiting and free:
                number, job = waiting.pop()
                started = self._start(job, free.pop())
                if isinstance(started, _Run):
                    running[number] = started
                    continue
                slot, done[number] = started
                free.append(slot)
                on_done(done[number])
            # All that can go on is submitted before waiting, so that the slots stay
            # busy.
            self._submit(
                [run for run in running.values() if not run.sampling], decoding
            )
            self._act(*self._wait(running))
            for number in [a for a, run in running.items() if self._ended(run)]:
                run = running.pop(number)
                free.append(run.slot)
                done[number] = run.finish(self._limit)
                on_done(done[number])
        return [done[number] for number in range(len(jobs))]

    def _start(self, job: Job, slot: int) -> _Run | tuple[int, Trajectory]:
        [episode] = call_with_limit(
            [functools.partial(self._make_episode, job)], self._limit
        )
        # An environment that cannot start costs its trajectory and gives the slot back.
        if isinstance(episode, FAULTS):
            failure = f"{type(episode).__name__}: {episode}"
            return slot, failed_trajectory(job, failure)
        if isinstance(episode, Exception):
            raise episode
        return _Run(job, episode, slot, self._tokenizer)

    def _submit(self, runs: list[_Run], decoding: Decoding) -> None:
        """Hands the contexts of episodes that wait for a turn to the engine."""
        began = time.perf_counter()
        requests = []
        for run in runs:
            view = run.episode.observe(run.builder.measure)
            # The episode has ended instead: its context had no room for another turn.
            if view is None:
                continue
            turn = run.episode.turn
            context = run.builder.show(view, turn)
            key = run.job.turn_key(turn)
            requests.append(
                # A copy: the segment goes on growing while the request is under way.
                Request(run.slot, list(context), key, decoding.max_new_tokens)
            )
            run.sampling = True
        submitted = time.perf_counter()
        self.engine.submit(
            requests,
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            top_k=decoding.top_k,
        )
        self.seconds_host += submitted - began
        self.seconds_engine += time.perf_counter() - submitted

    def _wait(
        self, live: dict[int, _Run]
    ) -> tuple[list[_Run], list[Generation | SamplingFault]]:
        """Waits for turns that have been sampled."""
        began = time.perf_counter()
        ended = self.engine.wait()
        self.seconds_engine += time.perf_counter() - began
        by_slot = {run.slot: run for run in live.values()}
        runs = [by_slot[request.slot] for request, _ in ended]
        for run in runs:
            run.sampling = False
        return runs, [result for _, result in ended]

    def _act(
        self, runs: Sequence[_Run], results: Sequence[Generation | SamplingFault]
    ) -> None:
        """Runs each action's ops, then lets the environments move.

        Only the environments are under the time limit, and an error of theirs costs one
        trajectory. Errors of the memory, its judge or its summaries are this program's
        own, and are raised.
        """
        began = time.perf_counter()
        actions: list[tuple[_Run, Generation]] = []
        for run, result in zip(runs, results, strict=True):
            if isinstance(result, SamplingFault):
                run.fail(result)
            else:
                actions.append((run, result))
        # One forward pass judges the pairs of all episodes, instead of one pass each.
        if self._prefetch is not None:
            pairs_by_episode = [
                run.episode.questions(action.text) for run, action in actions
            ]
            self._prefetch([pair for pairs in pairs_by_episode for pair in pairs])
        for run, action in actions:
            run.builder.acted(action.tokens, action.log_probs, run.episode.turn)
            if action.finish == "length":
                # The action was cut by its token limit, which the records of a run
                # report.
                run.cut_turns.append(run.episode.turn)
            offsets = self._tokenizer.offsets(action.tokens)
            run.episode.decide(action.text, offsets, action.finish == "stop")
        # In order and one at a time: environments need not be thread-safe.
        calls = [run.episode.advance for run, _ in actions]
        outcomes = call_with_limit(calls, self._limit, self._ask_between)
        for (run, _), result in zip(actions, outcomes, strict=True):
            if isinstance(result, Exception):
                run.fail(result)
        self.seconds_host += time.perf_counter() - began

    @staticmethod
    def _ended(run: _Run) -> bool:
        return run.failure is not None or run.episode.done


class _Run:
    """One episode that is being run, with its slot and its segments."""

    def __init__(self, job: Job, episode: Episode, slot: int, tok: Tokenizer) -> None:
        self.job, self.episode, self.slot = job, episode, slot
        self.builder = SegmentBuilder(tok)
        self.sampling = False  # a turn is under way
        self.failure: str | None = None
        self.cut_turns: list[int] = []

    def finish(self, limit_s: float) -> Trajectory:
        """Ends the run as a trajectory."""
        job = self.job
        trajectory = finished(
            job.task, job.sample, self.episode, self.builder, self.failure, limit_s
        )
        return dataclasses.replace(trajectory, cut_turns=tuple(self.cut_turns))

    def fail(self, error: Exception) -> None:
        """Takes note of a fault; errors that are no faults are raised."""
        self.failure = fault(error)


def finished(
    task: Task,
    sample: int,
    episode: Episode,
    builder: SegmentBuilder,
    failure: str | None,
    limit_s: float,
) -> Trajectory:
    """Makes a trajectory from an episode that has ended, however its actions were made.

    The environment computes its score and its truth, each within the time limit.
    Everything is copied, since an abandoned call may wake up and go on.

    Args:
      task: what was run.
      sample: number of the run within its group.
      episode: the ended episode.
      builder: its segments.
      failure: why the episode could not end; None if it did.
      limit_s: seconds for each call of the environment.
    """
    reward = None
    if failure is None:
        [reward] = call_with_limit([episode.reward], limit_s)
        if isinstance(reward, Exception):
            failure, reward = fault(reward), None
    # ``questions`` and ``question_scores`` are optional for environments.
    questions_of = getattr(episode.env, "questions", tuple)
    scores_of = getattr(episode.env, "question_scores", tuple)
    queries = [episode.env.useful, questions_of, scores_of]
    useful, questions, scores = call_with_limit(queries, limit_s)
    log = list(episode.bank.log)
    # Only now are all ops known, with the tokens that spelled them.
    builder.mark_ops([(r.turn, r.token_span) for r in log])
    return Trajectory(
        task=task,
        sample=sample,
        status=episode.status if failure is None else EpisodeStatus.FAILED,
        failure=failure,
        goal=episode.env.goal,
        segments=builder.segments,
        log=log,
        observations=list(episode.observations),
        actions=list(episode.actions),
        answers=list(episode.answers),
        turn_reward=list(episode.turn_reward),
        turn_observation=list(episode.turn_observation),
        # Truth that cannot be computed costs measurements, never the trajectory.
        useful=frozenset() if isinstance(useful, Exception) else useful,
        questions=() if isinstance(questions, Exception) else questions,
        reward=reward,
        bank_size=len(episode.bank.active),
        rebuilds=episode.rebuilds,
        tokens_total=builder.tokens_total,
        tokens_peak=builder.tokens_peak,
        seconds_recall=list(episode.recall_seconds),
        question_scores=() if isinstance(scores, Exception) else scores,
        hygiene=episode.bank.hygiene(own=True, probes=0),
    )


def failed(task: Task, sample: int, failure: str) -> Trajectory:
    """Makes a trajectory for an episode that could not even start; it never counts.

    Args:
      task: what was to be run.
      sample: number of the run within its group.
      failure: why it could not start.
    """
    return Trajectory(
        task=task,
        sample=sample,
        status=EpisodeStatus.FAILED,
        failure=failure,
        goal="",
        segments=[],
        log=[],
        observations=[],
        actions=[],
        answers=[],
        turn_reward=[],
        turn_observation=[],
        useful=frozenset(),
        questions=(),
        reward=None,
        bank_size=0,
        rebuilds=0,
        tokens_total=0,
        tokens_peak=0,
        seconds_recall=[],
    )


def failed_trajectory(job: Job, failure: str) -> Trajectory:
    """Makes a trajectory for a job that could not even start; it never counts.

    Args:
      job: the job.
      failure: why it could not start.
    """
    return failed(job.task, job.sample, failure)


def fault(error: Exception) -> str:
    """Describes a fault of an environment or of one request for its trajectory.

    Args:
      error: what was raised. Errors that are no faults are raised again.
    """
    if not isinstance(error, FAULTS):
        raise error
    return f"{type(error).__name__}: {error}"
