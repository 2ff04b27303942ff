"""A run's policies beside baselines: same tasks, same seeds, one row each."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from mempo_jax.builders import memory_models
from mempo_jax.builders.engines import make_collector, make_run_mesh
from mempo_jax.builders.policies import load_policy
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import RunConfig
from mempo_jax.envs import Episode, Task, TaskSuite
from mempo_jax.evaluation import baselines
from mempo_jax.evaluation.baseline_readers import READERS, PolicyAnswers, Reader
from mempo_jax.evaluation.baselines import Replay, Rule, ToldTrajectory, run_rule
from mempo_jax.evaluation.held_out import (
    Progress,
    held_out_tasks,
    no_progress,
    run_held_out,
)
from mempo_jax.evaluation.result_rows import Row, row
from mempo_jax.evaluation.stats import by_category
from mempo_jax.memory import Bank, BankConfig
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.collect import Job
from mempo_jax.rollout.sampler import Request
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.runs.run_dir import RunDir
from mempo_jax.settings import ConfigError, nearest

MODELS = ("cold_start", "trained")
READ_BY_SCRIPT = "trained_read_by_script"  # its memory, with the rules' reader
DECODINGS = ("sampled", "greedy")
WHO_READS = ("script", "policy")  # answers for the rules: a script, or the policy
NAMES = (*baselines.RULES, *MODELS, READ_BY_SCRIPT)


def compare(
    place: RunDir,
    settings: RunConfig,
    wanted: str,
    tasks: int,
    progress: Progress = no_progress,
    *,
    reads: str = "script",
    on_row: Callable[[Sequence[Row]], None] = lambda rows: None,
) -> tuple[list[Row], dict[str, str]]:
    """Compares policies and rules on the same tasks.

    Args:
      place: directory of a finished run.
      settings: of the run.
      wanted: names of ``NAMES``, joined by commas, or "all".
      tasks: number of held-out tasks.
      progress: of each row.
      reads: what answers for the rules, see ``Comparison``.
      on_row: gets the rows so far whenever there is one more.

    Returns:
      The rows, and by name why others that were wanted are missing.

    Raises:
      ConfigError: a name is unknown, or the run's parts cannot be made.
    """
    names = names_of(wanted)
    comparison = Comparison(place, settings, tasks, progress, reads)
    rows: list[Row] = []
    for new_row in comparison.rows(names):
        rows.append(new_row)
        on_row(rows)
    return rows, comparison.missing(names)


def names_of(text: str) -> list[str]:
    """The policies of a list such as ``a,b`` or ``all``; "trained" is always added.

    Args:
      text: names of ``NAMES``, joined by commas, or "all".

    Raises:
      ConfigError: a name is unknown; the error has the nearest that there is.
    """
    listed = [name.strip() for name in text.split(",") if name.strip()]
    wanted = set(NAMES if listed == ["all"] else listed)
    for name in sorted(wanted - set(NAMES)):
        near = nearest(name, NAMES)
        hint = f"; the nearest is {near}" if near else ""
        raise ConfigError(
            f"--baselines={name}: unknown{hint}; there are {', '.join(NAMES)}, or all"
        )
    return [name for name in NAMES if name in wanted | {"trained"}]


class Comparison:
    """Makes the rows of a finished run, one policy after the other.

    Args:
      place: directory of the run.
      settings: of the run.
      tasks: number of held-out tasks.
      progress: of each row.
      reads: what answers for the rules: "script", or "policy", the trained one.

    Raises:
      ConfigError: the run's parts cannot be made from its config.
    """

    def __init__(
        self,
        place: RunDir,
        settings: RunConfig,
        tasks: int,
        progress: Progress,
        reads: str = "script",
    ) -> None:
        self._place, self._progress, self._reads = place, progress, reads
        train = dataclasses.replace(settings.train, eval_tasks=tasks)
        self._settings = dataclasses.replace(settings, train=train)
        self.suite: TaskSuite = make_suite(settings)
        self._tasks = held_out_tasks(self.suite, self._settings)
        self._mesh = make_run_mesh(settings)
        if reads == "policy" and self._mesh.size == 1:
            # Answers come one at a time: without it all slots would be computed.
            engine = dataclasses.replace(settings.engine, row_buckets=(1,))
            self._settings = dataclasses.replace(self._settings, engine=engine)
        self._policy = load_policy(str(place.policy), settings, self._mesh)
        self._embedder = settings.memory.make_embedder()
        self._trained: dict[str, list[Trajectory]] = {}
        self._reader: Reader | None = None
        if settings.env.name in READERS:
            self._reader = READERS[settings.env.name]()
        if self._reader is not None and reads == "policy":
            self._reader = PolicyAnswers(self._reader)

    @functools.cached_property
    def _rollouts(self) -> Any:
        """The engine, and the collector that drives it."""
        return make_collector(self._policy, self.suite, self._settings, self._mesh)

    def rows(self, names: Sequence[str]) -> Iterator[Row]:
        """A row for each policy that this run allows for; see ``missing``.

        Args:
          names: of ``NAMES``.
        """
        lacking = self.missing(names)
        for name in names:
            if name in lacking:
                continue
            if name in MODELS:
                yield self._model(name)
            else:
                yield self._scripted(name)

    def missing(self, names: Sequence[str]) -> dict[str, str]:
        """Why some of the policies have no row, by name.

        Args:
          names: of ``NAMES``.
        """
        why = {}
        for name in names:
            if name not in MODELS and self._reader is None:
                why[name] = f"there is no scripted reader of {self.suite.name}"
            elif name == READ_BY_SCRIPT and self._reads == "policy":
                why[name] = "the policy reads; that is the row of the trained policy"
            elif name == READ_BY_SCRIPT and self._settings.memory.judge == "policy":
                why[name] = "memory.judge is 'policy', which a script cannot ask"
            elif name == "cold_start" and not self._place.cold_start.is_dir():
                why[name] = f"{self._place.cold_start} is not there"
        return why

    def _model(self, name: str) -> Row:
        sampled = self._sampled(name, self._params_of(name))
        if name == "trained":
            self._trained = sampled  # ``trained_read_by_script`` replays them
        by_decoding = {
            how: [ToldTrajectory(t) for t in each] for how, each in sampled.items()
        }
        figures = row(name, by_decoding["sampled"], by_decoding["greedy"])
        return _with_categories(figures, by_decoding["sampled"])

    def _params_of(self, name: str) -> Any:
        if name == "trained":
            return self._policy.params
        path = str(self._place.cold_start)
        return load_policy(path, self._settings, self._mesh).params

    def _sampled(self, name: str, params: Any) -> dict[str, list[Trajectory]]:
        return {
            how: run_held_out(
                *self._rollouts,
                self.suite,
                self._settings,
                params,
                greedy=how == "greedy",
                stage=f"{name}, {how}",
                progress=self._progress,
            )
            for how in DECODINGS
        }

    def _scripted(self, name: str) -> Row:
        """The row of a rule, or of what the trained policy wrote in each decoding."""
        recorded: dict[str, Any] = dict.fromkeys(DECODINGS, [None] * len(self._tasks))
        if name == READ_BY_SCRIPT:
            if not self._trained:
                self._model("trained")
            for how in DECODINGS:
                recorded[how] = [self._actions(t) for t in self._trained[how]]
        elif self._reads == "script":
            runs = self._runs(name, recorded["greedy"])
            return _with_categories(row(name, runs), runs)
        sampled, greedy = (self._runs(name, recorded[how], how) for how in DECODINGS)
        return _with_categories(row(name, sampled, greedy), sampled)

    def _runs(
        self,
        name: str,
        recorded: Sequence[Mapping[int, list[str]] | None],
        how: str = "greedy",
    ) -> list[ToldTrajectory]:
        runs: list[ToldTrajectory] = []
        if self._reads == "policy":
            self._rollouts[0].set_params(self._policy.params)
        self._progress(name, 0, len(self._tasks), {})
        for task, actions in zip(self._tasks, recorded, strict=True):
            with warnings.catch_warnings():
                # A bank that everything is written to merges often and warns of it;
                # here there is nothing to tune.
                warnings.simplefilter("ignore", UserWarning)
                runs.append(self._one(name, task, actions, how))
            self._progress(name, len(runs), len(self._tasks), {})
        return runs

    def _one(
        self, name: str, task: Task, actions: Mapping[int, list[str]] | None, how: str
    ) -> ToldTrajectory:
        s = self._settings
        context, bank = s.context, s.memory
        rule: Any = partial(Replay, actions=actions)
        if name != READ_BY_SCRIPT:
            rule = baselines.RULES[name]
            context = baselines.context_of(name, context)
            bank = baselines.bank_of(name, bank)
        tokenizer = self._policy.tokenizer

        def make_rule() -> Rule:
            count = partial(_count, tokenizer)
            return rule(self._reader, s.memory, context, count)

        def make_episode() -> Episode:
            return self._episode(name, task, context, bank)

        limit, speak = s.env.step_timeout_s, partial(self._speak, task, how)
        return run_rule(task, make_episode, make_rule, tokenizer, limit, speak)

    def _speak(
        self, task: Task, how: str, context: list[int], turn: int
    ) -> list[int] | None:
        """The trained policy's tokens here; None if they might exceed its engine."""
        s = self._settings
        decoding = s.sampling.greedy if how == "greedy" else s.sampling
        if len(context) + decoding.max_new_tokens > s.max_segment_tokens:
            return None
        # The key of the policy's own evaluation, so that both draw the same.
        key = Job(task, 0, s.seed, "evaluate", 0).turn_key(turn)
        request = Request(0, context, key, decoding.max_new_tokens)
        [generation] = self._rollouts[0].generate(
            [request],
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            top_k=decoding.top_k,
        )
        return generation.tokens

    def _episode(self, name: str, task: Task, context: Any, bank: BankConfig) -> Any:
        s = self._settings
        advice = memory_models.without_policy(s).callables
        new_bank = Bank(bank, self._embedder, f"{name}-{task.id}", **advice)
        env = self.suite.make(task)
        # Without a cap there is nothing to measure the size of a bank against.
        weights = dataclasses.replace(s.reward, efficiency_size=0.0)
        return Episode(env, task, new_bank, s.sampling.max_turns, context, weights)

    def _actions(self, trajectory: Trajectory) -> dict[int, list[str]]:
        """The texts of a policy's turns, by observation, without stop tokens."""
        tokenizer = self._policy.tokenizer
        stops = [tokenizer.decode([number]) for number in tokenizer.stop_ids]
        actions: dict[int, list[str]] = {}
        pairs = zip(trajectory.turn_observation, trajectory.actions, strict=True)
        for observation, text in pairs:
            for stop in stops:
                text = text.removesuffix(stop)
            actions.setdefault(observation, []).append(text)
        return actions


def _count(tokenizer: Tokenizer, text: str) -> int:
    return len(tokenizer.encode(text))


def _with_categories(figures: Row, runs: Sequence[ToldTrajectory]) -> Row:
    categories = by_category([each.trajectory for each in runs])
    return figures | ({"categories": categories} if categories else {})
