"""Runs many episodes against one engine, whichever of them are ready.

Each episode owns an engine slot while it runs; when one ends, the next job takes the
slot over. Randomness is keyed by (run seed, purpose, step, task, sample, turn), so a
trajectory does not depend on what it was batched with.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence

import numpy as np

from mempo_jax.envs import EnvironmentFault, Episode, Status, Task
from mempo_jax.envs.reward import RewardError
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.deadline import HungCallError, run_all
from mempo_jax.rollout.engine import Engine, Generation, Request
from mempo_jax.rollout.segments import SegmentBuilder
from mempo_jax.rollout.trajectory import Trajectory

PURPOSES = ("train", "evaluate", "trace")
FAULTS = (EnvironmentFault, HungCallError, RewardError)


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


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How actions are drawn; temperature 0 is greedy."""

    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int


class _Run:
    """One episode under way, with its slot and its segments."""

    def __init__(self, job: Job, episode: Episode, slot: int, tok: Tokenizer) -> None:
        self.job, self.episode, self.slot = job, episode, slot
        self.builder = SegmentBuilder(tok)
        self.failure: str | None = None

    def finish(self, limit_s: float) -> Trajectory:
        """The environment is asked for its score and truth, each within the limit.

        What is kept is copied: an abandoned call may wake up and go on.
        """
        episode, reward = self.episode, None
        if self.failure is None:
            [reward] = run_all([episode.reward], limit_s)
            if isinstance(reward, Exception):
                self.fail(reward)
                reward = None
        # An environment that knows of no questions need not say so.
        asked = getattr(episode.env, "questions", tuple)
        truths = [episode.env.useful, asked]
        useful, questions = run_all(truths, limit_s)
        log = list(episode.bank.log)
        self.builder.mark_ops([(r.turn, r.token_span) for r in log])
        return Trajectory(
            task=self.job.task,
            sample=self.job.sample,
            status=episode.status if self.failure is None else Status.FAILED,
            failure=self.failure,
            goal=episode.env.goal,
            segments=self.builder.segments,
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
            tokens_total=self.builder.tokens_total,
            tokens_peak=self.builder.tokens_peak,
            seconds_recall=list(episode.recall_seconds),
        )

    def fail(self, error: Exception) -> None:
        """A fault of the environment costs this trajectory; others are raised."""
        if not isinstance(error, FAULTS):
            raise error
        self.failure = f"{type(error).__name__}: {error}"


class Collector:
    """See the module docstring.

    foresee: told, before the episodes of a turn run their ops, the (new, old) pairs
    that their writes are about to ask a judge; None where nobody wants to know.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        make_episode: Callable[[Job], Episode],
        step_timeout_s: float,
        foresee: Callable[[list[tuple[str, str]]], None] | None = None,
    ) -> None:
        self._engine, self._tokenizer = engine, tokenizer
        self._make_episode, self._limit = make_episode, step_timeout_s
        self._foresee = foresee
        self.seconds_engine = 0.0
        self.seconds_host = 0.0

    def run(
        self,
        jobs: Sequence[Job],
        decoding: Decoding,
        on_done: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> list[Trajectory]:
        """One trajectory per job, in the order of the jobs."""
        waiting = list(enumerate(jobs))[::-1]
        free = list(range(self._engine.slots))[::-1]
        live: dict[int, _Run] = {}
        done: dict[int, Trajectory] = {}
        while waiting or live:
            while waiting and free:
                at, job = waiting.pop()
                started = self._start(job, free.pop())
                if isinstance(started, _Run):
                    live[at] = started
                    continue
                slot, done[at] = started
                free.append(slot)
                on_done(done[at])
            self._turn(list(live.values()), decoding)
            for at in [a for a, run in live.items() if self._ended(run)]:
                run = live.pop(at)
                free.append(run.slot)
                done[at] = run.finish(self._limit)
                on_done(done[at])
        return [done[at] for at in range(len(jobs))]

    def _start(self, job: Job, slot: int) -> _Run | tuple[int, Trajectory]:
        [episode] = run_all([functools.partial(self._make_episode, job)], self._limit)
        if isinstance(episode, FAULTS):
            failure = f"{type(episode).__name__}: {episode}"
            return slot, failed_trajectory(job, failure)
        if isinstance(episode, Exception):
            raise episode
        return _Run(job, episode, slot, self._tokenizer)

    def _turn(self, runs: list[_Run], decoding: Decoding) -> None:
        """One turn of every live episode: observe, generate together, act."""
        began = time.perf_counter()
        requests, ready = [], []
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
            ready.append(run)
        if not ready:
            return
        asked = time.perf_counter()
        generations = self._engine.generate(
            requests,
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            top_k=decoding.top_k,
        )
        answered = time.perf_counter()
        self._act(ready, generations)
        self.seconds_engine += answered - asked
        self.seconds_host += asked - began + time.perf_counter() - answered

    def _act(self, runs: list[_Run], generations: Sequence[Generation]) -> None:
        """Runs each action's ops, then lets the environments move.

        Only these are under the time limit, and only their faults are theirs: the
        memory, its judge and its summaries are this program's own.
        """
        if self._foresee is not None:
            actions = zip(runs, generations, strict=True)
            asked = [run.episode.questions(made.text) for run, made in actions]
            self._foresee([pair for pairs in asked for pair in pairs])
        for run, made in zip(runs, generations, strict=True):
            run.builder.acted(made.tokens, made.log_probs, run.episode.turn)
            offsets = self._tokenizer.offsets(made.tokens)
            run.episode.decide(made.text, offsets, made.finish == "stop")
        calls = [run.episode.advance for run in runs]
        for run, result in zip(runs, run_all(calls, self._limit), strict=True):
            if isinstance(result, Exception):
                run.fail(result)

    @staticmethod
    def _ended(run: _Run) -> bool:
        return run.failure is not None or run.episode.done


def failed_trajectory(job: Job, failure: str) -> Trajectory:
    """Stands for an episode that could not even start; it never counts."""
    return Trajectory(
        task=job.task,
        sample=job.sample,
        status=Status.FAILED,
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
