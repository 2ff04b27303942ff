"""``babi``: stories, one sentence a turn, with questions in between.

All twenty tasks. A question is answered by ``<act>answer</act>``; the story goes on
after it and ends with its last line. ``<answer>`` answers too, and ends the task there.
The score is the mean of ``answer_score`` over the story's questions. The supporting
facts that the files name are the truth about what deserved memory. Questions are
reported separately by the number of their task: category ``qa1`` and so on.

The files have the format of Weston et al. 2015, "Towards AI-Complete Question
Answering": a line is ``N text``; the number returns to 1 at a new story. A question
line is ``N question TAB answer TAB evidence``, evidence being numbers of earlier
sentences. All twenty tasks share it: an answer may be a list ("milk,football"), a path
("n,w"), a count, yes, no or maybe. Only an answer that says there is nothing may lack
evidence.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from mempo_jax.envs.base import (
    DataError,
    Question,
    ScriptedPolicy,
    Situation,
    StepResult,
    Task,
    derived_seed,
)

COUNTING, LISTS, PATHS = 7, 8, 19  # numbers of the tasks with such answers
COUNTS = ("none", "one", "two", "three", "four", "five", "six", "seven")
NOTHING = ("none", "nothing")  # answers that need no evidence
_FIGURES = {str(n): word for n, word in enumerate(COUNTS)} | {"zero": "none"}
_DIRECTIONS = {"north": "n", "east": "e", "south": "s", "west": "w"}
UNKNOWN_ANSWER = "unknown"
# Sentences and questions that the expert understands.
_MOVE = re.compile(
    r"(\w+) (?:went|went back|journeyed|moved|travelled) to the (\w+)\.?$"
)
_MOVE_BOTH = re.compile(_MOVE.pattern.replace(r"(\w+)", r"(\w+) and (\w+)", 1))
_MOVE_ON = re.compile(_MOVE.pattern.replace(r"(\w+)", r"(?:\w+ )*(?:he|she|they)", 1))
_TAKE = re.compile(r"(\w+) (?:took|got|grabbed|picked up) the (\w+)(?: there)?\.?$")
_DROP = re.compile(
    r"(\w+) (?:left|discarded|dropped|put down) the (\w+)(?: there)?\.?$"
)
_GIVE = re.compile(r"(\w+) (?:gave|handed|passed) the (\w+) to (\w+)\.?$")
_WHERE = re.compile(r"Where is (?:the )?(\w+) ?\?$")
_IS_IN = re.compile(r"Is (\w+) in the (\w+) ?\?$")
_CARRIED = re.compile(
    r"(?:What is|(How many) objects (?:is|are)) (\w+) (?:carrying|holding) ?\?$"
)
# Questions about a gift: each names some of giver, thing, receiver and asks for one.
_GIFTS = (
    (re.compile(r"What did (?P<giver>\w+) give to (?P<receiver>\w+) ?\?$"), "thing"),
    (re.compile(r"Who gave the (?P<thing>\w+) to (?P<receiver>\w+) ?\?$"), "giver"),
    (re.compile(r"Who gave the (?P<thing>\w+) ?\?$"), "giver"),
    (re.compile(r"Who received the (?P<thing>\w+) ?\?$"), "receiver"),
    (
        re.compile(r"Who did (?P<giver>\w+) give the (?P<thing>\w+) to ?\?$"),
        "receiver",
    ),
)
LAST = "last one was"  # begins the note of who moved last, whom "she" may mean
COREFERENCE = frozenset((11, 13))  # tasks with pronouns
_ROLES = ("giver", "thing", "receiver")


@dataclasses.dataclass(frozen=True)
class BabiConfig:
    """Which tasks are played, and how.

    Attributes:
      tasks: numbers from 1 to 20.
      max_train_lines: longer stories are left out of training.
      write_rate: probability that demonstrations write a note.
    """

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


class BabiSuite:
    """Stories of several tasks, interleaved; training order reshuffled each epoch.

    Args:
      settings: which tasks.
      data_dir: folder of the files.
      seed: seed of the training order.

    Raises:
      DataError: a missing or damaged file, or one without a story to use.
    """

    name = "babi"

    def __init__(self, settings: BabiConfig, data_dir: str, seed: int) -> None:
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
        """Returns task ``index`` of ``split``; the seed is that of the epoch's order.

        Raises:
          ValueError: no such split, or a negative index.
        """
        if split not in self._stories or index < 0:
            raise ValueError(
                "babi task: expected split train or test and index >= 0, got "
                f"{split!r} and {index}"
            )
        epoch = index // len(self._stories[split])
        # Training has a new order each epoch; test tasks stay where they are.
        seed = derived_seed("babi-order", self._seed, epoch) if split == "train" else 0
        return Task(self.name, split, index, seed)

    def size(self, split: str) -> int | None:
        """Returns the number of stories of ``split``."""
        return len(self._stories[split])

    def make(self, task: Task) -> BabiEnv:
        """Returns an environment with the story of ``task``."""
        stories = self._stories[task.split]
        at = task.index % len(stories)
        if task.split == "train":
            at = int(np.random.default_rng(task.seed).permutation(len(stories))[at])
        return BabiEnv(stories[at])

    def vocabulary(self) -> list[str]:
        """Returns the words of all stories and of the expert's notes."""
        words = {"is", "now", "at", UNKNOWN_ANSWER, "answer", "each"}
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

    def expert(self, write_rate: float | None = None) -> ScriptedPolicy:
        """Returns the scripted policy, with ``write_rate`` or that of the settings."""
        rate = self.settings.write_rate if write_rate is None else write_rate
        return BabiExpert(rate, self.settings.tasks)


def _load(data_dir: str, task: int, split: str, max_lines: int) -> list[Story]:
    """Reads the stories of one task and split; long ones are left out of training."""
    path = find_file(data_dir, task, split)
    # Only training leaves out long stories.
    limit = max_lines if split == "train" else sys.maxsize
    stories = [s for s in read_stories(path, task) if len(s.lines) <= limit]
    has_question = (
        line.answer is not None for story in stories for line in story.lines
    )
    if not any(has_question):
        limited = f" of at most {max_lines} lines" if split == "train" else ""
        raise DataError(
            f"{path}: expected at least one story{limited} with a question, got none; "
            "change config.env.babi.tasks or config.env.babi.max_train_lines"
        )
    return stories


def _interleave(groups: list[list[Story]]) -> list[Story]:
    """Takes stories in turns, so that any prefix holds all tasks about equally."""
    longest = max(len(group) for group in groups)
    return [group[i] for i in range(longest) for group in groups if i < len(group)]


class BabiEnv:
    """One story; see the module docstring.

    Args:
      story: the story, with at least one line.
    """

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
        """Returns the first line; a story needs no ``seed``."""
        self._at, self._right = 0, 0.0
        self._scores: dict[int, float] = {}
        return self._lines[0].text

    def step(self, action: str, *, final: bool = False) -> StepResult:
        """Scores ``action`` if a question was asked; ``final`` ends the story there."""
        line = self._lines[self._at]
        right = 0.0
        if line.answer is not None:
            right = answer_score(action, line.answer, self._task)
            self._scores[self._at] = right
        self._right += right
        self._at += 1
        # A story of the files may have no question.
        reward = right / max(self._questions, 1)
        if final or self._at == len(self._lines):
            return StepResult("", reward, True)
        return StepResult(self._lines[self._at].text, reward, False)

    def score(self) -> float:
        """Returns the mean score over all questions; those not reached count 0."""
        return self._right / max(self._questions, 1)

    def useful(self) -> frozenset[int]:
        """Returns the lines that support an answer."""
        return frozenset().union(*(line.evidence for line in self._lines))

    def questions(self) -> tuple[Question, ...]:
        """Returns the questions of the story in order."""
        return self._asked

    def question_scores(self) -> tuple[float, ...]:
        """Returns the score of each question, 0 if it was not reached."""
        return tuple(self._scores.get(q.observation, 0.0) for q in self._asked)


def answer_score(answer: str, gold: str, task: int) -> float:
    """Returns the score of an answer, in [0, 1].

    Most answers are one word ("hallway", "yes", "maybe", "two") and are right or wrong.
    A list ("milk,football", task 8) earns the F1 of its items, whatever their order: a
    part of it counts for learning, and the score is 1.0 exactly if the exact match of
    the official evaluation says so. A path ("n,w", task 19) is right only in its order.
    A count (task 7) may be given in figures, a direction in full.

    Args:
      answer: the policy's answer.
      gold: the answer in the file.
      task: number of the task, 1 to 20.
    """
    items, gold_items = _items(answer), _items(gold)
    if task == PATHS:
        return float([_DIRECTIONS.get(w, w) for w in items] == gold_items)
    if task == COUNTING:
        items = [_FIGURES.get(word, word) for word in items]
    is_list = task == LISTS or "," in gold
    if not is_list or gold.strip().lower() in NOTHING:
        return float(sorted(items) == sorted(gold_items))
    common = (collections.Counter(items) & collections.Counter(gold_items)).total()
    return 2 * common / (len(items) + len(gold_items)) if common else 0.0


def _items(text: str) -> list[str]:
    """Returns the words of an answer, separated by commas or spaces."""
    return [word for word in re.split(r"[,\s]+", text.lower()) if word]


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a story.

    Attributes:
      text: the sentence.
      answer: the gold answer; None for a statement.
      evidence: positions in the story of the supporting lines, 0 is the first.
    """

    text: str
    answer: str | None
    evidence: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Story:
    """The lines of one story, and the number of its ``task``."""

    task: int
    lines: tuple[Line, ...]


def find_file(data_dir: str, task: int, split: str) -> pathlib.Path:
    """Returns the one file ``qa{task}_*_{split}.txt`` of a folder.

    Args:
      data_dir: the folder, as in ``config.env.data_dir``.
      task: number of the task, 1 to 20.
      split: "train" or "test".

    Raises:
      DataError: no such folder, no such file, or more than one.
    """
    folder = pathlib.Path(data_dir)
    advice = "set config.env.data_dir to the folder of the bAbI files"
    if not data_dir or not folder.is_dir():
        raise DataError(
            f"config.env.data_dir: expected a folder with bAbI files, got {data_dir!r},"
            f" which is not one; {advice}"
        )
    files = sorted(folder.glob(f"qa{task}_*_{split}.txt"))
    if len(files) != 1:
        names = [p.name for p in files] or "none"
        raise DataError(
            f"{folder}: expected one file qa{task}_*_{split}.txt, found {names}; "
            f"{advice} or change config.env.babi.tasks"
        )
    return files[0]


def read_stories(path: pathlib.Path, task: int) -> Iterator[Story]:
    """Streams the stories of one file.

    Args:
      path: the file.
      task: number of its task.

    Raises:
      DataError: a file that cannot be opened, or a line that does not fit, with file
        name and line number.
    """
    lines: list[Line] = []
    with _open(path) as file:
        for at, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            place = f"{path}, line {at}"
            number, line = _parse_line(_decode(raw, place), place)
            if number == 1 and lines:
                yield Story(task, tuple(lines))
                lines = []
            if number != len(lines) + 1:
                raise DataError(
                    f"{place}: expected line number {len(lines) + 1} or 1 (a new "
                    f"story), got {number}"
                )
            _check_evidence(line, lines, place)
            lines.append(line)
    if lines:
        yield Story(task, tuple(lines))


def _open(path: pathlib.Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, got {error}") from error


def _decode(raw: bytes, place: str) -> str:
    try:
        return raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: expected UTF-8 text, got {error}") from error


def _parse_line(text: str, place: str) -> tuple[int, Line]:
    head = re.match(r"(\d{1,9}) +(?=\S)", text)
    if head is None:
        raise DataError(
            f"{place}: expected 'NUMBER sentence', got {text[:60]!r}; one line of a "
            "story each, questions with TAB answer TAB evidence"
        )
    number, rest = int(head.group(1)), text[head.end() :]
    fields = rest.split("\t")
    if len(fields) == 1 and "?" not in rest:
        return number, Line(rest.strip(), None, frozenset())
    if len(fields) != 3 or not fields[0].strip() or not fields[1].strip():
        raise DataError(
            f"{place}: expected 'question TAB answer TAB evidence numbers', got "
            f"{len(fields)} fields: {text[:60]!r}"
        )
    words = fields[2].split()
    if not words and fields[1].strip().lower() in NOTHING:
        return number, Line(fields[0].strip(), fields[1].strip(), frozenset())
    if not words or not all(w.isascii() and w.isdigit() and len(w) < 10 for w in words):
        raise DataError(
            f"{place}: expected evidence as numbers of earlier lines, got "
            f"{fields[2][:40]!r}"
        )
    evidence = frozenset(int(w) - 1 for w in words)
    return number, Line(fields[0].strip(), fields[1].strip(), evidence)


def _check_evidence(line: Line, earlier: list[Line], place: str) -> None:
    for at in sorted(line.evidence):
        if not 0 <= at < len(earlier) or earlier[at].answer is not None:
            raise DataError(
                f"{place}: expected evidence among the statements before it (1 to "
                f"{len(earlier)}), got {at + 1}"
            )


class BabiExpert:
    """Shows the form of note-keeping, writing each note with one probability.

    A move becomes ``John now at hallway``, a taken thing ``milk is at John``; for a
    thing put down it first recalls where its bearer is. Other sentences are written
    unchanged. In tasks with pronouns it also keeps a note of who moved last, and
    recalls it if a sentence says "she". It does not consider which sentences will be
    asked about. It answers questions about places, about what somebody carries, and
    about gifts; to others it says that it does not know.

    Args:
      write_rate: probability of each note, 0 to 1.
      tasks: numbers of the tasks.
    """

    def __init__(self, write_rate: float, tasks: tuple[int, ...] = ()) -> None:
        self._write_rate = write_rate
        self._notes_last = bool(COREFERENCE & set(tasks))

    def __call__(self, situation: Situation, rng: np.random.Generator) -> str:
        """Returns the text of one turn; ``rng`` decides whether it writes."""
        text = situation.observation
        if text.endswith("?"):
            return _answer(situation)
        if situation.queries:
            pronoun_move = _MOVE_ON.match(text) if self._notes_last else None
            moved = (
                _note_move_on(pronoun_move[1], situation.recalled)
                if pronoun_move
                else ""
            )
            return moved or _note_drop(situation)
        # A move of two people, or one that a pronoun may refer to, takes several notes.
        shared = self._notes_last or _MOVE_BOTH.match(text)
        if shared and (notes := self._moves(text, rng)):
            return notes
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

    def _moves(self, text: str, rng: np.random.Generator) -> str:
        """Notes a move of two people, or of somebody whom "she" may mean later."""
        both, one = _MOVE_BOTH.match(text), _MOVE.match(text)
        if self._notes_last and (pronoun_move := _MOVE_ON.match(text)):
            recall = f'<mem_recall k="1"> {LAST}</mem_recall>'
            return f"<think> {pronoun_move[1]}</think>" + recall * self._writes(rng)
        if both or one:
            names = [both[1], both[2]] if both else [one[1]]
            notes = [_where(name, both[3] if both else one[2]) for name in names]
            notes += [f"{LAST} {' '.join(names)}"] * self._notes_last
            thought = f"<think> {' '.join(names)}</think>"
            return thought + _writes_of(notes) * self._writes(rng)
        return ""

    def _writes(self, rng: np.random.Generator) -> bool:
        return rng.random() < self._write_rate


def _writes_of(notes: list[str]) -> str:
    return "".join(f"<mem_write> {note}</mem_write>" for note in notes)


def _note_move_on(place: str, recalled: tuple[str, ...]) -> str:
    """Notes that the one who moved last is now at ``place``; "" if nobody is known."""
    last_moves = [text for text in recalled if text.startswith(LAST)]
    names = last_moves[0].removeprefix(LAST).split() if last_moves else []
    return _writes_of([_where(name, place) for name in names])


def _note_drop(situation: Situation) -> str:
    """Notes where a dropped thing is: where its bearer was, as recalled."""
    drop = _DROP.match(situation.observation)
    place = _place_of(drop[1], situation.recalled) if drop else None
    if drop is None or place is None:
        return f"<mem_write> {situation.observation.rstrip('.')}</mem_write>"
    return f"<mem_write> {_where(drop[2], place)}</mem_write>"


def _answer(situation: Situation) -> str:
    """Answers a question; the first turn of it recalls, the next one answers."""
    text = situation.observation
    where, is_in = _WHERE.match(text), _IS_IN.match(text)
    if where or is_in:
        return _answer_place(where[1] if where else is_in[1], is_in, situation)
    if carried := _CARRIED.match(text):
        return _answer_carried(carried[2], bool(carried[1]), situation)
    # The first pattern that matches: a question about a gift has one form.
    for pattern, role in _GIFTS:
        if gift := pattern.match(text):
            return _answer_gift(gift.groupdict(), role, situation)
    if situation.queries:
        return f"<act> {UNKNOWN_ANSWER}</act>"
    return f"<mem_recall> {text.rstrip('? ')}</mem_recall>"


def _answer_place(
    subject: str, is_in: re.Match[str] | None, situation: Situation
) -> str:
    """Answers where somebody or something is, or whether it is in a place."""
    if not situation.queries:
        return f"<think> {subject}</think>{_recall(subject)}"
    place = _place_of(subject, situation.recalled)
    if place and place[0].isupper():  # a person who carries the thing
        # A second recall: where is that person?
        if len(situation.queries) == 1:
            return _recall(place)
        place = _place_of(place, situation.recalled)
    if is_in and place:
        answer = "yes" if place == is_in[2] else "no"
        return f"<think> {place} {is_in[2]}</think><act> {answer}</act>"
    return f"<act> {place or UNKNOWN_ANSWER}</act>"


def _answer_carried(who: str, counts: bool, situation: Situation) -> str:
    """Answers what ``who`` carries, a list or a number, from notes of taken things."""
    if not situation.queries:
        return f"<think> {who}</think><mem_recall> is at {who}</mem_recall>"
    end = f" is at {who}"
    things = [t.removesuffix(end) for t in situation.recalled if t.endswith(end)]
    things = list(dict.fromkeys(things))
    if counts:
        return f"<act> {COUNTS[min(len(things), len(COUNTS) - 1)]}</act>"
    return f"<act> {','.join(things) or 'nothing'}</act>"


def _answer_gift(named: dict[str, str], wanted: str, situation: Situation) -> str:
    """Answers a question about a gift from the first note that fits what it names.

    Args:
      named: the roles that the question names.
      wanted: the role that it asks for.
    """
    if not situation.queries:
        giver, thing, receiver = (named.get(role, "") for role in _ROLES)
        words = (giver, "gave the", thing, "to", receiver)
        query = " ".join(word for word in words if word)
        return f"<think> {query}</think><mem_recall> {query}</mem_recall>"
    for text in situation.recalled:
        if not (gift := _GIVE.match(text)):
            continue
        gift_roles = dict(zip(_ROLES, gift.groups(), strict=True))
        if all(gift_roles[role] == value for role, value in named.items()):
            return f"<act> {gift_roles[wanted]}</act>"
    return f"<act> {UNKNOWN_ANSWER}</act>"


def _where(subject: str, place: str) -> str:
    """Writes a note; persons and things differ in a word, so that queries can, too."""
    return f"{subject} {'now' if subject[0].isupper() else 'is'} at {place}"


def _recall(subject: str) -> str:
    """Asks for the one memory that begins like a note about ``subject``."""
    return f'<mem_recall k="1"> {_where(subject, "").rstrip()}</mem_recall>'


def _place_of(subject: str, recalled: tuple[str, ...]) -> str | None:
    """Returns the place that the first note about ``subject`` names."""
    start = _where(subject, "")
    places = [text.removeprefix(start) for text in recalled if text.startswith(start)]
    return places[0].strip() if places else None
