"""Reads conversations in the format of LoCoMo: sessions of turns, and questions.

A sentence ends at ``.``, ``!`` or ``?`` (with what closes a quotation or a bracket)
before a space, or at the end of a line: abbreviations are cut too, which harms nobody
here. Captions of shared pictures are left out: they are not what somebody said.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re

_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[.!?][\"'”’)\]])\s+|\n+")
_SESSION = re.compile(r"session_(\d+)")
_TURN = re.compile(r"D(\d+):(\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence; ``turn`` is the id of the turn it stands in, ``D<n>:<n>``."""

    turn: str
    speaker: str
    date: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question and the turns that hold its evidence, none of them twice."""

    text: str
    category: int
    evidence: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Conversation:
    """A conversation in order. unread: evidence that names no turn of it."""

    name: str
    sentences: list[Sentence]
    questions: list[Question]
    unread: int


def read_conversations(path) -> list[Conversation]:
    """The conversations of a file, in its order.

    Raises ValueError where the file is not of that format, naming the place.
    """
    data = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    if not isinstance(data, list) or not data:
        raise ValueError(f"{path}: expected a list of conversations; see --data")
    talks = []
    for place, item in enumerate(data):
        try:
            talks.append(_read(item, place))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}: conversation {place}: expected 'conversation' with sessions "
                f"of turns, and 'qa'; got {error!r}; see --data"
            ) from error
    if len({talk.name for talk in talks}) < len(talks):
        raise ValueError(f"{path}: expected every sample_id once; see --data")
    return talks


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, stripped, none of them empty."""
    return [part.strip() for part in _SENTENCE.split(text) if part.strip()]


def turn_ids(evidence: list[str]) -> tuple[list[str], int]:
    """Turn ids in order, each once, and how many items hold none.

    An item may hold several ids; leading zeros are dropped.
    """
    found, unread = {}, 0
    for item in evidence:
        ids = [f"D{int(a)}:{int(b)}" for a, b in _TURN.findall(str(item))]
        found |= dict.fromkeys(ids)
        unread += not ids
    return list(found), unread


def _read(item: dict, place: int) -> Conversation:
    talk = item["conversation"]
    numbers = (_SESSION.fullmatch(key) for key in talk)
    sentences = []
    for number in sorted(int(match[1]) for match in numbers if match):
        date = str(talk.get(f"session_{number}_date_time", ""))
        for turn in talk[f"session_{number}"]:
            (name,), _ = turn_ids([turn["dia_id"]])
            sentences += [
                Sentence(name, turn["speaker"], date, text)
                for text in split_sentences(turn["text"])
            ]
    known = {sentence.turn for sentence in sentences}
    questions, unread = [], 0
    for asked in item["qa"]:
        ids, bad = turn_ids(asked.get("evidence", []))
        kept = tuple(turn for turn in ids if turn in known)
        unread += bad + len(ids) - len(kept)
        questions.append(Question(asked["question"], int(asked["category"]), kept))
    name = str(item.get("sample_id", place))
    return Conversation(name, sentences, questions, unread)
