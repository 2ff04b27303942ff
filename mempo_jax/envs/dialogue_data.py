"""Reads long conversations with questions, in LoCoMo's form, of any size.

A sample is an object with ``conversation`` (``session_1``, ``session_2`` ...: lists of
turns with ``dia_id`` "D1:3", ``speaker`` and ``text``; ``session_1_date_time`` and so
on) and ``qa`` (a list of objects with ``question``, ``answer``, ``category`` 1 to 5 and
``evidence``, a list of dia_ids). A turn that shares a picture may say what it shows in
``blip_caption``. ``sample_id`` may be missing, and questions of category 5, about what
was never said, need no ``answer``. Source: Maharana et al. 2024, "Evaluating Very
Long-Term Conversational Memory of LLM Agents".

One pass checks every sample and keeps its place; it is read again when it is wanted.

How an answer about a conversation is scored.

Questions about what was said: token F1 of the answer (SQuAD's normalisation; LoCoMo's
own evaluation stems words besides, which lifts its figures a little). Adversarial
questions ask about what nobody said: right is to say so, that is, to abstain.
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
_SESSION = re.compile(r"session_(\d{1,6})")
_TURN = re.compile(r"D(\d{1,6}):(\d{1,6})")


@dataclasses.dataclass(frozen=True)
class Utterance:
    """One turn of a conversation; ``id`` is its dia_id without leading zeros."""

    id: str
    speaker: str
    text: str


@dataclasses.dataclass(frozen=True)
class Session:
    number: int
    date: str
    said: tuple[Utterance, ...]


@dataclasses.dataclass(frozen=True)
class DialogueQuestion:
    """A question. answer: "" where the file has none (category 5). evidence: ids."""

    text: str
    answer: str
    category: int
    evidence: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Conversation:
    name: str
    sessions: tuple[Session, ...]
    asked: tuple[DialogueQuestion, ...]

    @property
    def speakers(self) -> tuple[str, ...]:
        """Everybody who speaks, in order of appearance."""
        names = (said.speaker for s in self.sessions for said in s.said)
        return tuple(dict.fromkeys(names))


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a sample lies, and the categories of its questions in order."""

    path: pathlib.Path
    number: int  # in its file, from 1
    start: int
    size: int  # both in bytes
    categories: bytes

    def read(self) -> Conversation:
        """The sample.

        Raises:
          DataError: the file is not what it was when it was opened.
        """
        where = f"{self.path}, sample {self.number}"
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                value = json.loads(file.read(self.size))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{where}: expected the file as it was at the start of the run, got "
                f"{error}; start again if it was changed"
            ) from error
        return parse(value, where)


def find_samples(data_dir: str) -> list[Place]:
    """All samples of a file, or of the ``*.json`` files of a folder in their order.

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
            talk = parse(value, f"{path}, sample {number}")
            kinds = bytes(asked.category for asked in talk.asked)
            places.append(Place(path, number, start, size, kinds))
    if not places:
        raise DataError(f"{data_dir}: expected at least one conversation, got none")
    return places


def parse(value: Any, place: str) -> Conversation:
    """Checks one decoded sample and gives it our form.

    Evidence that names no turn of the conversation is left out: the public file has
    some.

    Raises:
      DataError: names ``place``, the field, what was expected and what came.
    """
    talk = _field(value, "conversation", dict, "an object with sessions", place)
    numbers = sorted(int(m[1]) for m in map(_SESSION.fullmatch, talk) if m)
    sessions = tuple(_session(talk, number, place) for number in numbers)
    known = {said.id for session in sessions for said in session.said}
    if not known:
        raise DataError(
            f"{place}, field conversation: expected session_1, session_2 ... with "
            f"turns, got {_cut(list(talk)[:6])}"
        )
    items = _field(value, "qa", list, "a list of questions", place)
    asked = tuple(
        _asked(item, known, f"{place}, field qa[{at}]") for at, item in enumerate(items)
    )
    return Conversation(str(value.get("sample_id", "")), sessions, asked)


def _session(talk: dict, number: int, place: str) -> Session:
    name = f"session_{number}"
    place = f"{place}, field conversation."
    turns = _field(talk, name, list, "a list of turns", place, joint="")
    date = talk.get(f"{name}_date_time", "")
    if not isinstance(date, str):
        raise DataError(f"{place}{name}_date_time: expected a text, got {_cut(date)}")
    said = [_said(turn, f"{place}{name}[{at}]") for at, turn in enumerate(turns)]
    return Session(number, _clean(date), tuple(said))


def _said(turn: Any, place: str) -> Utterance:
    dia_id = _field(turn, "dia_id", str, "a turn's id like 'D1:3'", place, joint=".")
    speaker = _field(turn, "speaker", str, "a name", place, joint=".")
    text = _clean(_field(turn, "text", str, "a text", place, joint="."))
    ids = turn_ids(dia_id)
    if len(ids) != 1:
        raise DataError(f"{place}.dia_id: expected 'D1:3', got {_cut(dia_id)}")
    caption = turn.get("blip_caption", "")
    if isinstance(caption, str) and caption.strip():
        text = f"{text} (picture: {_clean(caption)})".strip()
    return Utterance(ids[0], _clean(speaker), text)


def _asked(item: Any, known: set[str], place: str) -> DialogueQuestion:
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
    named = item.get("evidence", [])
    named = [named] if isinstance(named, str) else named
    if not isinstance(named, list):
        raise DataError(
            f"{place}.evidence: expected a list of ids like 'D1:3', got {_cut(named)}"
        )
    ids = turn_ids(" ".join(map(str, named)))
    return DialogueQuestion(text, answer, kind, tuple(i for i in ids if i in known))


def turn_ids(text: str) -> list[str]:
    """The ids named in a text, each once, in order, without leading zeros."""
    found = (f"D{int(a)}:{int(b)}" for a, b in _TURN.findall(text))
    return list(dict.fromkeys(found))


def _field(
    value: Any,
    name: str,
    kind: type,
    expected: str,
    place: str,
    joint: str = ", field ",
) -> Any:
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


NOT_MENTIONED = "not mentioned"  # what we write where we abstain
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


def abstains(answer: str) -> bool:
    """Whether an answer says that the question cannot be answered.

    Total: case, punctuation and apostrophes do not matter. An empty answer does not
    abstain; it says nothing.
    """
    bare = re.sub(r"['’`]", "", answer.lower())
    words = " ".join(re.findall(r"[^\W_]+", bare))
    return any(f" {phrase} " in f" {words} " for phrase in ABSTENTIONS)


def answer_score(given: str, asked: DialogueQuestion) -> float:
    """Score in [0, 1]; an adversarial question's own answer, if any, is right too."""
    if asked.category != ADVERSARIAL:
        return token_f1(given, asked.answer)
    if abstains(given):
        return 1.0
    return exact_match(given, asked.answer) if asked.answer else 0.0


def gold_answer(asked: DialogueQuestion) -> str:
    """An answer that scores 1.0."""
    return NOT_MENTIONED if asked.category == ADVERSARIAL else asked.answer
