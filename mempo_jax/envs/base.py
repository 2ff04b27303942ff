"""Protocols of environments and task suites, and the data that they exchange.

The names follow Gymnasium: ``reset(seed)``, ``step(action)``, ``done``. Observations
and actions are text. A reward is the *increase of the task score* that the step earned,
so the rewards of an episode add up to ``score()``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import reprlib
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from mempo_jax.settings import ConfigError

# Characters of foreign text that an error shows, and frames of a foreign traceback.
MOST_SHOWN, MOST_FRAMES = 300, 20
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100


class DataError(ConfigError):
    """A data file that is missing or damaged; names file, line and expectation."""


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What an environment answers to an action.

    Attributes:
      observation: the next text, "" at the end.
      reward: how much the step raised the task score.
      done: whether the task is over.
    """

    observation: str
    reward: float
    done: bool


@dataclasses.dataclass(frozen=True)
class Question:
    """A question of a task, and the truth about it.

    Attributes:
      observation: index of the observation that asks the question.
      answer: the gold answer.
      support: indices of the observations that hold this answer and are still valid
        when it is asked; an observation that was corrected since is not among them.
      kind: the op that answers the question, "act" or "answer".
      category: the kind of question under which evaluation reports it; "" for none.
      parts: the category of each question, if one answer answers several; else empty.
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
        """Starts the task and returns the first observation.

        Args:
          seed: the only source of randomness; the same seed must give the same start.
        """
        ...

    def step(self, action: str, *, final: bool = False) -> StepResult:
        """Carries out one action.

        Args:
          action: text of the policy's action; ``""`` passes.
          final: whether the action is an answer that ends the task.
        """
        ...

    def score(self) -> float:
        """Returns the task score so far, in [0, 1]."""
        ...

    def useful(self) -> frozenset[int]:
        """Returns indices of the observations worth remembering (0 is the first).

        The evaluator knows them, the policy never does; empty if they are unknown.
        """
        ...

    def questions(self) -> tuple[Question, ...]:
        """Returns the questions of the task in order, once the task was reset.

        The evaluator and probes know them, the policy never does; empty if they are
        unknown. An environment with questions may also say how well each was answered,
        in a method ``question_scores() -> tuple[float, ...]``: scores in [0, 1] in the
        same order, one for each part of a question that has parts, and 0 for a question
        without an answer. Evaluation then reports the categories separately.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Task:
    """A task by name: ``split`` and ``index`` identify it, ``seed`` starts it."""

    suite: str
    split: str
    index: int
    seed: int

    @property
    def id(self) -> str:
        return f"{self.suite}/{self.split}/{self.index}"


@dataclasses.dataclass(frozen=True)
class Situation:
    """What a scripted policy may look at: the same things the learner sees.

    Attributes:
      observation: text of the current observation.
      recalled: texts that the recalls since this observation returned.
      queries: the queries of these recalls.
      goal: the environment's goal.
      block: the block that the context rule "rolling" carries along.
      turn: number of the turn, from 0; a recall takes a turn of its own.
    """

    observation: str
    recalled: tuple[str, ...]
    queries: tuple[str, ...]
    goal: str = ""
    block: str = ""
    turn: int = 0


ScriptedPolicy = Callable[[Situation, np.random.Generator], str]


class TaskSuite(Protocol):
    """A family of tasks with splits ``train`` and ``test``."""

    name: str

    def task(self, split: str, index: int) -> Task:
        """Returns one task of a split.

        Args:
          split: "train" or "test".
          index: number of the task; ``train`` takes any number >= 0.
        """
        ...

    def size(self, split: str) -> int | None:
        """Returns the number of tasks of ``split``, None if they are endless."""
        ...

    def make(self, task: Task) -> Environment:
        """Returns a new environment for ``task``, not yet reset."""
        ...

    def vocabulary(self) -> list[str]:
        """Returns words that observations, questions and answers may use."""
        ...

    def expert(self, write_rate: float | None = None) -> ScriptedPolicy:
        """Returns a policy that demonstrates the *form* of acting.

        It does not know what is worth remembering.

        Args:
          write_rate: probability of each note; None for the one that demonstrations
            use.
        """
        ...


def described(error: BaseException) -> str:
    """Says in one short line what foreign code raised, and where.

    Args:
      error: raised by an environment or by a function of the user's.

    Returns:
      "KeyError: 'a' (games.py:12, in step)"; the place is that of the user's own code.
    """
    try:
        text = " ".join(str(error).split())
    except Exception:  # an exception's own __str__ may fail too
        text = "(its message cannot be shown)"
    place = _foreign_frames(error)[-1:]
    where = "".join(
        f" ({os.path.basename(frame.filename)}:{frame.lineno}, in {frame.name})"
        for frame in place
    )
    shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
    return f"{type(error).__name__}: {shown}{where}"


def foreign_traceback(error: BaseException) -> str:
    """The traceback of an error, without the frames of this program that led to it.

    Args:
      error: raised by a function of the user's.
    """
    lines = traceback.format_list(_foreign_frames(error))[-MOST_FRAMES:]
    return "".join(["Traceback (most recent call last):\n", *lines])


def shortened(value: object) -> str:
    """The ``repr`` of a value, for an error: it may be of ten million characters.

    Args:
      value: of any kind.
    """
    try:
        return _SHORT.repr(value)
    except Exception:  # of one's own class, whose __repr__ fails
        return f"a {type(value).__name__}"


def _foreign_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of a traceback below the last one of this package."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    frames = traceback.extract_tb(error.__traceback__)
    own = [n for n, frame in enumerate(frames) if frame.filename.startswith(package)]
    return frames[own[-1] + 1 :] if own else list(frames)


class UnrepeatableTaskError(ConfigError):
    """Raised when one task with one seed starts in two different ways."""


def check_repeatable(suite: TaskSuite, tasks: Sequence[Task]) -> None:
    """Resets each task twice and compares: all members of a group need the same start.

    Args:
      suite: makes the environments.
      tasks: the tasks to check.

    Raises:
      UnrepeatableTaskError: the goal or the first observation differed.
    """
    for task in tasks:
        first, second = suite.make(task), suite.make(task)
        # Two environments, not one reset twice: members of a group have one each.
        starts = [(env.reset(task.seed), env.goal) for env in (first, second)]
        if starts[0] != starts[1]:
            raise UnrepeatableTaskError(
                f"task {task.id}: expected the same start for seed {task.seed}, got "
                f"{starts[0]!r} and {starts[1]!r}; draw all randomness of the "
                "environment from the seed given to reset()"
            )


def derived_seed(*parts: int | str) -> int:
    """Returns a 32-bit seed from names and numbers, the same on every machine.

    Args:
      *parts: what the seed depends on, in order.
    """
    # hash() of a text differs between processes; SHA-256 does not. JSON separates the
    # parts.
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:4], "little")
