"""Long conversations with questions, read in LoCoMo's form, and scores of answers.

A sample is an object with ``conversation`` (``session_1``, ``session_2`` ...: lists of
turns with ``dia_id`` "D1:3", ``speaker`` and ``text``; ``session_1_date_time`` and so
on) and ``qa`` (a list of objects with ``question``, ``answer``, ``category`` 1 to 5 and
``evidence``, a list of dia_ids). A turn that shares a picture may say what it shows in
``blip_caption``. ``sample_id`` may be missing, and questions of category 5, about what
was never said, need no ``answer``. Source: Maharana et al. 2024, "Evaluating Very
Long-Term Conversational Memory of LLM Agents". Files may be of any size: one pass
checks every sample and keeps its position; it is read again when it is needed.

An answer about what was said earns its token F1 (SQuAD's normalisation; LoCoMo's own
evaluation also stems words, which raises its figures a little). Adversarial questions
ask about what nobody said: the right answer is to say so, that is, to abstain.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from typing import Any

from mempo_jax.envs.answers import exact_match, token_f1
from mempo_jax.envs.base import DataError
from mempo_jax.envs.qa_data import read_objects

CATEGORIES = {
    1: "multi_hop",
    2: "temporal",
    3: "open_domain",
    4: "single_hop",
    5: "adversarial",
}
ADVERSARIAL = 5
NOT_MENTIONED = "not mentioned"  # how the scripted reader abstains
# An answer that contains one of these word sequences abstains, whatever else it says.
ABSTENTIONS = (
    NOT_MENTIONED,
    *("never mentioned", "was not mentioned", "no mention", "not stated", "not said"),
    *("not specified", "not discussed", "not provided", "not given", "not available"),
    *("no information", "not enough information", "insufficient information"),
    *("unknown", "not known", "i dont know", "do not know", "not sure"),
    *("unanswerable", "not answerable", "cannot be answered", "cant be answered"),
    *("cannot answer", "cant answer", "cannot say", "no answer"),
)
_SESSION = re.compile(r"session_(\d{1,6})")
_TURN = re.compile(r"D(\d{1,6}):(\d{1,6})")


@dataclasses.dataclass(frozen=True)
class Conversation:
    """A conversation, its sessions in order, and the questions about it."""

    name: str
    sessions: tuple[Session, ...]
    questions: tuple[DialogueQuestion, ...]

    @property
    def speakers(self) -> tuple[str, ...]:
        """Names of all speakers, in order of appearance."""
        names = (u.speaker for s in self.sessions for u in s.utterances)
        return tuple(dict.fromkeys(names))


@dataclasses.dataclass(frozen=True)
class Session:
    """The utterances of one session; ``date`` is "" if the file has none."""

    number: int
    date: str
    utterances: tuple[Utterance, ...]


@dataclasses.dataclass(frozen=True)
class Utterance:
    """One turn of a conversation; ``id`` is its dia_id without leading zeros."""

    id: str
    speaker: str
    text: str


@dataclasses.dataclass(frozen=True)
class DialogueQuestion:
    """A question about a conversation.

    Attributes:
      text: the question.
      answer: the gold answer, "" if the file has none (category 5).
      category: a key of ``CATEGORIES``.
      evidence: ids of the utterances that support the answer.
    """

    text: str
    answer: str
    category: int
    evidence: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Place:
    """Position of a sample in a file, and the categories of its questions.

    Attributes:
      path: the file.
      number: number of the sample in its file, from 1.
      start: its first byte.
      size: its length in bytes.
      categories: category of each question, in order.
    """

    path: pathlib.Path
    number: int
    start: int
    size: int
    categories: bytes

    def read(self) -> Conversation:
        """Returns the sample.

        Raises:
          DataError: the file is not what it was when it was opened.
        """
        place = f"{self.path}, sample {self.number}"
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                value = json.loads(file.read(self.size))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{place}: expected the file as it was at the start of the run, got "
                f"{error}; start again if it was changed"
            ) from error
        return parse(value, place)


def find_samples(data_dir: str) -> list[Place]:
    """Returns all samples of a file, or of the ``*.json`` files of a folder.

    Args:
      data_dir: the file or folder, as in ``config.env.data_dir``.

    Raises:
      DataError: no such file, none in the folder, or a damaged one; names the file, the
        sample (from 1), the field, what was expected and what came.
    """
    root = pathlib.Path(data_dir)
    paths = sorted(root.glob("*.json")) if root.is_dir() else [root]
    if not data_dir or not paths or not paths[0].is_file():
        raise DataError(
            "config.env.data_dir: expected a JSON file of conversations, or a folder "
            f"with such files (*.json), got {data_dir!r}"
        )
    places = []
    for path in paths:
        for number, (start, size, value) in enumerate(read_objects(path), start=1):
            conversation = parse(value, f"{path}, sample {number}")
            categories = bytes(q.category for q in conversation.questions)
            places.append(Place(path, number, start, size, categories))
    if not places:
        raise DataError(f"{data_dir}: expected at least one conversation, got none")
    return places


def parse(value: Any, place: str) -> Conversation:
    """Checks one decoded sample and converts it.

    Evidence that names no turn of the conversation is left out: the public file has
    some.

    Args:
      value: the decoded JSON object.
      place: file and sample, for errors.

    Raises:
      DataError: names ``place``, the field, what was expected and what came.
    """
    turns_by_session = _field(
        value, "conversation", dict, "an object with sessions", place
    )
    # By number, since a sort by name puts session_10 before session_2.
    numbers = sorted(int(m[1]) for m in map(_SESSION.fullmatch, turns_by_session) if m)
    sessions = tuple(_session(turns_by_session, number, place) for number in numbers)
    known = {u.id for session in sessions for u in session.utterances}
    if not known:
        raise DataError(
            f"{place}, field conversation: expected session_1, session_2 ... with "
            f"turns, got {_cut(list(turns_by_session)[:6])}"
        )
    items = _field(value, "qa", list, "a list of questions", place)
    questions = tuple(
        _question(item, known, f"{place}, field qa[{at}]")
        for at, item in enumerate(items)
    )
    return Conversation(str(value.get("sample_id", "")), sessions, questions)


def _session(turns_by_session: dict, number: int, place: str) -> Session:
    name = f"session_{number}"
    place = f"{place}, field conversation."
    turns = _field(turns_by_session, name, list, "a list of turns", place, joint="")
    date = turns_by_session.get(f"{name}_date_time", "")
    if not isinstance(date, str):
        raise DataError(f"{place}{name}_date_time: expected a text, got {_cut(date)}")
    utterances = [
        _utterance(turn, f"{place}{name}[{at}]") for at, turn in enumerate(turns)
    ]
    return Session(number, _clean(date), tuple(utterances))


def _utterance(turn: Any, place: str) -> Utterance:
    dia_id = _field(turn, "dia_id", str, "a turn's id like 'D1:3'", place, joint=".")
    speaker = _field(turn, "speaker", str, "a name", place, joint=".")
    text = _clean(_field(turn, "text", str, "a text", place, joint="."))
    ids = turn_ids(dia_id)
    if len(ids) != 1:
        raise DataError(f"{place}.dia_id: expected 'D1:3', got {_cut(dia_id)}")
    # The policy reads text only, so a picture is replaced by its caption.
    caption = turn.get("blip_caption", "")
    if isinstance(caption, str) and caption.strip():
        text = f"{text} (picture: {_clean(caption)})".strip()
    return Utterance(ids[0], _clean(speaker), text)


def _question(item: Any, known: set[str], place: str) -> DialogueQuestion:
    text = _clean(_field(item, "question", str, "a text", place, joint="."))
    kind = _field(item, "category", int, "a number, 1 to 5", place, joint=".")
    if isinstance(kind, bool) or kind not in CATEGORIES:
        raise DataError(f"{place}.category: expected 1 to 5, got {_cut(kind)}")
    if not text:
        raise DataError(f"{place}.question: expected a text, not empty, got ''")
    answer = item.get("answer", "" if kind == ADVERSARIAL else None)
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise DataError(
            f"{place}.answer: expected a text or a number, got {_cut(answer)}"
        )
    answer = _clean(str(answer))
    if not answer and kind != ADVERSARIAL:
        raise DataError(f"{place}.answer: expected a text, not empty, got ''")
    support = item.get("evidence", [])
    # Evidence may be one text that names several ids.
    support = [support] if isinstance(support, str) else support
    if not isinstance(support, list):
        raise DataError(
            f"{place}.evidence: expected a list of ids like 'D1:3', got {_cut(support)}"
        )
    ids = turn_ids(" ".join(map(str, support)))
    return DialogueQuestion(text, answer, kind, tuple(i for i in ids if i in known))


def turn_ids(text: str) -> list[str]:
    """Returns the ids in ``text``, each once, in order, without leading zeros."""
    ids = (f"D{int(a)}:{int(b)}" for a, b in _TURN.findall(text))
    return list(dict.fromkeys(ids))


def _field(
    value: Any,
    name: str,
    kind: type,
    expected: str,
    place: str,
    joint: str = ", field ",
) -> Any:
    """Returns one field of an object, after checking that it is of a kind."""
    if not isinstance(value, dict):
        raise DataError(f"{place}: expected an object with {name}, got {_cut(value)}")
    if name not in value:
        known = ", ".join(map(str, list(value)[:8])) or "nothing"
        raise DataError(
            f"{place}{joint}{name}: expected {expected}, there is {_cut(known)}"
        )
    if not isinstance(value[name], kind):
        raise DataError(
            f"{place}{joint}{name}: expected {expected}, got {_cut(value[name])}"
        )
    return value[name]


def _clean(text: str) -> str:
    return " ".join(text.split())


def _cut(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def abstains(answer: str) -> bool:
    """Whether ``answer`` says that the question cannot be answered.

    Accepts any text: case, punctuation and apostrophes do not matter. An empty answer
    does not abstain; it says nothing.
    """
    bare = re.sub(r"['’`]", "", answer.lower())
    words = " ".join(re.findall(r"[^\W_]+", bare))
    # Spaces on both sides: a phrase matches whole words only.
    return any(f" {phrase} " in f" {words} " for phrase in ABSTENTIONS)


def answer_score(answer: str, question: DialogueQuestion) -> float:
    """Returns the score of an answer, in [0, 1].

    If an adversarial question has an answer of its own, that is right too.

    Args:
      answer: the policy's answer.
      question: the question.
    """
    if question.category != ADVERSARIAL:
        return token_f1(answer, question.answer)
    if abstains(answer):
        return 1.0
    return exact_match(answer, question.answer) if question.answer else 0.0


def gold_answer(question: DialogueQuestion) -> str:
    """Returns an answer to ``question`` that scores 1.0."""
    return NOT_MENTIONED if question.category == ADVERSARIAL else question.answer
