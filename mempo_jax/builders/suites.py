"""The tasks of a run, and the episodes that are run on them."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mempo_jax.builders import memory_models
from mempo_jax.builders.memory_models import MemoryModels
from mempo_jax.config import EnvConfig, RunConfig
from mempo_jax.envs import (
    EnvironmentFault,
    Episode,
    ScriptedPolicy,
    Task,
    TaskSuite,
    check_repeatable,
    derived_seed,
)
from mempo_jax.envs.adapters import ADAPTERS, AdapterSuite
from mempo_jax.envs.babi import BabiSuite
from mempo_jax.envs.base import described
from mempo_jax.envs.context import with_examples
from mempo_jax.envs.dialogue import DialogueSuite
from mempo_jax.envs.experts import RollingExpert
from mempo_jax.envs.factbook import FactbookSource, read_package
from mempo_jax.envs.ledger import LedgerSuite
from mempo_jax.envs.multi_qa import MultiQaSuite
from mempo_jax.envs.own_environments import (
    OwnSuite,
    TaskFaults,
    own_suite,
)
from mempo_jax.envs.qa_data import FileSource, find_files
from mempo_jax.memory import Bank
from mempo_jax.rollout.time_limits import LimitedEnvironment
from mempo_jax.settings import ConfigError

START_TASKS = 16  # of which two must start, and start the same way twice


def make_suite(settings: RunConfig) -> TaskSuite:
    """The task suite of the config; the first tasks are checked to be repeatable.

    Args:
      settings: of the run.

    Raises:
      ConfigError: the suite cannot be made, or does not fit into the run's limits.
    """
    env = settings.env
    if env.name == "ledger":
        suite: TaskSuite = LedgerSuite(env.ledger, settings.seed)
        most = env.ledger.max_turns
        # One turn more than observations: a recall before the answer takes a turn.
        if most + 1 > settings.sampling.max_turns:
            raise ConfigError(
                f"config.sampling.max_turns: expected at least {most + 1} (env.ledger."
                f"max_turns + 1), got {settings.sampling.max_turns}"
            )
    elif env.name == "dialogue":
        most_ops = settings.memory.max_ops_per_turn
        suite = DialogueSuite(env.dialogue, env.data_dir, settings.seed, most_ops)
    elif env.name in ("multi_qa", "factbook"):
        suite = _question_suite(settings)
    elif env.name in ADAPTERS:
        suite = _adapter_suite(settings)
    elif ":" in env.name:
        limit_s = env.step_timeout_s
        guard = functools.partial(LimitedEnvironment, limit_s=limit_s)
        suite = own_suite(env.name, settings.seed, settings.memory, limit_s, guard)
    else:
        suite = BabiSuite(env.babi, env.data_dir, settings.seed)
    _check_starts(suite, settings)
    return suite


def _check_starts(suite: TaskSuite, settings: RunConfig) -> None:
    """Checks that two tasks start the same way twice."""
    faults = task_faults(suite, settings, "tasks were begun")
    checked = 0
    for index in range(START_TASKS):
        task = suite.task("train", index)
        faults.tried += 1
        try:
            check_repeatable(guarded(suite), [task])
        except ConfigError:
            raise
        except Exception as error:
            if not isinstance(suite, OwnSuite):
                raise
            faults.add(f"reset({task.seed}) raised {described(error)}")
            continue
        checked += 1
        if checked == 2:
            break
    faults.warn()


class _Guarded:
    """The tasks of a suite of one's own, with environments whose calls cannot hang."""

    def __init__(self, suite: OwnSuite) -> None:
        self.make, self.task = suite.guarded, suite.task


def guarded(suite: TaskSuite) -> Any:
    """Returns what makes environments before the training, where no limits apply yet.

    Args:
      suite: the tasks; those of one's own environment get a time limit for each call.
    """
    return _Guarded(suite) if isinstance(suite, OwnSuite) else suite


def task_faults(suite: TaskSuite, settings: RunConfig, what: str) -> TaskFaults:
    """Returns a count of tasks that fail before the training.

    Args:
      suite: the tasks.
      settings: of the run.
      what: is done with them, for messages.
    """
    return TaskFaults(f"config.env.name = {settings.env.name!r}", what)


def _question_suite(settings: RunConfig) -> MultiQaSuite:
    env, questions = settings.env, settings.env.multi_qa
    _check_call_limits(env)
    shares = questions.validation_share, questions.test_share
    if env.name == "factbook":
        share = env.factbook.two_hop_share
        source = FactbookSource(read_package(), shares, share)
    else:
        files = find_files(env.data_dir, questions.files())
        source = FileSource(files, shares, questions.shelf_records)
    suite = MultiQaSuite(env.name, source, questions, env.tools, settings.seed)
    suite.make(suite.task("test", 0))  # makes its search, too slow for a timed turn
    return suite


def _adapter_suite(settings: RunConfig) -> AdapterSuite:
    env = settings.env
    _check_call_limits(env)
    return AdapterSuite(env.name, env.adapter, env.tools, settings.seed)


def call_workers(settings: RunConfig) -> int:
    """How many environments may be called at the same time; 1: in order.

    Args:
      settings: of the run.
    """
    env = settings.env
    # What tools draw at random is kept apart by calling them one at a time.
    waits = ":" in env.name or (env.name in ADAPTERS and not env.tools.deterministic)
    return env.workers if waits else 1


def _check_call_limits(env: EnvConfig) -> None:
    """A turn must have time for all tries of a call of its tool."""
    longest = env.tools.longest_s
    if longest >= env.step_timeout_s:
        raise ConfigError(
            f"config.env.step_timeout_s: expected more than {longest:g} s (env.tools."
            f"timeout_s x (1 + env.tools.retries)), got {env.step_timeout_s}"
        )


def make_expert(
    suite: TaskSuite, settings: RunConfig, write_rate: float | None = None
) -> ScriptedPolicy:
    """The policy that demonstrates: the suite's expert, as the context rule needs it.

    Args:
      suite: whose expert it is.
      settings: of the run.
      write_rate: probability of each note; None: the one that demonstrations use.
    """
    expert, context = suite.expert(write_rate), settings.context
    if context.rule == "rolling":
        return RollingExpert(expert, context.rolling_lines, settings.memory)
    return expert


def play_expert(
    suite: TaskSuite, settings: RunConfig, count: int, write_rate: float | None
) -> Iterator[Episode]:
    """Plays the first training tasks with the suite's expert, not to be trained on.

    Args:
      suite: the tasks, and the expert.
      settings: of the run.
      count: number of tasks.
      write_rate: probability of each note; None: the one that demonstrations use.

    Yields:
      The episode of each task, at its end.

    Raises:
      ConfigError: the environment raised, or broke its contract otherwise.
    """
    episodes = make_episodes(guarded(suite), settings)
    expert = make_expert(suite, settings, write_rate)
    faults = task_faults(suite, settings, "the expert played")
    for index in range(count):
        task = suite.task("train", index)
        rng = np.random.default_rng(derived_seed("expert", task.seed, index))
        faults.tried += 1
        with warnings.catch_warnings():
            # A bank that everything is written to merges often and warns of it; here
            # there is nothing to tune.
            warnings.simplefilter("ignore", UserWarning)
            try:
                episode = episodes(task, f"expert-{task.id}")
                while not episode.done and episode.observe() is not None:
                    episode.act(expert(episode.situation(), rng))
            except EnvironmentFault as error:
                left_out(suite, faults, error)
                continue
        yield episode


def left_out(suite: TaskSuite, faults: TaskFaults, error: EnvironmentFault) -> None:
    """Counts a task that failed before the training, and is left out.

    Args:
      suite: the tasks.
      faults: counts those of one's own environment.
      error: of the environment.

    Raises:
      ConfigError: most tasks failed, or the suite is one that must not fail.
    """
    if not isinstance(suite, OwnSuite):
        raise ConfigError(
            f"config.env.name: a demonstration failed: {error}"
        ) from error
    faults.add(str(error))


def make_episodes(
    suite: TaskSuite,
    settings: RunConfig,
    advised: MemoryModels | None = None,
) -> Callable[..., Episode]:
    """A function that starts episodes, each with an empty bank of its own.

    Args:
      suite: makes the environments.
      settings: of the run.
      advised: the policy's part in the banks; None: ``without_policy``.

    Returns:
      (task, trajectory id, variant = 0) -> Episode; for the variant of the instructions
      see ``ContextConfig.variant``.
    """
    advised = advised or memory_models.without_policy(settings)
    embedder = settings.memory.make_embedder()
    max_turns, reward = settings.sampling.max_turns, settings.reward
    shown = settings.context
    if shown.instruction_examples:
        shown = with_examples(shown, _expert_turns(suite, settings))

    def make(task: Task, trajectory_id: str, variant: int = 0) -> Episode:
        context = shown.variant(variant)
        bank = Bank(settings.memory, embedder, trajectory_id, **advised.callables)
        try:
            env = suite.make(task)
        except ConfigError:
            raise
        except Exception as error:  # foreign code may raise anything
            why = f"task {task.id}: making it raised {described(error)}"
            raise EnvironmentFault(why) from error
        return Episode(env, task, bank, max_turns, context, reward)

    return make


def _expert_turns(suite: TaskSuite, settings: RunConfig) -> Iterator[tuple[str, str]]:
    """(text shown, action) of the expert in the first training tasks."""
    plain = dataclasses.replace(settings.context, instruction_examples=0)
    bare = dataclasses.replace(settings, context=plain)
    tasks = settings.context.instruction_examples  # each has at least one turn
    for episode in play_expert(suite, bare, tasks, write_rate=None):
        yield from zip(episode.observations, episode.actions)


def reward_function(settings: RunConfig) -> Callable[[Any], Any] | None:
    """The user's reward function, imported; None for the task score.

    Args:
      settings: of the run.

    Raises:
      ConfigError: it cannot be imported, or cannot be called with one argument, the
        list of trajectories.
    """
    name = settings.reward.function
    if not name:
        return None
    field = f"config.reward.function = {name!r}"
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the user's module may fail in any way
        why = str(error) if isinstance(error, ImportError) else repr(error)
        raise ConfigError(f"{field}: it cannot be imported: {why}") from error
    if not callable(function):
        raise ConfigError(
            f"{field}: expected a function, got {type(function).__name__}"
        )
    _check_signature(function, field)
    return function


def _check_signature(function: Callable[..., Any], field: str) -> None:
    """Refuses what ``call_reward_function`` could not call, or would await."""
    expected = "expected a function of one argument, the list of trajectories"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind([])
    except TypeError as error:
        raise ConfigError(f"{field}: {expected}, got {signature}: {error}") from error
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(
            f"{field}: {expected}, that returns a list of floats; got one that is "
            "asynchronous or yields"
        )
