"""Suites whose tasks are a seed each, among them those of a user's own environment.

``config.env.name = "package.module:Name"`` names a class, or a function without
arguments, that gives an ``Environment``. Beyond that protocol it may have

``expert(seen, rng)``  a method that demonstrates the task: the text of one turn, from
                       what the policy sees (a ``Situation``)
``write_rate``         the share of the expert's writes that demonstrations keep, 0 to 1
``moves``              texts that demonstrations choose from, if there is no expert

Its methods may be coroutines (``async def``). They run in one event loop, in a thread
of its own, whoever calls them, and are cancelled if they take too long.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import importlib
import inspect
import math
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mempo_jax.envs.base import (
    Environment,
    ScriptedPolicy,
    Situation,
    Task,
    derived_seed,
    described,
)
from mempo_jax.envs.own_experts import UNKNOWN, WRITE_RATE, CheckedExpert, GenericExpert
from mempo_jax.envs.tools import AWAKE, BEAT_S
from mempo_jax.memory import BankConfig
from mempo_jax.settings import ConfigError

SPLITS = ("train", "test")
_LOOP_LOCK = threading.Lock()
WORDS_OF_TASKS = 16  # tasks whose texts give the vocabulary
MAX_TURNS = 64  # turns that each of these tasks is watched, without a move
FEWEST_FAULTS = 4  # failed tasks that can end a run before its training
MAX_NOTE_WORDS = 24  # words of a note that FormExpert writes
# The vocabulary of a user's own environment is complete after QUIET_TASKS tasks without
# a new word: 64 in a row miss a word of an eighth of the tasks once in 5,000 times.
QUIET_TASKS, MOST_TASKS = 64, 512


def own_suite(
    path: str,
    seed: int,
    limits: BankConfig | None = None,
    limit_s: float | None = None,
    guard: Callable[[Environment], Environment] = lambda env: env,
) -> OwnSuite:
    """Returns the suite of ``package.module:Name``.

    Args:
      path: names a class, or a function without arguments, that gives an
        ``Environment``.
      seed: seed of the run.
      limits: limits of a turn; None for those of a bank with its defaults.
      limit_s: see ``AwaitedEnvironment``.
      guard: see ``OwnSuite``.

    Raises:
      ConfigError: there is no such thing, or what it gives is no Environment.
    """
    module, _, name = path.partition(":")
    field = f"config.env.name = {path!r}"
    try:
        make: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{field}: {error}") from error
    except Exception as error:  # the user's module may fail in any way
        raise ConfigError(
            f"{field}: it cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(make):
        raise ConfigError(
            f"{field}: expected a class or a function that gives an Environment, got "
            f"{make!r}"
        )
    try:
        env = make()
    except Exception as error:  # foreign code may raise anything
        raise ConfigError(
            f"{field}: expected to make an Environment by calling it without "
            f"arguments, got {type(error).__name__}: {error}"
        ) from error
    wanted = ("goal", "reset", "step", "score", "useful")
    missing = [each for each in wanted if not hasattr(env, each)]
    if missing:
        raise ConfigError(
            f"{field}: expected an Environment (mempo_jax.envs.Environment), "
            f"{type(env).__name__} lacks {', '.join(missing)}"
        )
    return OwnSuite(make, path, seed, limits or BankConfig(), limit_s, guard)


class SeededSuite:
    """Tasks of one environment; the splits differ in their seeds.

    Args:
      name: name of the suite.
      make: makes an environment for a split.
      seed: seed of the run.
      key: what distinguishes this suite from others of its name, such as the game.
      moves: texts that demonstrations choose from.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[str], Environment],
        seed: int,
        *,
        key: str = "",
        moves: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self._make, self._seed, self._key, self._moves = make, seed, key, moves

    def task(self, split: str, index: int) -> Task:
        """Returns task ``index`` of ``split``.

        Raises:
          ValueError: no such split, or a negative index.
        """
        if split not in SPLITS or index < 0:
            raise ValueError(
                f"{self.name} task: expected split train or test and index >= 0, got "
                f"{split!r} and {index}"
            )
        seed = derived_seed(self.name, self._key, split, index, self._seed)
        return Task(self.name, split, index, seed)

    def size(self, split: str) -> int | None:
        """Returns None: there are as many tasks as seeds, in each ``split``."""
        return None

    def make(self, task: Task) -> Environment:
        """Returns a new environment for the split of ``task``."""
        return self._make(task.split)

    def vocabulary(self) -> list[str]:
        """Returns the words that the first tasks show if nobody makes a move."""
        texts = [*self._moves]
        for index in range(WORDS_OF_TASKS):
            task = self.task("train", index)
            texts += self._texts(self.make(task), task.seed)
        return sorted({word for text in texts for word in re.findall(r"\w+", text)})

    def expert(self, write_rate: float | None = None) -> ScriptedPolicy:
        """Returns a ``FormExpert``, with ``write_rate`` or the default one."""
        rate = WRITE_RATE if write_rate is None else write_rate
        return FormExpert(self._moves, rate)

    def _texts(self, env: Environment, seed: int) -> Iterator[str]:
        """Yields all texts of one task in which nobody makes a move."""
        yield env.reset(seed)
        yield env.goal
        for _ in range(MAX_TURNS):
            result = env.step("")
            yield result.observation
            if result.done:
                return


class OwnSuite(SeededSuite):
    """Tasks of a user's own environment, with its expert or the generic one.

    Args:
      make: makes the environment.
      path: "package.module:Name", as in ``config.env.name``.
      seed: seed of the run.
      limits: limits of a turn, which the texts of the expert must keep.
      limit_s: see ``AwaitedEnvironment``.
      guard: gives an environment whose calls cannot hang; see ``guarded``.

    Raises:
      ConfigError: ``moves``, ``expert`` or ``write_rate`` is not what it should be.
    """

    def __init__(
        self,
        make: Callable[[], Environment],
        path: str,
        seed: int,
        limits: BankConfig,
        limit_s: float | None = None,
        guard: Callable[[Environment], Environment] = lambda env: env,
    ) -> None:
        self._field, self._limits = f"config.env.name = {path!r}", limits
        self._guard = guard
        # An instance that never starts a task: its expert cannot look up what it should
        # remember.
        never_reset: Any = make()
        moves = getattr(never_reset, "moves", ())
        if isinstance(moves, str):  # each letter would be a move
            raise self._fault(f"expected moves as a tuple of texts, got {moves!r}")
        self._own_expert = getattr(never_reset, "expert", None)
        if self._own_expert is not None and not callable(self._own_expert):
            raise self._fault(
                f"expected expert as a method, expert(seen, rng), got "
                f"{self._own_expert!r}"
            )
        self._write_rate = getattr(never_reset, "write_rate", WRITE_RATE)
        numeric = isinstance(self._write_rate, int | float)
        if not numeric or not 0 <= self._write_rate <= 1:
            raise self._fault(
                f"expected write_rate as a number from 0 to 1, got {self._write_rate!r}"
            )
        name = path.partition(":")[2]
        awaited = any(map(inspect.iscoroutinefunction, _methods(never_reset)))

        def made(split: str) -> Environment:
            return AwaitedEnvironment(make(), limit_s) if awaited else make()

        super().__init__(name, made, seed, key=path, moves=tuple(moves))

    @property
    def has_expert(self) -> bool:
        """Whether the environment brings an expert of its own."""
        return self._own_expert is not None

    def guarded(self, task: Task) -> Environment:
        """Returns an environment of ``task`` whose calls have a time limit each.

        Training has limits of its own; this is for what comes before it.
        """
        return self._guard(self.make(task))

    def faults(self, what: str) -> TaskFaults:
        """Returns a count of tasks that fail; ``what`` is done with them."""
        return TaskFaults(self._field, what)

    def expert(self, write_rate: float | None = None) -> ScriptedPolicy:
        """Returns the own expert or a generic one, writing with ``write_rate``."""
        rate = self._write_rate if write_rate is None else write_rate
        if self._own_expert is not None:
            return CheckedExpert(self._own_expert, self._field, self._limits, rate)
        endings, tag = self._endings(), self._answer_tag()
        return GenericExpert(self._moves, endings=endings, tag=tag, write_rate=rate)

    def vocabulary(self) -> list[str]:
        """Returns the words of ``moves``, and of tasks until no new ones come up."""
        texts = [*self._moves, UNKNOWN]
        known = {word for text in texts for word in re.findall(r"\w+", text)}
        quiet = 0
        for shown in self._watched(MOST_TASKS, "the words of tasks were gathered"):
            new = {word for text in shown for word in re.findall(r"\w+", text)} - known
            known |= new
            quiet = 0 if new else quiet + 1
            if quiet == QUIET_TASKS:
                break
        return sorted(known)

    def _endings(self) -> frozenset[str]:
        """Returns observations that ask by being the last, though they contain no "?".

        These are the last ones before the end of the first tasks, if no text asks with
        a "?".
        """
        last = set()
        for first, _, *others in self._watched(WORDS_OF_TASKS, "tasks were watched"):
            seen = [first, *others]
            ended = len(seen) <= MAX_TURNS
            shown = seen[:-1] if ended else seen
            if any("?" in text for text in shown):
                return frozenset()
            last |= set(shown[-1:] if ended else ())
        return frozenset(last)

    def _answer_tag(self) -> str:
        """Returns the op that answers the questions, if the environment knows some."""
        faults = self.faults("tasks were begun")
        for index in range(WORDS_OF_TASKS):
            task = self.task("train", index)
            env = self.guarded(task)
            try:
                env.reset(task.seed)
                questions = env.questions() if hasattr(env, "questions") else ()
                kinds = {question.kind for question in questions}
            except Exception as error:  # foreign code may raise anything
                faults.add(f"seed {task.seed}: {described(error)}")
                continue
            return kinds.pop() if len(kinds) == 1 else "act"
        raise faults.error()

    def _watched(self, count: int, what: str) -> Iterator[list[str]]:
        """Yields the texts of the first tasks in which nobody makes a move.

        Tasks that fail are left out, and counted. ``what`` was done, for messages.
        """
        faults = self.faults(what)
        try:
            for index in range(count):
                task = self.task("train", index)
                faults.tried += 1
                try:
                    texts = [*self._texts(self.guarded(task), task.seed)]
                except Exception as error:  # foreign code may raise anything
                    faults.add(
                        "a task without a move (step('') in each turn, seed "
                        f"{task.seed}) raised {described(error)}"
                    )
                else:
                    yield texts
        finally:  # also where the caller has seen enough
            faults.warn()

    def _texts(self, env: Environment, seed: int) -> Iterator[str]:
        for text in super()._texts(env, seed):
            if not isinstance(text, str):
                raise TypeError(f"expected a text (str), got {text!r}")
            yield text

    def _fault(self, what: str) -> ConfigError:
        return ConfigError(f"{self._field}: {what}")


class TaskFaults:
    """Counts tasks of an environment that failed before the training began.

    A task now and then may fail there as it may in training; if most do, the
    environment is at fault and the run ends.

    Args:
      field: begins the messages, the config's field and its value.
      what: was done when they failed, such as "tasks were watched".

    Attributes:
      tried: tasks that were tried, to be counted by the caller.
      count: those that failed.
    """

    def __init__(self, field: str, what: str) -> None:
        self._field, self._what, self._first = field, what, ""
        self.tried = self.count = 0
        self._ended = False

    def add(self, why: str) -> None:
        """Counts a task that failed.

        Args:
          why: how, for the message.

        Raises:
          ConfigError: most of the tasks failed.
        """
        self.count += 1
        self._first = self._first or why
        # Not at the first one: a task in eight that fails may well be the first.
        if self.count >= FEWEST_FAULTS and 2 * self.count > self.tried:
            raise self.error()

    def error(self) -> ConfigError:
        """Returns the error of a run that cannot begin, which needs no warning more."""
        self._ended = True
        return ConfigError(f"{self._field}: {self._told()}")

    def warn(self) -> None:
        """Warns of the tasks that failed, if any, and were left out."""
        if self.count and not self._ended:
            warnings.warn(f"{self._field}: {self._told()}, left out", stacklevel=2)

    def _told(self) -> str:
        first = f"the first: {self._first}" if self.count > 1 else self._first
        tried = max(self.tried, self.count)
        return f"{self.count} of {tried} failed while {self._what} ({first})"


class AwaitedEnvironment:
    """An environment whose coroutines are waited for, so that it can be called as any.

    Args:
      env: has at least one method that is a coroutine.
      limit_s: seconds after which a coroutine is cancelled, with a TimeoutError; None
        for no limit.
    """

    def __init__(self, env: Any, limit_s: float | None = None) -> None:
        self._env, self._limit = env, limit_s

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._env, name)
        if not inspect.iscoroutinefunction(value):
            return value

        @functools.wraps(value)
        def awaited(*args: Any, **named: Any) -> Any:
            call = value(*args, **named)
            future = asyncio.run_coroutine_threadsafe(call, _event_loop())
            end = math.inf if self._limit is None else AWAKE.now() + self._limit
            while not future.done() and (left := end - AWAKE.now()) > 0:
                # Not result(timeout): the coroutine may raise a TimeoutError itself.
                concurrent.futures.wait([future], min(left, BEAT_S))
            if not future.done():
                # Unlike a thread it can be ended, and the thread that waits here too.
                future.cancel()
                raise TimeoutError(
                    f"expected an answer within {self._limit} s, got none; see "
                    "config.env.step_timeout_s"
                )
            return future.result()

        return awaited


def _event_loop() -> asyncio.AbstractEventLoop:
    """The one loop of all coroutines, which runs for as long as the process."""
    # The cache alone would let threads that come at once make a loop each.
    with _LOOP_LOCK:
        return _started_event_loop()


@functools.cache
def _started_event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()

    def run() -> None:
        while True:
            # A coroutine that exits ends ``run_forever``, but those of other episodes
            # are still there.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()

    # A daemon, so that a coroutine that hangs for ever cannot keep the process alive.
    threading.Thread(target=run, daemon=True).start()
    return loop


def _methods(env: Any) -> list[Any]:
    names = ("reset", "step", "score", "useful", "questions", "question_scores")
    return [getattr(env, name) for name in names if hasattr(env, name)]


class FormExpert:
    """Notes what it sees with one probability, then makes one of ``moves`` at random.

    It knows nothing of the task, and shows the form of acting only.

    Args:
      moves: texts to choose an action from; may be empty.
      write_rate: probability of a note, 0 to 1.
    """

    def __init__(self, moves: tuple[str, ...], write_rate: float = WRITE_RATE) -> None:
        self._moves, self._write_rate = moves, write_rate

    def __call__(self, situation: Situation, rng: np.random.Generator) -> str:
        """Returns the text of one turn for ``situation``, drawn with ``rng``."""
        note = ""
        if rng.random() < self._write_rate:
            words = re.sub(r"[<>]", " ", situation.observation).split()
            note = f"<mem_write> {' '.join(words[:MAX_NOTE_WORDS])}</mem_write>"
        if not self._moves:
            return note
        return f"{note}<act> {self._moves[rng.integers(len(self._moves))]}</act>"
