"""``dialogue``: a long conversation, a session a turn; then its questions, one a turn.

A session longer than ``chunk_chars`` takes several turns. A question is answered by
``<act>answer</act>``, and the next one comes; ``<answer>`` answers too, and ends the
task there. The score is the mean of ``dialogue_data.answer_score`` over the questions.
What holds the evidence that the file names is the truth about what deserved memory.
Questions are reported separately by category: ``multi_hop``, ``temporal``,
``open_domain``, ``single_hop`` and ``adversarial``.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator

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
from mempo_jax.envs.dialogue_data import (
    CATEGORIES,
    NOT_MENTIONED,
    Conversation,
    DialogueQuestion,
    answer_score,
    find_samples,
    gold_answer,
)

QUESTION = "question: "
GOAL = f"answer questions about this conversation; '{NOT_MENTIONED}' where it is not"
SPLITS = ("train", "test")
CONVERSATIONS_CACHED = 8  # in memory at a time; others are read again
MAX_ANSWER_WORDS = 8  # words of the expert's answer
LEAST_SHARED = 0.4  # share of a question's own words that a trusted note contains
# Words that say nothing about what is asked.
_COMMON = frozenset(
    (
        *("a", "an", "the", "and", "or", "of", "to", "in", "on", "at", "for", "with"),
        *("is", "was", "were", "are", "be", "been", "has", "have", "had", "did", "do"),
        *("does", "would", "could", "what", "when", "where", "which", "who", "whom"),
        *("why", "how", "many", "much", "long", "that", "this", "it", "its", "as"),
        *("her", "his", "their", "she", "he", "they", "from", "by", "about", "s"),
    )
)


@dataclasses.dataclass(frozen=True)
class DialogueConfig:
    """Which turns and questions make a task.

    Attributes:
      chunk_chars: characters of one turn, 0 for whole sessions.
      questions_per_task: number of questions, 0 for all.
      categories: numbers of the categories of the questions asked.
      test_share: share of the conversations that is held out.
      write_rate: probability that demonstrations note a line.
    """

    chunk_chars: int
    questions_per_task: int
    categories: tuple[int, ...]
    test_share: float
    write_rate: float

    def __post_init__(self) -> None:
        def check(ok: bool, field: str, expected: str) -> None:
            if not ok:
                raise ValueError(
                    f"config.env.dialogue.{field}: expected {expected}, got "
                    f"{getattr(self, field)!r}"
                )

        fits = self.chunk_chars == 0 or self.chunk_chars >= 40
        check(fits, "chunk_chars", "0 (whole sessions) or at least 40")
        check(self.questions_per_task >= 0, "questions_per_task", ">= 0 (0: all)")
        known = bool(self.categories) and set(self.categories) <= set(CATEGORIES)
        check(known, "categories", "categories from 1 to 5")
        check(0 < self.test_share < 1, "test_share", "between 0 and 1")
        check(0 <= self.write_rate <= 1, "write_rate", "0 to 1")


class DialogueSuite:
    """Conversations of a file or folder; training order reshuffled each epoch.

    The last ``test_share`` of the conversations are held out. A single conversation
    serves both splits; every other block of its questions is held out.

    Args:
      settings: which turns and questions make a task.
      data_dir: the file or folder.
      seed: seed of the training order.
      max_ops: the most ops of a turn, for the expert's notes.

    Raises:
      DataError: a missing or damaged file, no question of the wanted categories, or
        none that could be held out.
    """

    name = "dialogue"

    def __init__(
        self, settings: DialogueConfig, data_dir: str, seed: int, max_ops: int
    ) -> None:
        self.settings = settings
        self._seed, self._max_ops = seed, max_ops
        self._places = find_samples(data_dir)
        wanted = set(settings.categories)
        blocks = {}
        for sample, place in enumerate(self._places):
            chosen = [n for n, kind in enumerate(place.categories) if kind in wanted]
            if chosen:
                size = settings.questions_per_task or len(chosen)
                starts = range(0, len(chosen), size)
                blocks[sample] = tuple(tuple(chosen[i : i + size]) for i in starts)
        if not blocks:
            raise DataError(
                f"{data_dir}: expected a question of categories {sorted(wanted)}, got "
                "none; change config.env.dialogue.categories"
            )
        self._splits = _split(blocks, settings.test_share)
        self._conversation = functools.lru_cache(CONVERSATIONS_CACHED)(self._read)
        # Two orders: the tasks of one step may belong to two epochs.
        self._order = functools.lru_cache(2)(self._shuffled)

    def task(self, split: str, index: int) -> Task:
        """Returns task ``index`` of ``split``; the seed is that of the epoch's order.

        Raises:
          ValueError: no such split, or a negative index.
        """
        if split not in SPLITS or index < 0:
            raise ValueError(
                "dialogue task: expected split train or test and index >= 0, got "
                f"{split!r} and {index}"
            )
        epoch = index // len(self._splits[split])
        parts = ("dialogue-order", self._seed, epoch)
        seed = derived_seed(*parts) if split == "train" else 0
        return Task(self.name, split, index, seed)

    def size(self, split: str) -> int | None:
        """Returns the number of tasks of ``split``."""
        return len(self._splits[split])

    def make(self, task: Task) -> DialogueEnv:
        """Returns an environment with the conversation and questions of ``task``."""
        tasks = self._splits[task.split]
        at = task.index % len(tasks)
        if task.split == "train":
            at = int(self._order(task.seed)[at])
        sample, chosen = tasks.find(at)
        conversation, speakers = self._conversation(sample)
        return DialogueEnv(conversation, chosen, speakers)

    def vocabulary(self) -> list[str]:
        """Returns the words of all conversations, questions and answers."""
        words = set(re.findall(r"\w+", f"{GOAL} {NOT_MENTIONED} {QUESTION} session"))
        for sample in range(len(self._places)):
            conversation, _ = self._conversation(sample)
            for text in conversation.chunks:
                words.update(re.findall(r"\w+", text))
            for question in conversation.questions:
                text = f"{question.text} {question.answer}"
                words.update(re.findall(r"\w+", text))
        return sorted(words)

    def expert(self, write_rate: float | None = None) -> ScriptedPolicy:
        """Returns the scripted policy, with ``write_rate`` or that of the settings."""
        rate = self.settings.write_rate if write_rate is None else write_rate
        return DialogueExpert(rate, self._max_ops)

    def _read(self, sample: int) -> tuple[ConversationTurns, str]:
        conversation = self._places[sample].read()
        turns = cut_into_turns(conversation, self.settings.chunk_chars)
        return turns, " and ".join(conversation.speakers)

    def _shuffled(self, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).permutation(len(self._splits["train"]))


@dataclasses.dataclass(frozen=True)
class _Split:
    """Tasks of a split: each is a conversation and a block of its questions.

    Attributes:
      samples: numbers of the conversations.
      blocks: by sample, the questions of each of its tasks.
      ends: number of tasks up to and including each sample.
    """

    samples: tuple[int, ...]
    blocks: tuple[tuple[tuple[int, ...], ...], ...]
    ends: tuple[int, ...]

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def find(self, at: int) -> tuple[int, tuple[int, ...]]:
        """Returns sample and questions of task ``at``."""
        place = bisect.bisect_right(self.ends, at)
        first = self.ends[place - 1] if place else 0
        return self.samples[place], self.blocks[place][at - first]


def _split(blocks: dict, test_share: float) -> dict[str, _Split]:
    """Divides the blocks of questions (by sample) into training and held-out tasks."""
    samples = list(blocks)
    if len(samples) == 1:
        [(only, all_blocks)] = blocks.items()
        if len(all_blocks) == 1:
            raise DataError(
                "config.env.dialogue: one conversation, all questions of it in one "
                "task: what is trained on could not be held out; set "
                f"questions_per_task below {len(all_blocks[0])}, or give a file of "
                "more conversations"
            )
        # Both splits show the same conversation and ask different questions.
        halves = all_blocks[0::2], all_blocks[1::2]
        return {
            split: _Split((only,), (half,), (len(half),))
            for split, half in zip(SPLITS, halves, strict=True)
        }
    # At least one conversation on either side.
    held_out = min(max(round(len(samples) * test_share), 1), len(samples) - 1)
    cut = len(samples) - held_out
    splits = {}
    for split, chosen in zip(SPLITS, (samples[:cut], samples[cut:]), strict=True):
        of_each = tuple(blocks[sample] for sample in chosen)
        ends = itertools.accumulate(len(each) for each in of_each)
        splits[split] = _Split(tuple(chosen), of_each, tuple(ends))
    return splits


class DialogueEnv:
    """One conversation and some of its questions; see the module docstring.

    Args:
      conversation: the conversation's turns.
      chosen: numbers of its questions that the task asks.
      speakers: names of the speakers, for the goal; "" for none.
    """

    def __init__(
        self,
        conversation: ConversationTurns,
        chosen: range | tuple[int, ...],
        speakers: str,
    ) -> None:
        self._conversation = conversation
        self._questions = [conversation.questions[number] for number in chosen]
        self.goal = f"{GOAL} ({speakers})" if speakers else GOAL

    def reset(self, seed: int) -> str:
        """Returns the first turn; a conversation needs no ``seed``."""
        self._at = 0
        self._scores = [0.0] * len(self._questions)
        self._total = 0.0
        return self._observation()

    def step(self, action: str, *, final: bool = False) -> StepResult:
        """Scores ``action`` if a question was asked; ``final`` ends the task there."""
        earned = 0.0
        number = self._at - len(self._conversation.chunks)
        if number >= 0:
            earned = answer_score(action, self._questions[number])
            self._scores[number] = earned
            self._total += earned
        self._at += 1
        done = final or number + 1 == len(self._questions)
        text = "" if done else self._observation()
        return StepResult(text, earned / len(self._questions), done)

    def score(self) -> float:
        """Returns the mean score over all questions; those not reached count 0."""
        return self._total / len(self._questions)

    def useful(self) -> frozenset[int]:
        """Returns the turns that hold evidence of a question."""
        return frozenset().union(*(q.support for q in self.questions()))

    def questions(self) -> tuple[Question, ...]:
        """Returns the questions; the turns of their evidence support them."""
        first = len(self._conversation.chunks)
        return tuple(
            Question(
                first + number,
                gold_answer(question),
                frozenset().union(
                    *(self._conversation.turns_of[i] for i in question.evidence)
                ),
                "act",
                CATEGORIES[question.category],
            )
            for number, question in enumerate(self._questions)
        )

    def question_scores(self) -> tuple[float, ...]:
        """Returns the score of each question, 0 if it was not reached."""
        return tuple(self._scores)

    def _observation(self) -> str:
        chunks = self._conversation.chunks
        if self._at < len(chunks):
            return chunks[self._at]
        return f"{QUESTION}{self._questions[self._at - len(chunks)].text}"


@dataclasses.dataclass(frozen=True)
class ConversationTurns:
    """A conversation, cut into turns.

    Attributes:
      chunks: text of each turn.
      turns_of: the turns that show an utterance, by its id.
      questions: the questions about the conversation.
    """

    chunks: tuple[str, ...]
    turns_of: dict[str, frozenset[int]]
    questions: tuple[DialogueQuestion, ...]


def cut_into_turns(conversation: Conversation, chunk_chars: int) -> ConversationTurns:
    """Cuts a conversation into turns of at most about ``chunk_chars`` characters.

    Cuts fall between utterances; only an utterance that is longer by itself is cut
    within, between words.

    Args:
      conversation: the conversation, as read.
      chunk_chars: characters of a turn, 0 for whole sessions.
    """
    chunks: list[str] = []
    turns_of: dict[str, set[int]] = {}
    for session in conversation.sessions:
        head = f"session {session.number}, {session.date}".rstrip(", ")
        # At least 20 characters, or a long date would leave no room for words.
        room = max(chunk_chars - len(head) - 1, 20) if chunk_chars else 0
        lines: list[str] = []
        for utterance in session.utterances:
            for part in _parts(f"{utterance.speaker}: {utterance.text}", room):
                if room and sum(map(len, lines)) + len(part) > room:
                    chunks.append("\n".join((head, *lines)))
                    lines = []
                lines.append(part)
                turns_of.setdefault(utterance.id, set()).add(len(chunks))
        if lines:
            chunks.append("\n".join((head, *lines)))
    frozen = {name: frozenset(at) for name, at in turns_of.items()}
    return ConversationTurns(tuple(chunks), frozen, conversation.questions)


def _parts(text: str, room: int) -> Iterator[str]:
    """Yields pieces of at most ``room`` characters; 0 means no limit."""
    while room and len(text) > room:
        cut = text.rfind(" ", 0, room + 1)
        cut = cut if cut > 0 else room
        yield text[:cut]
        text = text[cut:].lstrip()
    if text:
        yield text


class DialogueExpert:
    """Scripted policy: takes notes of what is said, and answers as a simple reader.

    It does not know what will be asked: each line is noted with one probability. For a
    question it recalls by the question's own words and answers with ``read_answer``.

    Args:
      write_rate: probability that a line is noted, 0 to 1.
      max_ops: the most notes of one turn; more are joined.
    """

    def __init__(self, write_rate: float, max_ops: int) -> None:
        self._write_rate, self._max_ops = write_rate, max_ops

    def __call__(self, situation: Situation, rng: np.random.Generator) -> str:
        """Returns the text of one turn; ``rng`` decides which lines are noted."""
        text = situation.observation
        if text.startswith(QUESTION):
            question = text.removeprefix(QUESTION)
            if not situation.queries:
                return f"<mem_recall> {_plain(question)}</mem_recall>"
            return f"<act> {_plain(read_answer(question, situation.recalled))}</act>"
        # The first line holds session and date; see ``cut_into_turns``.
        head, *lines = text.split("\n")
        date = head.partition(", ")[2]
        noted = [line for line in lines if rng.random() < self._write_rate]
        # At most max_ops notes: neighbours share one.
        size = max(-(-len(noted) // self._max_ops), 1)
        notes = [" ".join(noted[i : i + size]) for i in range(0, len(noted), size)]
        dated = [f"({date}) {note}" if date else note for note in notes]
        return "".join(f"<mem_write> {_plain(note)}</mem_write>" for note in dated)


def read_answer(question: str, notes: tuple[str, ...]) -> str:
    """Reads the answer from the note that shares most words with the question.

    For "when" it is the note's date, else the words of its best sentence that the
    question lacks. If no note shares enough, the answer says that it was not mentioned.

    Args:
      question: text of the question.
      notes: the recalled notes.
    """
    wanted = _words(question) - _COMMON
    shared = [len(wanted & _words(note)) for note in notes]
    if not notes or max(shared) < max(LEAST_SHARED * len(wanted), 1):
        return NOT_MENTIONED
    note = notes[shared.index(max(shared))]
    date, text = _dated(note)
    speaker = text.partition(":")[0].strip().lower()
    if speaker not in wanted and any(_speaker(other) in wanted for other in notes):
        return NOT_MENTIONED  # asked about somebody who did not say it
    if question.lower().startswith("when") and date:
        return date
    sentences = re.split(r"(?<=[.!?])\s+", text)
    best = max(sentences, key=lambda sentence: len(wanted & _words(sentence)))
    known = wanted | _COMMON
    new = [word for word in best.split() if not _words(word) <= known]
    return " ".join(new[:MAX_ANSWER_WORDS]) or NOT_MENTIONED


def _dated(note: str) -> tuple[str, str]:
    """Returns day and text of a note ``(9:05 am on 3 March, 2031) text``."""
    match = re.match(r"\((?:[^()]* on )?([^()]*)\) (.*)", note, flags=re.DOTALL)
    return (match[1].replace(",", ""), match[2]) if match else ("", note)


def _speaker(note: str) -> str:
    """Returns who said what a note holds, in lower case."""
    return _dated(note)[1].partition(":")[0].strip().lower()


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _plain(text: str) -> str:
    """Returns a text that holds no tag of the action grammar."""
    return text.replace("<", "(").replace(">", ")")
