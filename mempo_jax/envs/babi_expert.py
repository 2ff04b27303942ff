"""The scripted policy of ``babi``: notes, and answers read from recalled notes."""

from __future__ import annotations

import re

import numpy as np

from mempo_jax.envs.babi_answers import COUNTS
from mempo_jax.envs.base import Situation

UNKNOWN = "unknown"
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
# What each question about a gift knows of (giver, thing, receiver), and the one asked.
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
LAST = "last one was"  # begins the note of who moved last: whom "she" may mean
COREFERENCE = frozenset((11, 13))  # tasks that need it
_ROLES = ("giver", "thing", "receiver")


class BabiExpert:
    """Shows the form of note-keeping, writing each note with one probability.

    A move becomes ``John now at hallway``, a taken thing ``milk is at John``; for a
    thing put down it first recalls where its bearer is. Other sentences are written
    as they stand. In tasks with pronouns it also keeps a note of who moved last, and
    recalls it where a sentence says "she". Which sentences will be asked about plays
    no part. It answers questions about places, about what somebody carries, and about
    gifts; to others it says that it does not know.
    """

    def __init__(self, write_rate: float, tasks: tuple[int, ...] = ()) -> None:
        self._write_rate = write_rate
        self._tells_last = bool(COREFERENCE & set(tasks))

    def __call__(self, situation: Situation, rng: np.random.Generator) -> str:
        text = situation.observation
        if text.endswith("?"):
            return _answer(situation)
        if situation.queries:
            on = _MOVE_ON.match(text) if self._tells_last else None
            noted = _note_move_on(on[1], situation.recalled) if on else ""
            return noted or _note_drop(situation)
        shared = self._tells_last or _MOVE_BOTH.match(text)
        if shared and (said := self._moves(text, rng)):
            return said
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
        """Notes on a move of two, or of somebody whom "she" may mean later."""
        both, one = _MOVE_BOTH.match(text), _MOVE.match(text)
        if self._tells_last and (on := _MOVE_ON.match(text)):
            recall = f'<mem_recall k="1"> {LAST}</mem_recall>'
            return f"<think> {on[1]}</think>" + recall * self._writes(rng)
        if both or one:
            names = [both[1], both[2]] if both else [one[1]]
            notes = [_where(name, both[3] if both else one[2]) for name in names]
            notes += [f"{LAST} {' '.join(names)}"] * self._tells_last
            thought = f"<think> {' '.join(names)}</think>"
            return thought + _writes_of(notes) * self._writes(rng)
        return ""

    def _writes(self, rng: np.random.Generator) -> bool:
        return rng.random() < self._write_rate


def _writes_of(notes: list[str]) -> str:
    return "".join(f"<mem_write> {note}</mem_write>" for note in notes)


def _note_move_on(place: str, recalled: tuple[str, ...]) -> str:
    """Notes that whoever moved last is now at ``place``; "" where nobody knows."""
    found = [text for text in recalled if text.startswith(LAST)]
    names = found[0].removeprefix(LAST).split() if found else []
    return _writes_of([_where(name, place) for name in names])


def _note_drop(situation: Situation) -> str:
    drop = _DROP.match(situation.observation)
    place = _place_of(drop[1], situation.recalled) if drop else None
    if drop is None or place is None:
        return f"<mem_write> {situation.observation.rstrip('.')}</mem_write>"
    return f"<mem_write> {_where(drop[2], place)}</mem_write>"


def _answer(situation: Situation) -> str:
    text = situation.observation
    where, is_in = _WHERE.match(text), _IS_IN.match(text)
    if where or is_in:
        return _answer_place(where[1] if where else is_in[1], is_in, situation)
    if carried := _CARRIED.match(text):
        return _answer_carried(carried[2], bool(carried[1]), situation)
    for pattern, asked in _GIFTS:
        if gift := pattern.match(text):
            return _answer_gift(gift.groupdict(), asked, situation)
    if situation.queries:
        return f"<act> {UNKNOWN}</act>"
    return f"<mem_recall> {text.rstrip('? ')}</mem_recall>"


def _answer_place(
    subject: str, is_in: re.Match[str] | None, situation: Situation
) -> str:
    if not situation.queries:
        return f"<think> {subject}</think>{_recall(subject)}"
    place = _place_of(subject, situation.recalled)
    if place and place[0].isupper():  # a person, who has it
        if len(situation.queries) == 1:
            return _recall(place)
        place = _place_of(place, situation.recalled)
    if is_in and place:
        answer = "yes" if place == is_in[2] else "no"
        return f"<think> {place} {is_in[2]}</think><act> {answer}</act>"
    return f"<act> {place or UNKNOWN}</act>"


def _answer_carried(who: str, counts: bool, situation: Situation) -> str:
    """What ``who`` carries, as a list or as a number, from notes of taken things."""
    if not situation.queries:
        return f"<think> {who}</think><mem_recall> is at {who}</mem_recall>"
    end = f" is at {who}"
    things = [t.removesuffix(end) for t in situation.recalled if t.endswith(end)]
    things = list(dict.fromkeys(things))
    if counts:
        return f"<act> {COUNTS[min(len(things), len(COUNTS) - 1)]}</act>"
    return f"<act> {','.join(things) or 'nothing'}</act>"


def _answer_gift(known: dict[str, str], asked: str, situation: Situation) -> str:
    if not situation.queries:
        giver, thing, receiver = (known.get(role, "") for role in _ROLES)
        words = (giver, "gave the", thing, "to", receiver)
        query = " ".join(word for word in words if word)
        return f"<think> {query}</think><mem_recall> {query}</mem_recall>"
    for text in situation.recalled:
        if not (gift := _GIVE.match(text)):
            continue
        told = dict(zip(_ROLES, gift.groups(), strict=True))
        if all(told[role] == value for role, value in known.items()):
            return f"<act> {told[asked]}</act>"
    return f"<act> {UNKNOWN}</act>"


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
