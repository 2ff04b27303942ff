"""``babi``: stories, one sentence a turn; questions are asked where they stand.

All twenty tasks. A question is answered by ``<act>answer</act>``; the story goes on
after it and ends with its last line. ``<answer>`` answers too, and ends the task there.
Score: the mean over the story's questions, each scored as ``babi_answers`` says. The
supporting facts named by the files are the truth about what deserved memory. Questions
are reported apart by the number of their task: category ``qa1`` and so on.
"""

from __future__ import annotations

import dataclasses
import re
import sys

import numpy as np

from mempo_jax.envs.babi_answers import COUNTING, COUNTS, answer_score
from mempo_jax.envs.babi_expert import COREFERENCE, LAST, UNKNOWN, BabiExpert
from mempo_jax.envs.babi_files import DataError, Story, find_file, read_stories
from mempo_jax.envs.base import (
    Question,
    ScriptedPolicy,
    StepResult,
    Task,
    derived_seed,
)


@dataclasses.dataclass(frozen=True)
class BabiSettings:
    """Which tasks; the longest training story; how often demonstrations write."""

    tasks: tuple[int, ...]
    max_train_lines: int
    write_rate: float

    def __post_init__(self) -> None:
        if not self.tasks or not all(1 <= t <= 20 for t in self.tasks):
            raise ValueError(
                "config.env.babi.tasks: expected task numbers from 1 to 20, got "
                f"{self.tasks!r}"
            )
        if self.max_train_lines < 2 or not 0 <= self.write_rate <= 1:
            raise ValueError(
                "config.env.babi: expected max_train_lines >= 2 and write_rate in "
                f"[0, 1], got {self.max_train_lines} and {self.write_rate}"
            )


class BabiEnv:
    """One story; see the module docstring."""

    def __init__(self, story: Story) -> None:
        self._lines = story.lines
        self._asked = tuple(
            Question(at, line.answer, line.evidence, "act", f"qa{story.task}")
            for at, line in enumerate(story.lines)
            if line.answer is not None
        )
        self._task, self._questions = story.task, len(self._asked)
        self.goal = "answer each question"

    def reset(self, seed: int) -> str:
        self._at, self._right = 0, 0.0
        self._scores: dict[int, float] = {}
        return self._lines[0].text

    def step(self, action: str, *, final: bool = False) -> StepResult:
        line = self._lines[self._at]
        right = 0.0
        if line.answer is not None:
            right = answer_score(action, line.answer, self._task)
            self._scores[self._at] = right
        self._right += right
        self._at += 1
        reward = right / max(self._questions, 1)
        if final or self._at == len(self._lines):
            return StepResult("", reward, True)
        return StepResult(self._lines[self._at].text, reward, False)

    def score(self) -> float:
        return self._right / max(self._questions, 1)

    def useful(self) -> frozenset[int]:
        return frozenset().union(*(line.evidence for line in self._lines))

    def questions(self) -> tuple[Question, ...]:
        return self._asked

    def question_scores(self) -> tuple[float, ...]:
        return tuple(self._scores.get(q.observation, 0.0) for q in self._asked)


class BabiSuite:
    """Stories of several tasks, interleaved; training order reshuffled each epoch.

    Raises:
      DataError: a missing or damaged file, or one without a story to use.
    """

    name = "babi"

    def __init__(self, settings: BabiSettings, data_dir: str, seed: int) -> None:
        self.settings = settings
        self._seed = seed
        self._stories = {
            split: _interleave(
                [
                    _load(data_dir, task, split, settings.max_train_lines)
                    for task in settings.tasks
                ]
            )
            for split in ("train", "test")
        }

    def task(self, split: str, index: int) -> Task:
        if split not in self._stories or index < 0:
            raise ValueError(
                "babi task: expected split train or test and index >= 0, got "
                f"{split!r} and {index}"
            )
        epoch = index // len(self._stories[split])
        seed = derived_seed("babi-order", self._seed, epoch) if split == "train" else 0
        return Task(self.name, split, index, seed)

    def size(self, split: str) -> int | None:
        return len(self._stories[split])

    def make(self, task: Task) -> BabiEnv:
        stories = self._stories[task.split]
        at = task.index % len(stories)
        if task.split == "train":
            at = int(np.random.default_rng(task.seed).permutation(len(stories))[at])
        return BabiEnv(stories[at])

    def vocabulary(self) -> list[str]:
        words = {"is", "now", "at", UNKNOWN, "answer", "each"}
        if COUNTING in self.settings.tasks:
            words.update(COUNTS)
        if COREFERENCE & set(self.settings.tasks):
            words.update(LAST.split())
        for stories in self._stories.values():
            for story in stories:
                for line in story.lines:
                    words.update(re.findall(r"\w+", line.text))
                    words.update(re.findall(r"\w+", line.answer or ""))
        return sorted(words | {"question"})

    def expert(self) -> ScriptedPolicy:
        return BabiExpert(self.settings.write_rate, self.settings.tasks)


def _load(data_dir: str, task: int, split: str, max_lines: int) -> list[Story]:
    path = find_file(data_dir, task, split)
    limit = max_lines if split == "train" else sys.maxsize
    stories = [s for s in read_stories(path, task) if len(s.lines) <= limit]
    asked = (line.answer is not None for story in stories for line in story.lines)
    if not any(asked):
        most = f" of at most {max_lines} lines" if split == "train" else ""
        raise DataError(
            f"{path}: expected at least one story{most} with a question, got none; "
            "change config.env.babi.tasks or config.env.babi.max_train_lines"
        )
    return stories


def _interleave(groups: list[list[Story]]) -> list[Story]:
    """Round robin, so that any prefix holds all tasks about equally."""
    longest = max(len(group) for group in groups)
    return [group[i] for i in range(longest) for group in groups if i < len(group)]
