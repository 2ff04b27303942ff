"""The scripted reader of bAbI: a small world, told by sentences or by notes.

It knows places of persons and things, what somebody carries, and gifts. That answers
tasks 1, 2, 5, 6, 7, 8, 9 (its plain sentences), 11, 12 and 13 as far as the texts go;
to other questions it says that it does not know.

Scripted readers: what stands in a context, read the same for every memory rule.

A baseline is a rule about memory. So that a comparison is of rules and not of how well
a model reads, one reader of each task suite answers for all of them from the texts
that the rule leaves in the context, and from nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from mempo_jax.envs.answers import join_answers
from mempo_jax.envs.babi import COUNTS, UNKNOWN_ANSWER
from mempo_jax.envs.dialogue import QUESTION, read_answer
from mempo_jax.envs.ledger import UNKNOWN, VALUES

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
            return self.where(where[1]) or UNKNOWN_ANSWER
        if is_in := _IS_IN.match(question):
            place = self.where(is_in[1])
            return (
                UNKNOWN_ANSWER
                if place is None
                else "yes"
                if place == is_in[2]
                else "no"
            )
        for pattern, asked in _GIFTS:
            if gift := pattern.match(question):
                return self._gift(gift.groupdict(), asked)
        if holds := _HOLDS.match(question):
            things = [t for t, who in self.bearer.items() if who == holds[2]]
            if holds[1]:
                return COUNTS[min(len(things), len(COUNTS) - 1)]
            return ",".join(things) or "nothing"
        return UNKNOWN_ANSWER

    def _gift(self, known: dict[str, str], asked: str) -> str:
        for gift in reversed(self.gifts):
            if all(gift[role] == value for role, value in known.items()):
                return gift[asked]
        return UNKNOWN_ANSWER


# An action that ends so is continued by the policy. Half a surrogate pair: no ids
# decode to it, so nothing that was sampled and is replayed can end so.
SPEAK = "\ud800"


class Reader(Protocol):
    """How one suite's observations are noted, looked up and answered.

    Texts are observations and notes alike, oldest first: of two that disagree, the
    later holds.
    """

    def notes(self, observation: str) -> list[str]:
        """What an observation tells, a statement each; none for a question."""
        ...

    def queries(self, goal: str, observation: str, due: bool = False) -> list[str]:
        """What to look up before the answer that is due now; empty where none is.

        due: one is due, whatever the observation says.
        """
        ...

    def move(self, goal: str, observation: str) -> str:
        """The action where no answer is due; "" to pass."""
        ...

    def answer(self, goal: str, observation: str, texts: Sequence[str]) -> str:
        """The action that answers."""
        ...


class PolicyAnswers:
    """A suite's reader, but for its answers: a policy says them in the context that the
    rule leaves.

    reader: knows what to note, what to look up and when.
    """

    def __init__(self, reader: Reader) -> None:
        self.notes, self.queries, self.move = reader.notes, reader.queries, reader.move

    def answer(self, goal: str, observation: str, texts: Sequence[str]) -> str:
        return SPEAK


class LedgerReader:
    """Exact: the newest text about that person and topic."""

    def notes(self, observation: str) -> list[str]:
        words = observation.split()
        if len(words) < 3 or words[0] == "what":
            return []
        return [f"{words[0]} {words[1]} {words[-1]}"]

    def queries(self, goal: str, observation: str, due: bool = False) -> list[str]:
        words = observation.split()
        return [f"{words[2]} {words[3]}"] if words[:1] == ["what"] else []

    def move(self, goal: str, observation: str) -> str:
        return ""

    def answer(self, goal: str, observation: str, texts: Sequence[str]) -> str:
        who, topic = observation.split()[2:4]
        value = UNKNOWN
        for text in texts:
            words = text.split()
            for at in range(len(words) - 2):
                if words[at : at + 2] == [who, topic]:
                    rest = [word for word in words[at + 2 : at + 5] if word in VALUES]
                    value = rest[0] if rest else value
        return f"<answer> {value}</answer>"


class DialogueReader:
    """``dialogue_expert.read_answer`` over what was said, line by line."""

    def notes(self, observation: str) -> list[str]:
        if observation.startswith(QUESTION):
            return []
        head, *lines = observation.split("\n")
        date = head.partition(", ")[2]
        return [plain(f"({date}) {line}" if date else line) for line in lines]

    def queries(self, goal: str, observation: str, due: bool = False) -> list[str]:
        asks = observation.startswith(QUESTION)
        return [plain(observation.removeprefix(QUESTION))] if asks else []

    def move(self, goal: str, observation: str) -> str:
        return ""

    def answer(self, goal: str, observation: str, texts: Sequence[str]) -> str:
        notes: list[str] = []
        for text in texts:
            told = text.startswith(("session ", QUESTION))
            notes += self.notes(text) if told else [text]
        # Of equally good notes it takes the first: the newest shall be that.
        asked = observation.removeprefix(QUESTION)
        said = read_answer(asked, tuple(notes[::-1]))
        return f"<act> {plain(said)}</act>"


class MultiQaReader:
    """Searches for each question once, then takes a short span of what it read.

    It passes once before it answers: the passages found last make way for what is
    recalled.
    """

    def notes(self, observation: str) -> list[str]:
        lines = observation.split("\n")[1:]
        return [plain(line[2:]) for line in lines if line.startswith("- ")]

    def queries(self, goal: str, observation: str, due: bool = False) -> list[str]:
        asked = _ASKED.findall(goal)
        cleared = _done(observation, asked) and "\n- " not in observation
        return [plain(question) for question in asked] if due or cleared else []

    def move(self, goal: str, observation: str) -> str:
        asked = _ASKED.findall(goal)
        if _done(observation, asked):
            return ""
        count = _SEARCHES.match(observation)
        return f"<act> search: {plain(asked[int(count[1]) if count else 0])}</act>"

    def answer(self, goal: str, observation: str, texts: Sequence[str]) -> str:
        told = []
        for text in texts:
            # What the tool says of itself repeats the question and tells nothing.
            told += self.notes(text) if _SEARCHES.match(text) else [text]
        sentences = [s for note in told for s in re.split(r"(?<=[.!?])\s+", note)]
        answers = [_span(question, sentences) for question in _ASKED.findall(goal)]
        return f"<answer> {plain(join_answers(answers))}</answer>"


_ASKED = re.compile(r"^\d+: (.*)$", re.MULTILINE)
_SEARCHES = re.compile(r"searches (\d+)")
_NAME = re.compile(r"[A-Z0-9][\w.,'-]*(?: (?:of|the|de|and|[A-Z0-9][\w.,'-]*))*")
_YEAR = re.compile(r"\b[12]\d{3}\b")
_WHEN = re.compile(r"\b(?:when|year)\b", re.IGNORECASE)
_VERDICT = re.compile(r"(?:is|are|was|were|do|does|did|has|have|can)\b", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_COMMON = frozenset(
    (
        *("a", "an", "the", "and", "or", "of", "to", "in", "on", "at", "for", "with"),
        *("is", "was", "were", "are", "be", "what", "when", "where", "which", "who"),
        *("that", "this", "it", "its", "as", "by", "from", "how", "many", "did", "do"),
    )
)
READERS = {
    "ledger": LedgerReader,
    "babi": BabiReader,
    "dialogue": DialogueReader,
    "multi_qa": MultiQaReader,
    "factbook": MultiQaReader,
}


def plain(text: str) -> str:
    """Text of one line that holds no tag of the action grammar."""
    return " ".join(text.replace("<", "(").replace(">", ")").split())


def _done(observation: str, asked: Sequence[str]) -> bool:
    count = _SEARCHES.match(observation)
    return count is not None and int(count[1]) >= len(asked)


def _span(question: str, sentences: Sequence[str]) -> str:
    """A short answer: of the names and numbers that the question lacks, the one whose
    sentences share most words with it; a year where it asks for one."""
    wanted = _words(question)
    shared = [len(wanted & _words(sentence)) for sentence in sentences]
    if not shared or not max(shared):
        return UNKNOWN
    if _VERDICT.match(question):
        return "yes"
    pattern = _YEAR if _WHEN.search(question) else _NAME
    weights: dict[str, int] = {}
    for sentence, count in zip(sentences, shared, strict=True):
        found = {match[0].rstrip(".,") for match in pattern.finditer(sentence)}
        for name in sorted(found):
            if _words(name) - wanted:
                weights[name] = weights.get(name, 0) + count * count
    return max(weights, key=lambda name: weights[name], default=UNKNOWN)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower())) - _COMMON
