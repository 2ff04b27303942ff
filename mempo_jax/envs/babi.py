"""``babi``: stories, one sentence a turn; questions are asked where they stand.

A question is answered by ``<act>answer</act>``; the story goes on after it and ends
with its last line. ``<answer>`` answers too, and ends the task there. Score: the share
of the story's questions answered correctly. The supporting facts named by the files are
the truth about what deserved memory.
"""

from __future__ import annotations

import dataclasses
import re
import sys

import numpy as np

from mempo_jax.envs.babi_files import DataError, Story, find_file, read_stories
from mempo_jax.envs.base import (
    Question,
    ScriptedPolicy,
    Situation,
    StepResult,
    Task,
    derived_seed,
)

UNKNOWN = "unknown"
_MOVE = re.compile(
    r"(\w+) (?:went|went back|journeyed|moved|travelled) to the (\w+)\.?$"
)
_TAKE = re.compile(r"(\w+) (?:took|got|grabbed|picked up) the (\w+)(?: there)?\.?$")
_DROP = re.compile(
    r"(\w+) (?:left|discarded|dropped|put down) the (\w+)(?: there)?\.?$"
)
_WHERE = re.compile(r"Where is (?:the )?(\w+) ?\?$")
_IS_IN = re.compile(r"Is (\w+) in the (\w+) ?\?$")


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
            Question(at, line.answer, line.evidence, kind="act")
            for at, line in enumerate(story.lines)
            if line.answer is not None
        )
        self._questions = len(self._asked)
        self.goal = "answer each question"

    def reset(self, seed: int) -> str:
        self._at, self._right = 0, 0
        return self._lines[0].text

    def step(self, action: str, *, final: bool = False) -> StepResult:
        line = self._lines[self._at]
        right = line.answer is not None and _same(action, line.answer)
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


def _same(given: str, gold: str) -> bool:
    def items(text: str) -> list[str]:
        return sorted(w for w in re.split(r"[,\s]+", text.lower()) if w)

    return items(given) == items(gold)


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
        for stories in self._stories.values():
            for story in stories:
                for line in story.lines:
                    words.update(re.findall(r"\w+", line.text))
                    words.update(re.findall(r"\w+", line.answer or ""))
        return sorted(words | {"question"})

    def expert(self) -> ScriptedPolicy:
        return BabiExpert(self.settings.write_rate)


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


class BabiExpert:
    """Shows the form of note-keeping, writing each note with one probability.

    A move becomes ``John now at hallway``, a taken thing ``milk is at John``; for a
    thing put down it first recalls where its bearer is. Other sentences are written
    as they stand. Which sentences will be asked about plays no part.
    """

    def __init__(self, write_rate: float) -> None:
        self._write_rate = write_rate

    def __call__(self, situation: Situation, rng: np.random.Generator) -> str:
        text = situation.observation
        if text.endswith("?"):
            return _answer(situation)
        if situation.queries:
            return _note_drop(situation)
        if move := _MOVE.match(text):
            subject, note = move[1], _where(move[1], move[2])
        elif take := _TAKE.match(text):
            subject, note = take[2], _where(take[2], take[1])
        elif drop := _DROP.match(text):
            subject, note = drop[2], None
        else:
            subject, note = text.split()[0], text.rstrip(".")
        thought = f"<think> {subject}</think>"
        if rng.random() >= self._write_rate:
            return thought
        if note is None:
            return thought + _recall(drop[1])
        return f"{thought}<mem_write> {note}</mem_write>"


def _note_drop(situation: Situation) -> str:
    drop = _DROP.match(situation.observation)
    place = _place_of(drop[1], situation.recalled) if drop else None
    if drop is None or place is None:
        return f"<mem_write> {situation.observation.rstrip('.')}</mem_write>"
    return f"<mem_write> {_where(drop[2], place)}</mem_write>"


def _answer(situation: Situation) -> str:
    text, recalled = situation.observation, situation.recalled
    where, is_in = _WHERE.match(text), _IS_IN.match(text)
    if not where and not is_in:
        if situation.queries:
            return f"<act> {UNKNOWN}</act>"
        return f"<mem_recall> {text.rstrip('? ')}</mem_recall>"
    subject = where[1] if where else is_in[1]
    if not situation.queries:
        return f"<think> {subject}</think>{_recall(subject)}"
    place = _place_of(subject, recalled)
    if place and place[0].isupper():  # a person, who has it
        if len(situation.queries) == 1:
            return _recall(place)
        place = _place_of(place, recalled)
    if is_in and place:
        answer = "yes" if place == is_in[2] else "no"
        return f"<think> {place} {is_in[2]}</think><act> {answer}</act>"
    return f"<act> {place or UNKNOWN}</act>"


def _where(subject: str, place: str) -> str:
    """A note; persons and things differ in a word, so that a query tells them apart."""
    return f"{subject} {'now' if subject[0].isupper() else 'is'} at {place}"


def _recall(subject: str) -> str:
    """Asks for the one memory that begins like a note about ``subject``."""
    return f'<mem_recall k="1"> {_where(subject, "").rstrip()}</mem_recall>'


def _place_of(subject: str, recalled: tuple[str, ...]) -> str | None:
    start = _where(subject, "")
    found = [text.removeprefix(start) for text in recalled if text.startswith(start)]
    return found[0].strip() if found else None
