"""Runs many episodes against one engine, advancing each as soon as its turn is sampled.

Each episode owns an engine slot while it runs; when one ends, the next job takes its
slot over. An episode whose turn has been sampled acts and submits its next turn while
the turns of others are still being sampled, and while the environments of others have
not answered yet. Randomness is keyed by (run seed, purpose, step, task, sample, turn),
so a trajectory does not depend on what it was batched with.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mempo_jax.envs import (
    EnvironmentFault,
    Episode,
    EpisodeStatus,
    Question,
    Reward,
    Task,
)
from mempo_jax.envs.base import described, shortened
from mempo_jax.envs.reward import RewardError, share
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.sampler import (
    Decoding,
    Generation,
    Request,
    Sampler,
    SamplingFault,
)
from mempo_jax.rollout.segments import SegmentBuilder
from mempo_jax.rollout.time_limits import (
    CallPool,
    Calls,
    HungCallError,
    InOrder,
    call_with_limit,
    nothing,
)
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
      workers: environments that may be called at the same time; 1: one after another,
        while nothing is sampled, which is fastest if they answer at once.

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
        workers: int = 1,
    ) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self.make_episode, self.limit_s = make_episode, step_timeout_s
        self.prefetch, self._workers = prefetch_verdicts, workers
        self.between: Callable[[], None] = nothing
        self.seconds_engine = 0.0
        self.seconds_host = 0.0

    def ask_between(self, ask: Callable[[], None]) -> None:
        """Sets what is called between two pieces of work, and while the engine or
        environments are waited for.

        Args:
          ask: called with nothing; what it raises ends ``run``.
        """
        self.between = self.engine.between = ask

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
        # One worker needs no pool: its threads would cost more than calls that answer
        # at once.
        calls: Calls = InOrder(self.limit_s)
        if self._workers > 1:
            calls = CallPool(self._workers, self.limit_s)
        try:
            return _Round(self, calls, jobs, decoding, on_done).run()
        finally:
            calls.close()
            self.engine.cancel()  # where an error left turns under way


class _Round:
    """One call of ``Collector.run``: episodes that start, are sampled, act and end.

    An episode is in one place at a time: in the engine, which samples its turn; in its
    environment, which starts it, answers its action or tells its truth; or here, ready
    to be submitted.
    """

    def __init__(
        self,
        collector: Collector,
        calls: Calls,
        jobs: Sequence[Job],
        decoding: Decoding,
        on_done: Callable[[Trajectory], None],
    ) -> None:
        self._collector, self._engine = collector, collector.engine
        self._calls, self._decoding, self._on_done = calls, decoding, on_done
        # Reversed, so that pop() takes the first job and the lowest slot.
        self._waiting = list(enumerate(jobs))[::-1]
        self._free = list(range(self._engine.slots))[::-1]
        self._starting: dict[int, tuple[Job, int]] = {}  # number of job -> it, slot
        self._running: dict[int, _Run] = {}
        self._done: dict[int, Trajectory] = {}

    def run(self) -> list[Trajectory]:
        """Runs all jobs to their end."""
        while self._waiting or self._starting or self._running:
            self._collector.between()
            while self._waiting and self._free:
                self._start()
                self._settle()  # one that cannot start gives its slot back
            # All that can go on is submitted before waiting, so that the slots stay
            # busy.
            self._submit([run for run in self._running.values() if run.ready])
            if any(run.sampling for run in self._running.values()):
                self._act(*self._wait())
            self._settle()
        return [self._done[number] for number in range(len(self._done))]

    def _start(self) -> None:
        """Starts an episode in each free slot."""
        while self._waiting and self._free:
            number, job = self._waiting.pop()
            self._starting[number] = job, self._free.pop()
            make = functools.partial(self._collector.make_episode, job)
            self._calls.start(number, make)

    def _submit(self, runs: list[_Run]) -> None:
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
                Request(run.slot, list(context), key, self._decoding.max_new_tokens)
            )
            run.sampling = True
        submitted = time.perf_counter()
        self._engine.submit(
            requests,
            temperature=self._decoding.temperature,
            top_p=self._decoding.top_p,
            top_k=self._decoding.top_k,
        )
        self._collector.seconds_host += submitted - began
        self._collector.seconds_engine += time.perf_counter() - submitted

    def _wait(self) -> tuple[list[_Run], list[Generation | SamplingFault]]:
        """Waits for turns that have been sampled, or for environments to answer."""
        began = time.perf_counter()
        # While environments are called, it also returns as soon as one has answered.
        until = (self._calls.ready,) if self._calls else ()
        ended = self._engine.wait(*until)
        self._collector.seconds_engine += time.perf_counter() - began
        # The engine knows slots alone; whose turn it was is known here.
        by_slot = {run.slot: run for run in self._running.values()}
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
        if self._collector.prefetch is not None:
            pairs_by_episode = [
                run.episode.questions(action.text) for run, action in actions
            ]
            pairs = [pair for pairs in pairs_by_episode for pair in pairs]
            self._collector.prefetch(pairs)
        for run, action in actions:
            run.builder.acted(action.tokens, action.log_probs, run.episode.turn)
            if action.finish == "length":
                # The action was cut by its token limit, which the records of a run
                # report.
                run.cut_turns.append(run.episode.turn)
            offsets = self._collector.tokenizer.offsets(action.tokens)
            run.episode.decide(action.text, offsets, action.finish == "stop")
            run.calling = True
            self._calls.start(run.number, run.episode.advance)
        self._collector.seconds_host += time.perf_counter() - began

    def _settle(self) -> None:
        """Takes what environments have answered, until there is something to sample."""
        began = time.perf_counter()
        while True:
            self._end()
            if not self._calls:
                break
            busy = any(run.ready or run.sampling for run in self._running.values())
            between = self._collector.between
            answers = self._calls.take(between, block=not busy)
            if not answers:
                break
            for number, answer in answers:
                self._answered(number, answer)
        self._collector.seconds_host += time.perf_counter() - began

    def _end(self) -> None:
        """Asks the environments of episodes that have ended for their truth."""
        for run in self._running.values():
            if run.ended and not run.calling and not run.ending:
                run.ending = run.calling = True
                ask = functools.partial(
                    truth_of, run.episode, run.failure, self._collector.limit_s
                )
                # Not limited as a whole: ``truth_of`` has a limit for each method that
                # it asks.
                self._calls.start(run.number, ask, limited=False)

    def _answered(self, number: int, answer: Any) -> None:
        """Goes on with an episode whose environment has answered or failed."""
        if number in self._starting:
            job, slot = self._starting.pop(number)
            # An environment that cannot start costs its trajectory, and gives the slot
            # back.
            if isinstance(answer, Exception):
                self._over(number, slot, failed_trajectory(job, fault(answer)))
            else:
                tokenizer = self._collector.tokenizer
                self._running[number] = _Run(number, job, answer, slot, tokenizer)
            return
        run = self._running[number]
        run.calling = False
        if not run.ending:
            if isinstance(answer, Exception):
                run.fail(answer)
            return
        # ``truth_of`` catches what the environment raises, so this is a fault of ours.
        if isinstance(answer, Exception):
            raise answer
        del self._running[number]
        self._over(number, run.slot, run.finish(answer))

    def _over(self, number: int, slot: int, trajectory: Trajectory) -> None:
        self._free.append(slot)
        self._done[number] = trajectory
        self._on_done(trajectory)


class _Run:
    """One episode that is being run, with its slot and its segments.

    Attributes:
      sampling: whether the engine samples a turn of it.
      calling: whether a call of its environment is under way.
      ending: whether it has ended, and its truth was asked for.
    """

    def __init__(
        self, number: int, job: Job, episode: Episode, slot: int, tok: Tokenizer
    ) -> None:
        self.number, self.job, self.episode, self.slot = number, job, episode, slot
        self.builder = SegmentBuilder(tok)
        self.sampling = self.calling = self.ending = False
        self.failure: str | None = None
        self.cut_turns: list[int] = []

    @property
    def ended(self) -> bool:
        """Whether it has no further turn."""
        # While a call is under way the episode may change at any moment.
        return not self.calling and (self.failure is not None or self.episode.done)

    @property
    def ready(self) -> bool:
        """Whether its next turn can be sampled."""
        return not (self.sampling or self.calling or self.ended)

    def finish(self, truth: Truth) -> Trajectory:
        """Ends the run as a trajectory."""
        job = self.job
        trajectory = finished(job.task, job.sample, self.episode, self.builder, truth)
        return dataclasses.replace(trajectory, cut_turns=tuple(self.cut_turns))

    def fail(self, error: Exception) -> None:
        """Takes note of a fault; errors that are no faults are raised."""
        self.failure = fault(error)


class Truth(NamedTuple):
    """What an environment says of an episode that has ended.

    Attributes:
      failure: why there is no reward; None if there is one.
      reward: None after a failure.
      useful, questions, question_scores: see ``Trajectory``; empty if they are unknown.
    """

    failure: str | None
    reward: Reward | None
    useful: frozenset[int]
    questions: tuple[Question, ...]
    question_scores: tuple[float, ...]


def truth_of(episode: Episode, failure: str | None, limit_s: float) -> Truth:
    """Asks the environment of an episode for its score and its truth.

    Args:
      episode: the ended episode.
      failure: why the episode could not end; None if it did.
      limit_s: seconds for each call of the environment.
    """
    reward = None
    if failure is None:
        [reward] = call_with_limit([episode.reward], limit_s)
        if isinstance(reward, Exception):
            failure, reward = fault(reward), None
    # ``questions`` and ``question_scores`` are optional for environments. To look them
    # up is part of the call: a property may fail, or hang.
    queries = [
        lambda: episode.env.useful(),
        lambda: getattr(episode.env, "questions", tuple)(),
        lambda: getattr(episode.env, "question_scores", tuple)(),
    ]
    useful, questions, scores = call_with_limit(queries, limit_s)
    # Truth that cannot be computed costs measurements, never the trajectory.
    return Truth(
        failure,
        reward,
        _checked(useful, "useful()", _useful, frozenset()),
        _checked(questions, "questions()", _questions, ()),
        _checked(scores, "question_scores()", _scores, ()),
    )


def _checked(value: Any, method: str, check: Callable[[Any], Any], nothing: Any) -> Any:
    """What a method of an environment returned, if it is what it should be.

    Otherwise ``nothing``, and a warning, which comes once for each kind of fault.
    """
    try:
        if isinstance(value, Exception):
            raise value
        return check(value)
    except Exception as error:
        kind = f"the environment's {method}: {described(error)}"
        warnings.warn(f"{kind}; it is measured as if it were unknown", stacklevel=2)
        return nothing


def _useful(value: Any) -> frozenset[int]:
    if isinstance(value, set | frozenset | list | tuple | range):
        numbers = [operator.index(each) for each in value]
        if not any(isinstance(each, bool) for each in value):
            return frozenset(numbers)
    raise TypeError(f"expected numbers of observations, got {shortened(value)}")


def _questions(value: Any) -> tuple[Question, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"expected a tuple of Question, got {shortened(value)}")
    for each in value:
        if not isinstance(each, Question):
            raise TypeError(f"expected a Question, got {shortened(each)}")
    return tuple(value)


def _scores(value: Any) -> tuple[float, ...]:
    if isinstance(value, str | bytes | Mapping):
        raise TypeError(f"expected a tuple of scores, got {shortened(value)}")
    return tuple(share(each, "a score") for each in value)


def finished(
    task: Task, sample: int, episode: Episode, builder: SegmentBuilder, truth: Truth
) -> Trajectory:
    """Makes a trajectory from an episode that has ended, however its actions were made.

    Everything is copied, since an abandoned call may wake up and go on.

    Args:
      task: what was run.
      sample: number of the run within its group.
      episode: the ended episode.
      builder: its segments.
      truth: what its environment said, from ``truth_of``.
    """
    log = list(episode.bank.log)
    # Only now are all ops known, with the tokens that spelled them.
    builder.mark_ops([(r.turn, r.token_span) for r in log])
    failed = truth.failure is not None
    return Trajectory(
        task=task,
        sample=sample,
        status=EpisodeStatus.FAILED if failed else episode.status,
        failure=truth.failure,
        goal=episode.goal,
        segments=builder.segments,
        log=log,
        observations=list(episode.observations),
        actions=list(episode.actions),
        answers=list(episode.answers),
        turn_reward=list(episode.turn_reward),
        turn_observation=list(episode.turn_observation),
        useful=truth.useful,
        questions=truth.questions,
        reward=truth.reward,
        bank_size=len(episode.bank.active),
        rebuilds=episode.rebuilds,
        tokens_total=builder.tokens_total,
        tokens_peak=builder.tokens_peak,
        seconds_recall=list(episode.recall_seconds),
        question_scores=truth.question_scores,
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
