"""Runs many episodes against one engine, whichever of them are ready.

Each episode owns an engine slot while it runs; when one ends, the next job takes the
slot over. An episode whose turn has been sampled acts and asks again while the turns of
others are still being sampled. Randomness is keyed by (run seed, purpose, step, task,
sample, turn), so a trajectory does not depend on what it was batched with.

A trajectory from an episode that has ended, however its actions were made.
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

FAULTS = (EnvironmentFault, HungCallError, RewardError, SamplingFault)


def fault(error: Exception) -> str:
    """What a trajectory says of a fault of its environment or of one request.

    Other errors are this program's own: they are raised.
    """
    if not isinstance(error, FAULTS):
        raise error
    return f"{type(error).__name__}: {error}"


def finished(
    task: Task,
    sample: int,
    episode: Episode,
    builder: SegmentBuilder,
    failure: str | None,
    limit_s: float,
) -> Trajectory:
    """The environment is asked for its score and truth, each within the limit.

    What is kept is copied: an abandoned call may wake up and go on. failure: why the
    episode could not end; None where it did.
    """
    reward = None
    if failure is None:
        [reward] = call_with_limit([episode.reward], limit_s)
        if isinstance(reward, Exception):
            failure, reward = fault(reward), None
    # An environment that knows of no questions need not say so.
    asked = getattr(episode.env, "questions", tuple)
    scored = getattr(episode.env, "question_scores", tuple)
    truths = [episode.env.useful, asked, scored]
    useful, questions, scores = call_with_limit(truths, limit_s)
    log = list(episode.bank.log)
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
    """Stands for an episode that could not even start; it never counts."""
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


PURPOSES = ("train", "evaluate", "trace")


@dataclasses.dataclass(frozen=True)
class Job:
    """One trajectory to run; ``seed`` and ``purpose`` and ``step`` key its draws."""

    task: Task
    sample: int
    seed: int
    purpose: str
    step: int

    def turn_key(self, turn: int) -> np.ndarray:
        """uint32 [2], the key of one turn's draws."""
        words = (
            self.seed,
            PURPOSES.index(self.purpose),
            self.step,
            self.task.index,
            self.sample,
            turn,
        )
        return np.random.SeedSequence(words).generate_state(2, np.uint32)


class _Run:
    """One episode under way, with its slot and its segments."""

    def __init__(self, job: Job, episode: Episode, slot: int, tok: Tokenizer) -> None:
        self.job, self.episode, self.slot = job, episode, slot
        self.builder = SegmentBuilder(tok)
        self.sampling = False  # a turn is under way
        self.failure: str | None = None
        self.cut_turns: list[int] = []

    def finish(self, limit_s: float) -> Trajectory:
        job = self.job
        made = finished(
            job.task, job.sample, self.episode, self.builder, self.failure, limit_s
        )
        return dataclasses.replace(made, cut_turns=tuple(self.cut_turns))

    def fail(self, error: Exception) -> None:
        """A fault of the environment or of one request costs this trajectory; others
        are raised."""
        self.failure = fault(error)


class Collector:
    """See the module docstring.

    foresee: told, before episodes that act together run their ops, the (new, old)
    pairs that their writes are about to ask a judge; None where nobody wants to know.
    """

    def __init__(
        self,
        engine: Sampler,
        tokenizer: Tokenizer,
        make_episode: Callable[[Job], Episode],
        step_timeout_s: float,
        prefetch_verdicts: Callable[[list[tuple[str, str]]], None] | None = None,
    ) -> None:
        self._engine, self._tokenizer = engine, tokenizer
        self._make_episode, self._limit = make_episode, step_timeout_s
        self._prefetch = prefetch_verdicts
        self._ask_between: Callable[[], None] = nothing
        self.seconds_engine = 0.0
        self.seconds_host = 0.0

    def ask_between(self, ask: Callable[[], None]) -> None:
        """Calls ``ask`` between two pieces of work and while others are waited for;
        what it raises ends ``run``."""
        self._ask_between = self._engine.between = ask

    def run(
        self,
        jobs: Sequence[Job],
        decoding: Decoding,
        on_done: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> list[Trajectory]:
        """One trajectory per job, in the order of the jobs."""
        try:
            return self._run(jobs, decoding, on_done)
        finally:
            self._engine.cancel()  # where an error left turns under way

    def _run(self, jobs, decoding, on_done) -> list[Trajectory]:
        waiting = list(enumerate(jobs))[::-1]
        free = list(range(self._engine.slots))[::-1]
        live: dict[int, _Run] = {}
        done: dict[int, Trajectory] = {}
        while waiting or live:
            self._ask_between()
            while waiting and free:
                at, job = waiting.pop()
                started = self._start(job, free.pop())
                if isinstance(started, _Run):
                    live[at] = started
                    continue
                slot, done[at] = started
                free.append(slot)
                on_done(done[at])
            self._ask([run for run in live.values() if not run.sampling], decoding)
            self._act(*self._sampled(live))
            for at in [a for a, run in live.items() if self._ended(run)]:
                run = live.pop(at)
                free.append(run.slot)
                done[at] = run.finish(self._limit)
                on_done(done[at])
        return [done[at] for at in range(len(jobs))]

    def _start(self, job: Job, slot: int) -> _Run | tuple[int, Trajectory]:
        [episode] = call_with_limit(
            [functools.partial(self._make_episode, job)], self._limit
        )
        if isinstance(episode, FAULTS):
            failure = f"{type(episode).__name__}: {episode}"
            return slot, failed_trajectory(job, failure)
        if isinstance(episode, Exception):
            raise episode
        return _Run(job, episode, slot, self._tokenizer)

    def _ask(self, runs: list[_Run], decoding: Decoding) -> None:
        """Hands the contexts of episodes that wait for a turn to the engine."""
        began = time.perf_counter()
        requests = []
        for run in runs:
            view = run.episode.observe(run.builder.measure)
            if view is None:
                continue
            turn = run.episode.turn
            context = run.builder.show(view, turn)
            key = run.job.turn_key(turn)
            requests.append(
                Request(run.slot, list(context), key, decoding.max_new_tokens)
            )
            run.sampling = True
        asked = time.perf_counter()
        self._engine.submit(
            requests,
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            top_k=decoding.top_k,
        )
        self.seconds_host += asked - began
        self.seconds_engine += time.perf_counter() - asked

    def _sampled(
        self, live: dict[int, _Run]
    ) -> tuple[list[_Run], list[Generation | SamplingFault]]:
        """Waits for turns that have been sampled."""
        began = time.perf_counter()
        ended = self._engine.wait()
        self.seconds_engine += time.perf_counter() - began
        by_slot = {run.slot: run for run in live.values()}
        runs = [by_slot[request.slot] for request, _ in ended]
        for run in runs:
            run.sampling = False
        return runs, [made for _, made in ended]

    def _act(
        self, runs: Sequence[_Run], made: Sequence[Generation | SamplingFault]
    ) -> None:
        """Runs each action's ops, then lets the environments move.

        Only these are under the time limit, and only their faults are theirs: the
        memory, its judge and its summaries are this program's own.
        """
        began = time.perf_counter()
        actions: list[tuple[_Run, Generation]] = []
        for run, result in zip(runs, made, strict=True):
            if isinstance(result, SamplingFault):
                run.fail(result)
            else:
                actions.append((run, result))
        if self._prefetch is not None:
            asked = [run.episode.questions(action.text) for run, action in actions]
            self._prefetch([pair for pairs in asked for pair in pairs])
        for run, action in actions:
            run.builder.acted(action.tokens, action.log_probs, run.episode.turn)
            if action.finish == "length":
                run.cut_turns.append(run.episode.turn)
            offsets = self._tokenizer.offsets(action.tokens)
            run.episode.decide(action.text, offsets, action.finish == "stop")
        calls = [run.episode.advance for run, _ in actions]
        results = call_with_limit(calls, self._limit, self._ask_between)
        for (run, _), result in zip(actions, results, strict=True):
            if isinstance(result, Exception):
                run.fail(result)
        self.seconds_host += time.perf_counter() - began

    @staticmethod
    def _ended(run: _Run) -> bool:
        return run.failure is not None or run.episode.done


def failed_trajectory(job: Job, failure: str) -> Trajectory:
    """Stands for an episode that could not even start; it never counts."""
    return failed(job.task, job.sample, failure)
