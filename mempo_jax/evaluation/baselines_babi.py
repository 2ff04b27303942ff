"""The scripted reader of bAbI: a small world, told by sentences or by notes.

It knows places of persons and things, what somebody carries, and gifts. That answers
tasks 1, 2, 5, 6, 7, 8, 9 (its plain sentences), 11, 12 and 13 as far as the texts go;
to other questions it says that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mempo_jax.envs.babi_answers import COUNTS
from mempo_jax.envs.babi_expert import UNKNOWN

_WENT = "went back|went|journeyed|moved|travelled|is|now"
_MOVE = re.compile(
    rf"(?P<who>[A-Z]\w+)(?: and (?P<other>[A-Z]\w+))? (?:{_WENT}) "
    r"(?:to|in|at) (?:the )?(?P<place>[a-z]\w*)$"
)
_MOVE_ON = re.compile(
    rf"(?:\w+ )*(?P<who>he|she|they) (?:{_WENT}) (?:to|in) the (?P<place>\w+)$",
    re.IGNORECASE,
)
_TAKE = re.compile(r"(\w+) (?:took|got|grabbed|picked up) the (\w+)(?: there)?$")
_DROP = re.compile(r"(\w+) (?:left|discarded|dropped|put down) the (\w+)(?: there)?$")
_GIVE = re.compile(r"(\w+) (?:gave|handed|passed) the (\w+) to (\w+)$")
_THING_AT = re.compile(r"([a-z]\w*) is at (\w+)$")
_WHERE = re.compile(r"Where is (?:the )?(\w+)")
_IS_IN = re.compile(r"Is (\w+) in the (\w+)")
_HOLDS = re.compile(r"(?:What is|(How many) objects (?:is|are)) (\w+) \w+")
_GIFTS = (
    (re.compile(r"What did (?P<giver>\w+) give to (?P<receiver>\w+)"), "thing"),
    (re.compile(r"Who gave the (?P<thing>\w+) to (?P<receiver>\w+)"), "giver"),
    (re.compile(r"Who gave the (?P<thing>\w+)"), "giver"),
    (re.compile(r"Who received the (?P<thing>\w+)"), "receiver"),
    (re.compile(r"Who did (?P<giver>\w+) give the (?P<thing>\w+) to"), "receiver"),
)
_ASKING = re.compile(
    r"^(?:where|what|who|is|how many|did|does|objects|are|the)\b|[?]", re.IGNORECASE
)


class BabiReader:
    """A ``Reader`` of the suite ``babi``."""

    def notes(self, observation: str) -> list[str]:
        text = observation.strip()
        return [] if text.endswith("?") else [text.rstrip(".")]

    def queries(self, goal: str, observation: str, due: bool = False) -> list[str]:
        text = observation.strip()
        if not text.endswith("?"):
            return []
        words = _ASKING.sub(" ", text).split()
        return [" ".join(word for word in words if word not in ("is", "the"))]

    def move(self, goal: str, observation: str) -> str:
        return ""

    def answer(self, goal: str, observation: str, texts: Sequence[str]) -> str:
        world = World()
        for text in texts:
            for sentence in re.split(r"[.;]\s*", text):
                world.told(sentence.strip())
        return f"<act> {world.answer(observation.strip())}</act>"


class World:
    """What has been told so far."""

    def __init__(self) -> None:
        self.place: dict[str, str] = {}  # of persons, and of things that lie somewhere
        self.bearer: dict[str, str] = {}
        self.gifts: list[dict[str, str]] = []
        self._last: tuple[str, ...] = ()  # who moved last: whom "she" may mean

    def told(self, text: str) -> None:
        """Takes in one sentence or note; what it does not know changes nothing."""
        if move := _MOVE.match(text):
            self._last = tuple(filter(None, (move["who"], move["other"])))
            self.place.update(dict.fromkeys(self._last, move["place"]))
        elif move := _MOVE_ON.match(text):
            self.place.update(dict.fromkeys(self._last, move["place"]))
        elif take := _TAKE.match(text):
            self._takes(take[1], take[2])
        elif drop := _DROP.match(text):
            self._puts(drop[2], self.place.get(drop[1]))
        elif gift := _GIVE.match(text):
            roles = ("giver", "thing", "receiver")
            self.gifts.append(dict(zip(roles, gift.groups(), strict=True)))
            self._takes(gift[3], gift[2])
        elif note := _THING_AT.match(text):
            if note[2][0].isupper():
                self._takes(note[2], note[1])
            else:
                self._puts(note[1], note[2])

    def _takes(self, who: str, thing: str) -> None:
        self.bearer.pop(thing, None)  # so that the order is that of taking
        self.bearer[thing] = who

    def _puts(self, thing: str, place: str | None) -> None:
        self.bearer.pop(thing, None)
        self.place.pop(thing, None)
        if place is not None:
            self.place[thing] = place

    def where(self, subject: str) -> str | None:
        return self.place.get(self.bearer.get(subject, subject))

    def answer(self, question: str) -> str:
        if where := _WHERE.match(question):
            return self.where(where[1]) or UNKNOWN
        if is_in := _IS_IN.match(question):
            place = self.where(is_in[1])
            return UNKNOWN if place is None else "yes" if place == is_in[2] else "no"
        for pattern, asked in _GIFTS:
            if gift := pattern.match(question):
                return self._gift(gift.groupdict(), asked)
        if holds := _HOLDS.match(question):
            things = [t for t, who in self.bearer.items() if who == holds[2]]
            if holds[1]:
                return COUNTS[min(len(things), len(COUNTS) - 1)]
            return ",".join(things) or "nothing"
        return UNKNOWN

    def _gift(self, known: dict[str, str], asked: str) -> str:
        for gift in reversed(self.gifts):
            if all(gift[role] == value for role, value in known.items()):
                return gift[asked]
        return UNKNOWN
