"""``dialogue``: a long conversation, a session a turn; then its questions, one a turn.

A session longer than ``chunk_chars`` is told in several turns. A question is answered
by ``<act>answer</act>``, and the next one comes; ``<answer>`` answers too, and ends the
task there. Score: the mean over the questions, each scored as ``dialogue_answers``
says. What holds the evidence that the file names is the truth about what deserved
memory. Questions are reported apart by category: ``multi_hop``, ``temporal``,
``open_domain``, ``single_hop`` and ``adversarial``.

The scripted policy of ``dialogue``: notes of all that is said, and a simple reader.

It is blind to what will be asked: each thing said is noted with one probability. Asked,
it recalls by the question's own words and reads the answer from the note that shares
most of them: for "when", the note's date; else the words of its best sentence that the
question lacks. Where no note shares enough, it says that it was not mentioned.
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
MAX_ANSWER_WORDS = 8
LEAST_SHARED = 0.4  # of the question's own words, to trust a note
_COMMON = frozenset(
    (
        *("a", "an", "the", "and", "or", "of", "to", "in", "on", "at", "for", "with"),
        *("is", "was", "were", "are", "be", "been", "has", "have", "had", "did", "do"),
        *("does", "would", "could", "what", "when", "where", "which", "who", "whom"),
        *("why", "how", "many", "much", "long", "that", "this", "it", "its", "as"),
        *("her", "his", "their", "she", "he", "they", "from", "by", "about", "s"),
    )
)


class DialogueExpert:
    """See the module docstring. max_ops: notes of one turn; more are joined."""

    def __init__(self, write_rate: float, max_ops: int) -> None:
        self._write_rate, self._max_ops = write_rate, max_ops

    def __call__(self, situation: Situation, rng: np.random.Generator) -> str:
        text = situation.observation
        if text.startswith(QUESTION):
            asked = text.removeprefix(QUESTION)
            if not situation.queries:
                return f"<mem_recall> {_plain(asked)}</mem_recall>"
            return f"<act> {_plain(read_answer(asked, situation.recalled))}</act>"
        head, *lines = text.split("\n")
        date = head.partition(", ")[2]
        kept = [line for line in lines if rng.random() < self._write_rate]
        # At most max_ops notes: neighbours share one.
        size = max(-(-len(kept) // self._max_ops), 1)
        notes = [" ".join(kept[i : i + size]) for i in range(0, len(kept), size)]
        dated = [f"({date}) {note}" if date else note for note in notes]
        return "".join(f"<mem_write> {_plain(note)}</mem_write>" for note in dated)


def read_answer(question: str, notes: tuple[str, ...]) -> str:
    """What the notes say about a question; see the module docstring."""
    wanted = _words(question) - _COMMON
    shared = [len(wanted & _words(note)) for note in notes]
    if not notes or max(shared) < max(LEAST_SHARED * len(wanted), 1):
        return NOT_MENTIONED
    note = notes[shared.index(max(shared))]
    date, said = _dated(note)
    who = said.partition(":")[0].strip().lower()
    if who not in wanted and any(_speaker(other) in wanted for other in notes):
        return NOT_MENTIONED  # asked about somebody who did not say it
    if question.lower().startswith("when") and date:
        return date
    sentences = re.split(r"(?<=[.!?])\s+", said)
    best = max(sentences, key=lambda sentence: len(wanted & _words(sentence)))
    known = wanted | _COMMON
    new = [word for word in best.split() if not _words(word) <= known]
    return " ".join(new[:MAX_ANSWER_WORDS]) or NOT_MENTIONED


def _dated(note: str) -> tuple[str, str]:
    """The day and the text of a note ``(9:05 am on 3 March, 2031) text``."""
    match = re.match(r"\((?:[^()]* on )?([^()]*)\) (.*)", note, flags=re.DOTALL)
    return (match[1].replace(",", ""), match[2]) if match else ("", note)


def _speaker(note: str) -> str:
    return _dated(note)[1].partition(":")[0].strip().lower()


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _plain(text: str) -> str:
    """Text that holds no tag of the action grammar."""
    return text.replace("<", "(").replace(">", ")")


SPLITS = ("train", "test")
KEPT = 8  # conversations in memory at a time
GOAL = f"answer questions about this conversation; '{NOT_MENTIONED}' where it is not"


@dataclasses.dataclass(frozen=True)
class DialogueConfig:
    """chunk_chars: of one turn, 0 for whole sessions. questions_per_task: 0 for all.
    categories: of the questions asked. test_share: of the conversations, held out.
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


@dataclasses.dataclass(frozen=True)
class ToldConversation:
    """A conversation as it is told. places: by turn id, the turns that tell it."""

    chunks: tuple[str, ...]
    places: dict[str, frozenset[int]]
    asked: tuple[DialogueQuestion, ...]


def tell(talk: Conversation, chunk_chars: int) -> ToldConversation:
    """Cuts a conversation into turns of at most about ``chunk_chars`` characters.

    Cuts fall between what two people say; only what is longer than that by itself is
    cut within, between words.
    """
    chunks: list[str] = []
    places: dict[str, set[int]] = {}
    for session in talk.sessions:
        head = f"session {session.number}, {session.date}".rstrip(", ")
        room = max(chunk_chars - len(head) - 1, 20) if chunk_chars else 0
        lines: list[str] = []
        for said in session.said:
            for part in _parts(f"{said.speaker}: {said.text}", room):
                if room and sum(map(len, lines)) + len(part) > room:
                    chunks.append("\n".join((head, *lines)))
                    lines = []
                lines.append(part)
                places.setdefault(said.id, set()).add(len(chunks))
        if lines:
            chunks.append("\n".join((head, *lines)))
    frozen = {name: frozenset(at) for name, at in places.items()}
    return ToldConversation(tuple(chunks), frozen, talk.asked)


def _parts(text: str, room: int) -> Iterator[str]:
    while room and len(text) > room:
        cut = text.rfind(" ", 0, room + 1)
        cut = cut if cut > 0 else room
        yield text[:cut]
        text = text[cut:].lstrip()
    if text:
        yield text


class DialogueEnv:
    """One conversation and some of its questions; see the module docstring."""

    def __init__(
        self, told: ToldConversation, chosen: range | tuple[int, ...], whose: str
    ) -> None:
        self._told = told
        self._asked = [told.asked[number] for number in chosen]
        self.goal = f"{GOAL} ({whose})" if whose else GOAL

    def reset(self, seed: int) -> str:
        self._at = 0
        self._scores = [0.0] * len(self._asked)
        self._total = 0.0
        return self._observation()

    def step(self, action: str, *, final: bool = False) -> StepResult:
        earned = 0.0
        number = self._at - len(self._told.chunks)
        if number >= 0:
            earned = answer_score(action, self._asked[number])
            self._scores[number] = earned
            self._total += earned
        self._at += 1
        done = final or number + 1 == len(self._asked)
        text = "" if done else self._observation()
        return StepResult(text, earned / len(self._asked), done)

    def score(self) -> float:
        return self._total / len(self._asked)

    def useful(self) -> frozenset[int]:
        return frozenset().union(*(q.support for q in self.questions()))

    def questions(self) -> tuple[Question, ...]:
        first = len(self._told.chunks)
        return tuple(
            Question(
                first + number,
                gold_answer(asked),
                frozenset().union(*(self._told.places[i] for i in asked.evidence)),
                "act",
                CATEGORIES[asked.category],
            )
            for number, asked in enumerate(self._asked)
        )

    def question_scores(self) -> tuple[float, ...]:
        return tuple(self._scores)

    def _observation(self) -> str:
        chunks = self._told.chunks
        if self._at < len(chunks):
            return chunks[self._at]
        return f"{QUESTION}{self._asked[self._at - len(chunks)].text}"


@dataclasses.dataclass(frozen=True)
class _Split:
    """Tasks of a split: a conversation, and a block of its questions, for each."""

    samples: tuple[int, ...]
    blocks: tuple[tuple[tuple[int, ...], ...], ...]  # by sample
    ends: tuple[int, ...]  # tasks up to and with each sample

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def find(self, at: int) -> tuple[int, tuple[int, ...]]:
        place = bisect.bisect_right(self.ends, at)
        first = self.ends[place - 1] if place else 0
        return self.samples[place], self.blocks[place][at - first]


class DialogueSuite:
    """Conversations of a file or folder; training order reshuffled each epoch.

    The last ``test_share`` of the conversations are held out. One single conversation
    serves both splits, with every other block of its questions held out.

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
        self._told = functools.lru_cache(KEPT)(self._tell)
        self._order = functools.lru_cache(2)(self._shuffled)

    def task(self, split: str, index: int) -> Task:
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
        return len(self._splits[split])

    def make(self, task: Task) -> DialogueEnv:
        tasks = self._splits[task.split]
        at = task.index % len(tasks)
        if task.split == "train":
            at = int(self._order(task.seed)[at])
        sample, chosen = tasks.find(at)
        told, whose = self._told(sample)
        return DialogueEnv(told, chosen, whose)

    def vocabulary(self) -> list[str]:
        words = set(re.findall(r"\w+", f"{GOAL} {NOT_MENTIONED} {QUESTION} session"))
        for sample in range(len(self._places)):
            told, _ = self._told(sample)
            for text in told.chunks:
                words.update(re.findall(r"\w+", text))
            for asked in told.asked:
                words.update(re.findall(r"\w+", f"{asked.text} {asked.answer}"))
        return sorted(words)

    def expert(self, write_rate: float | None = None) -> ScriptedPolicy:
        rate = self.settings.write_rate if write_rate is None else write_rate
        return DialogueExpert(rate, self._max_ops)

    def _tell(self, sample: int) -> tuple[ToldConversation, str]:
        talk = self._places[sample].read()
        return tell(talk, self.settings.chunk_chars), " and ".join(talk.speakers)

    def _shuffled(self, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).permutation(len(self._splits["train"]))


def _split(blocks: dict, test_share: float) -> dict[str, _Split]:
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
        halves = all_blocks[0::2], all_blocks[1::2]
        return {
            split: _Split((only,), (half,), (len(half),))
            for split, half in zip(SPLITS, halves, strict=True)
        }
    held_out = min(max(round(len(samples) * test_share), 1), len(samples) - 1)
    cut = len(samples) - held_out
    made = {}
    for split, chosen in zip(SPLITS, (samples[:cut], samples[cut:]), strict=True):
        of_each = tuple(blocks[sample] for sample in chosen)
        ends = itertools.accumulate(len(each) for each in of_each)
        made[split] = _Split(tuple(chosen), of_each, tuple(ends))
    return made
