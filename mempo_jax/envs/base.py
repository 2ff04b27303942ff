"""The environment protocol, tasks, and task suites.

The names follow Gymnasium: ``reset(seed)``, ``step(action)``, ``done``. Observations
and actions are text. A reward is the *increase of the task score* that the step earned,
so the rewards of an episode add up to ``score()``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from mempo_jax.settings import ConfigError


class DataError(ConfigError):
    """A data file that is missing or damaged; names file, line and expectation."""


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What an environment answers: the next observation, the score earned, the end."""

    observation: str
    reward: float
    done: bool


@dataclasses.dataclass(frozen=True)
class Question:
    """A question of a task, and the truth about it.

    observation: index of the observation that asks. answer: the gold answer. support:
    indices of the observations that hold it as it stands when it is asked; one that was
    corrected since is none. kind: the op that answers it, "act" or "answer". category:
    the kind of question that evaluation reports it under; "" for none. parts: where one
    answer answers several questions, the category of each; else empty.
    """

    observation: int
    answer: str
    support: frozenset[int]
    kind: str = "answer"
    category: str = ""
    parts: tuple[str, ...] = ()


class Environment(Protocol):
    """One run of one task. ``goal`` is shown to the policy in every context."""

    goal: str

    def reset(self, seed: int) -> str:
        """Starts the task and returns the first observation."""
        ...

    def step(self, action: str, *, final: bool = False) -> StepResult:
        """Moves on. ``""`` passes; ``final`` marks an answer that ends the task."""
        ...

    def score(self) -> float:
        """Task score so far, in [0, 1]."""
        ...

    def useful(self) -> frozenset[int]:
        """Indices of the observations worth remembering (0 is the first).

        Known to the evaluator, never to the policy; empty where it is unknown.
        """
        ...

    def questions(self) -> tuple[Question, ...]:
        """The questions of the task in order, once it was reset.

        Known to the evaluator and to probes, never to the policy; empty where unknown.
        An environment that has some may also say how each was answered, in a method
        ``question_scores() -> tuple[float, ...]``: scores in [0, 1] in the same order,
        one for each part of a question that has parts, 0 where it was not answered.
        Evaluation then reports categories apart.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Task:
    """A task by name: ``split`` and ``index`` find it again, ``seed`` starts it."""

    suite: str
    split: str
    index: int
    seed: int

    @property
    def id(self) -> str:
        return f"{self.suite}/{self.split}/{self.index}"


@dataclasses.dataclass(frozen=True)
class Situation:
    """What a scripted policy may look at: the same things the learner sees."""

    observation: str
    recalled: tuple[str, ...]
    queries: tuple[str, ...]
    goal: str = ""
    block: str = ""  # that the context rule "rolling" carries along
    turn: int = 0  # from 0; a recall takes a turn of its own


ScriptedPolicy = Callable[[Situation, np.random.Generator], str]


class TaskSuite(Protocol):
    """A family of tasks with splits ``train`` and ``test``."""

    name: str

    def task(self, split: str, index: int) -> Task:
        """The ``index``-th task of a split; any index >= 0 is valid for ``train``."""
        ...

    def size(self, split: str) -> int | None:
        """Number of distinct tasks, None where they are procedural."""
        ...

    def make(self, task: Task) -> Environment: ...

    def vocabulary(self) -> list[str]:
        """Words that observations, questions and answers may use."""
        ...

    def expert(self, write_rate: float | None = None) -> ScriptedPolicy:
        """Demonstrates the *form* of acting, blind to what is worth remembering.

        Args:
          write_rate: probability of each note; None: the one that demonstrations use.
        """
        ...


class UnrepeatableTaskError(ValueError):
    """Raised when one task with one seed starts in two different ways."""


def check_repeatable(suite: TaskSuite, tasks: Sequence[Task]) -> None:
    """Resets each task twice; groups need the same start for every member.

    Raises:
      UnrepeatableTaskError: the goal or the first observation differed.
    """
    for task in tasks:
        first, second = suite.make(task), suite.make(task)
        starts = [(env.reset(task.seed), env.goal) for env in (first, second)]
        if starts[0] != starts[1]:
            raise UnrepeatableTaskError(
                f"task {task.id}: expected the same start for seed {task.seed}, got "
                f"{starts[0]!r} and {starts[1]!r}; draw all randomness of the "
                "environment from the seed given to reset()"
            )


def derived_seed(*parts: int | str) -> int:
    """A 32-bit seed from names and numbers, the same on every machine."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:4], "little")
