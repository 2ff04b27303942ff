"""A trained policy at work: one trajectory at a time, with one bank that it keeps.

    from mempo_jax import Agent
    agent = Agent.from_pretrained("runs/base/policy", bank="notes")
    trajectory = agent.run("ann phone is 23")

There are no groups here and nothing is learnt. What the policy writes stays in
``agent.bank`` and is there in the next task.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mempo_jax.builders.engines import make_engine, make_run_mesh
from mempo_jax.builders.policies import Policy, load_policy, read_config
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import RunConfig, from_config
from mempo_jax.envs import Environment, Episode, Question, StepResult, Task, TaskSuite
from mempo_jax.memory import (
    Bank,
    BankConfig,
    BankConflictError,
    PurgeResult,
    persist,
)
from mempo_jax.rollout.collect import Collector, Job
from mempo_jax.rollout.sampler import Decoding
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.settings import ConfigError, local_path

_RUN = re.compile(r"run-(\d+)")  # ids of the trajectories of an agent


class Agent:
    """A policy with a memory of its own; made by ``from_pretrained``.

    Args:
      policy: that acts.
      settings: for one trajectory at a time.
      mesh: of the policy's parameters.
      bank: as for ``from_pretrained``.

    Attributes:
      settings: as above.
    """

    def __init__(
        self,
        policy: Policy,
        settings: RunConfig,
        mesh: Any,
        bank: Bank | str | os.PathLike | None,
    ) -> None:
        self.settings = settings
        self._engine, self._advised = make_engine(policy, settings, mesh)
        self._engine.set_params(policy.params)
        self._tokenizer = policy.tokenizer
        # Absolute: an environment may change the current directory before a save.
        if isinstance(bank, str | os.PathLike):
            bank = local_path(bank, "bank").absolute()
        self._directory = bank if isinstance(bank, os.PathLike) else None
        self._runs = 0
        self._take(bank if isinstance(bank, Bank) else self._open(bank))
        self._suite: TaskSuite | None = None

    def __repr__(self) -> str:
        place = "in memory" if self._directory is None else repr(str(self._directory))
        return f"Agent(path={self.settings.policy.path!r}, bank={place})"

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike,
        *,
        bank: Bank | str | os.PathLike | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Agent:
        """A policy from a Hugging Face directory or a GGUF file.

        Args:
          path: such as ``RUN/policy`` of a run, or what experiments.cold_start made.
          bank: a directory, where the bank is loaded from if it is there, and saved
            after every task; or a Bank to start from; None: an empty one, not saved.
            Agents of several processes may have one directory: a task waits for that
            of another, and goes on from what it left.
          config: a whole config, a mapping or a ConfigDict; None: the one beside the
            policy (``mempo_config.json``, or ``config.json`` of its run).

        Raises:
          ConfigError: no config, no policy, or a bank for the context rule "rolling",
            which keeps nothing after a task.
          BankFileError: the saved bank is damaged.
        """
        path = os.fspath(path)
        sections = read_config(path) if config is None else config
        plain = sections.to_dict() if hasattr(sections, "to_dict") else sections
        settings = _for_one(from_config(plain))
        if bank is not None and settings.context.rule == "rolling":
            raise ConfigError(
                'bank: expected none with config.context.rule "rolling", whose block '
                f"ends with its task, got {bank!r}; leave it out, or use another rule"
            )
        mesh = make_run_mesh(settings)
        return cls(load_policy(path, settings, mesh), settings, mesh, bank)

    @property
    def bank(self) -> Bank:
        """What the agent remembers; its log is that of the last task."""
        return self._bank

    @property
    def words(self) -> frozenset[str] | None:
        """The words and signs that the policy knows; None if it can spell any text."""
        return self._tokenizer.words()

    @property
    def suite(self) -> TaskSuite:
        """The tasks of the config, made when first asked for."""
        if self._suite is None:
            self._suite = make_suite(self.settings)
        return self._suite

    def run(
        self,
        task: Task | Environment | str,
        *,
        greedy: bool = False,
        temperature: float | None = None,
        seed: int = 0,
        on_turn: Callable[[Episode], None] | None = None,
    ) -> Trajectory:
        """Runs one task from its start to its end, and keeps what was remembered.

        Args:
          task: an environment of one's own (``mempo_jax.envs.Environment``); a task of
            ``suite``, such as ``agent.suite.task("test", 0)``; or a text, which is
            shown once (several, or with a goal: ``TextTask``).
          greedy: the likeliest token always; else drawn as in training. A task that is
            run again gets other draws.
          temperature: of the draws, in place of that of training; 0 is greedy.
          seed: starts an environment; a task of the suite has its own.
          on_turn: called in each turn after its ops and before the environment moves;
            ``episode.actions[-1]`` and ``episode.bank.log`` have what happened.

        Raises:
          OSError: the bank could not be saved; it is still in ``bank``, and what was
            saved before is complete.
          BankConflictError: the bank was changed here and in its directory.
        """
        decoding = self._decoding(greedy, temperature)
        if self._directory is None:
            return self._run(task, seed, decoding, on_turn)
        # Until the task is saved: another agent would go on from what is outdated.
        with persist.held(self._directory):
            self._refresh()
            trajectory = self._run(task, seed, decoding, on_turn)
            self._bank.save(self._directory)
        return trajectory

    def purge(self, ids: Sequence[int]) -> PurgeResult:
        """Erases entries of ``bank`` for good, on the disk too; see ``Bank.purge``.

        Args:
          ids: of any entries, active or not.

        Raises:
          TypeError, ValueError: they are no ids of the bank; nothing is changed.
          BankConflictError: another process has changed the bank, so its ids may mean
            other entries; ``bank`` is what it is now, and nothing was erased.
          OSError: erased here, and not on the disk.
        """
        if self._directory is None:
            return self._bank.purge(ids)
        with persist.held(self._directory):
            if self._refresh():
                raise BankConflictError(
                    f"{self._directory}: another process has changed the bank; nothing "
                    "was erased: look at it again, and give the ids that it has now"
                )
            return self._bank.purge(ids)

    def _run(
        self,
        task: Task | Environment | str,
        seed: int,
        decoding: Decoding,
        on_turn: Callable[[Episode], None] | None,
    ) -> Trajectory:
        """Runs one task, and takes over its bank."""
        env, suite_task = self._environment(task, seed)
        bank = self._bank.next_task(f"run-{self._runs}")
        # The number of the run is part of the key: each run draws anew.
        job = Job(suite_task, 0, self.settings.seed, "evaluate", self._runs)

        def make(job: Job) -> Episode:
            s = self.settings
            turns = s.sampling.max_turns
            return _WatchedEpisode(
                env, job.task, bank, turns, s.context, s.reward, on_turn
            )

        limit = self.settings.env.step_timeout_s
        prefetch = self._advised.prefetch_verdicts
        collector = Collector(self._engine, self._tokenizer, make, limit, prefetch)
        [trajectory] = collector.run([job], decoding)
        self._bank, self._runs = bank, self._runs + 1
        return trajectory

    def _decoding(self, greedy: bool, temperature: float | None) -> Decoding:
        sampling = self.settings.sampling
        if greedy or temperature is None:
            return sampling.greedy if greedy else sampling
        cut = sampling.top_p, sampling.top_k, sampling.max_new_tokens
        return Decoding(temperature, *cut)

    def _refresh(self) -> bool:
        """Reads the bank again if another process has saved it since; True then."""
        if not persist.is_outdated(self._bank, self._directory):
            return False
        if persist.is_unsaved(self._bank, self._directory):
            raise BankConflictError(
                f"bank {self._directory}: another process has saved it since, and "
                "agent.bank was changed here; save it to another directory "
                "(agent.bank.save), and make a new Agent"
            )
        self._take(self._open(self._directory))
        return True

    def _take(self, bank: Bank) -> None:
        self._bank = bank
        last = _RUN.fullmatch(bank.trajectory_id)
        # A bank from an earlier agent goes on counting, so that ids are unique in it.
        self._runs = max(self._runs, int(last[1]) + 1 if last else 0)

    def _environment(
        self, task: Task | Environment | str, seed: int
    ) -> tuple[Environment, Task]:
        if isinstance(task, str):
            task = TextTask([task])
        if not isinstance(task, Task):
            return task, Task(type(task).__name__, "run", self._runs, seed)
        if task.suite != self.suite.name:
            raise ValueError(
                f"Agent.run: expected a task of {self.suite.name!r} (config.env.name), "
                f"got {task.id}"
            )
        return self.suite.make(task), task

    def _open(self, directory: str | os.PathLike | None) -> Bank:
        """The bank of a directory; an empty one if there is none."""
        embedder = self.settings.memory.make_embedder()
        config, advice = self.settings.memory, self._advised.callables
        if directory is None:
            return Bank(config, embedder, "", **advice)
        bare = {f.name: getattr(config, f.name) for f in dataclasses.fields(BankConfig)}
        try:
            return Bank.load(directory, embedder, config=BankConfig(**bare), **advice)
        except FileNotFoundError:
            return Bank(config, embedder, "", **advice)


class TextTask:
    """An environment that shows texts, one a turn; nothing is scored.

    Args:
      observations: the texts.
      goal: shown in every context; "" for none.

    Attributes:
      replies: what the policy acted or answered to each; "" if it passed.

    Raises:
      ValueError: there is no text.
    """

    def __init__(self, observations: Sequence[str], goal: str = "") -> None:
        self._texts, self.goal = tuple(observations), goal
        self.replies: list[str] = []
        if not self._texts:
            raise ValueError("TextTask: expected at least one text, got none")

    def reset(self, seed: int) -> str:
        """Forgets the replies; returns the first text. The seed changes nothing."""
        self.replies = []
        return self._texts[0]

    def step(self, action: str, *, final: bool = False) -> StepResult:
        """Records the action as a reply; returns the next text, if there is one."""
        self.replies.append(action)
        done = final or len(self.replies) == len(self._texts)
        text = "" if done else self._texts[len(self.replies)]
        return StepResult(text, 0.0, done)

    def score(self) -> float:
        """0.0: nothing is scored."""
        return 0.0

    def useful(self) -> frozenset[int]:
        """Empty: no observation is known to be worth remembering."""
        return frozenset()

    def questions(self) -> tuple[Question, ...]:
        """Empty: no question has a known answer."""
        return ()


def _for_one(settings: RunConfig) -> RunConfig:
    """The settings for one trajectory at a time, sampled by this process."""
    shared = dataclasses.replace(settings.mesh.sampling, devices=0, data=-1)
    shared = dataclasses.replace(shared, fsdp=0, tensor=0)
    mesh = dataclasses.replace(settings.mesh, data=1, sampling=shared)
    engine = dataclasses.replace(settings.engine, kind="local", lanes=1, row_buckets=())
    # Rows are split over fsdp too, and must divide over it.
    sampling = dataclasses.replace(settings.sampling, slots=mesh.fsdp)
    return dataclasses.replace(settings, mesh=mesh, engine=engine, sampling=sampling)


class _WatchedEpisode(Episode):
    """An episode that calls ``on_turn``, its last argument, after the ops of a turn."""

    def __init__(self, *args: Any) -> None:
        *args, on_turn = args
        self._on_turn = on_turn
        super().__init__(*args)

    def decide(self, *args: Any, **kwargs: Any) -> None:
        super().decide(*args, **kwargs)
        if self._on_turn is not None:
            self._on_turn(self)
