"""Scripted readers: they read what is in a context, the same for every memory rule.

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

# An action with this end is continued by the policy. It is half a surrogate pair: no
# ids decode to it, so that no action that was sampled and is replayed can end in it.
SPEAK = "\ud800"

# Sentences and questions of bAbI, and the short notes that experts make of them.
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

# Goals, observations and passages of the suites of many questions.
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


class Reader(Protocol):
    """How one suite's observations are noted, looked up and answered."""

    def notes(self, observation: str) -> list[str]:
        """The statements of an observation, one text each; none for a question.

        Args:
          observation: as the environment gave it.
        """
        ...

    def queries(self, goal: str, observation: str, due: bool = False) -> list[str]:
        """What to look up before the answer that is due now; empty if none is.

        Args:
          goal: of the task.
          observation: of this turn.
          due: an answer is due, whatever the observation says.
        """
        ...

    def move(self, goal: str, observation: str) -> str:
        """The action if no answer is due; "" to pass.

        Args:
          goal: of the task.
          observation: of this turn.
        """
        ...

    def answer(self, goal: str, observation: str, texts: Sequence[str]) -> str:
        """The action that answers.

        Args:
          goal: of the task.
          observation: of this turn.
          texts: observations and notes alike, oldest first; of two that disagree, the
            later one is right.
        """
        ...


class PolicyAnswers:
    """A suite's reader whose answers a policy gives, in the context of the rule.

    Args:
      reader: knows what to note, what to look up and when.
    """

    def __init__(self, reader: Reader) -> None:
        self.notes, self.queries, self.move = reader.notes, reader.queries, reader.move

    def answer(self, goal: str, observation: str, texts: Sequence[str]) -> str:
        """``SPEAK``: the policy continues the action."""
        return SPEAK


class LedgerReader:
    """A ``Reader`` of the suite ``ledger``, which makes no mistakes.

    It answers from the newest text about the person and topic that are asked about.
    """

    def notes(self, observation: str) -> list[str]:
        """A fact as person, topic and value."""
        words = observation.split()
        if len(words) < 3 or words[0] == "what":
            return []
        return [f"{words[0]} {words[1]} {words[-1]}"]

    def queries(self, goal: str, observation: str, due: bool = False) -> list[str]:
        """The person and topic of a question."""
        words = observation.split()
        return [f"{words[2]} {words[3]}"] if words[:1] == ["what"] else []

    def move(self, goal: str, observation: str) -> str:
        """Passes: there is nothing to do before the question."""
        return ""

    def answer(self, goal: str, observation: str, texts: Sequence[str]) -> str:
        """The value in the newest text about the person and topic of the question."""
        who, topic = observation.split()[2:4]
        value = UNKNOWN
        for text in texts:
            words = text.split()
            for at in range(len(words) - 2):
                if words[at : at + 2] == [who, topic]:
                    rest = [word for word in words[at + 2 : at + 5] if word in VALUES]
                    value = rest[0] if rest else value
        return f"<answer> {value}</answer>"


class BabiReader:
    """A ``Reader`` of the suite ``babi``; see ``World`` for what it can answer."""

    def notes(self, observation: str) -> list[str]:
        """The sentence, without its full stop."""
        text = observation.strip()
        return [] if text.endswith("?") else [text.rstrip(".")]

    def queries(self, goal: str, observation: str, due: bool = False) -> list[str]:
        """The words of a question that name its subject."""
        text = observation.strip()
        if not text.endswith("?"):
            return []
        words = _ASKING.sub(" ", text).split()
        return [" ".join(word for word in words if word not in ("is", "the"))]

    def move(self, goal: str, observation: str) -> str:
        """Passes: a story has nothing to act on."""
        return ""

    def answer(self, goal: str, observation: str, texts: Sequence[str]) -> str:
        """The answer that follows from the sentences of all texts."""
        world = World()
        for text in texts:
            for sentence in re.split(r"[.;]\s*", text):
                world.learn(sentence.strip())
        return f"<act> {world.answer(observation.strip())}</act>"


class World:
    """A small world, learnt from the sentences of a story or from notes.

    It holds places of persons and things, what somebody carries, and gifts. That
    answers tasks 1, 2, 5, 6, 7, 8, 9 (its plain sentences), 11, 12 and 13 as far as the
    texts go; the answer to other questions is that it does not know.

    Attributes:
      place: of persons, and of things that nobody carries.
      bearer: who carries a thing, in the order of taking.
      gifts: giver, thing and receiver of each, oldest first.
    """

    def __init__(self) -> None:
        self.place: dict[str, str] = {}
        self.bearer: dict[str, str] = {}
        self.gifts: list[dict[str, str]] = []
        self._last: tuple[str, ...] = ()  # who moved last: whom "she" may mean

    def learn(self, text: str) -> None:
        """Takes in one sentence or note.

        Args:
          text: without its full stop; an unknown form changes nothing.
        """
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
        """The place of a person, or of a thing or its bearer; None if unknown.

        Args:
          subject: name of a person or thing.
        """
        return self.place.get(self.bearer.get(subject, subject))

    def answer(self, question: str) -> str:
        """The answer in the words of the task; ``UNKNOWN_ANSWER`` if there is none.

        Args:
          question: of one of the known forms.
        """
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
        for pattern, role in _GIFTS:
            if gift := pattern.match(question):
                return self._gift(gift.groupdict(), role)
        if holds := _HOLDS.match(question):
            things = [t for t, who in self.bearer.items() if who == holds[2]]
            if holds[1]:
                return COUNTS[min(len(things), len(COUNTS) - 1)]
            return ",".join(things) or "nothing"
        return UNKNOWN_ANSWER

    def _gift(self, known: dict[str, str], wanted: str) -> str:
        for gift in reversed(self.gifts):
            if all(gift[role] == value for role, value in known.items()):
                return gift[wanted]
        return UNKNOWN_ANSWER


class DialogueReader:
    """A ``Reader`` of the suite ``dialogue``: ``read_answer`` over single lines."""

    def notes(self, observation: str) -> list[str]:
        """The lines of a session, each with its date."""
        if observation.startswith(QUESTION):
            return []
        head, *lines = observation.split("\n")
        date = head.partition(", ")[2]
        return [plain(f"({date}) {line}" if date else line) for line in lines]

    def queries(self, goal: str, observation: str, due: bool = False) -> list[str]:
        """The question itself."""
        asks = observation.startswith(QUESTION)
        return [plain(observation.removeprefix(QUESTION))] if asks else []

    def move(self, goal: str, observation: str) -> str:
        """Passes: a session has nothing to act on."""
        return ""

    def answer(self, goal: str, observation: str, texts: Sequence[str]) -> str:
        """A short answer read off the single lines."""
        notes: list[str] = []
        for text in texts:
            is_observation = text.startswith(("session ", QUESTION))
            notes += self.notes(text) if is_observation else [text]
        # Of equally good notes it takes the first, which shall be the newest.
        question = observation.removeprefix(QUESTION)
        answer = read_answer(question, tuple(notes[::-1]))
        return f"<act> {plain(answer)}</act>"


class MultiQaReader:
    """A ``Reader`` of the suites ``multi_qa`` and ``factbook``.

    It searches for each question once, then answers with a short span of what it read.
    It passes once before it answers: the passages found last make way for what is
    recalled.
    """

    def notes(self, observation: str) -> list[str]:
        """The passages that a search found."""
        lines = observation.split("\n")[1:]
        return [plain(line[2:]) for line in lines if line.startswith("- ")]

    def queries(self, goal: str, observation: str, due: bool = False) -> list[str]:
        """All questions of the goal, once the last search is out of sight."""
        questions = _ASKED.findall(goal)
        cleared = _done(observation, questions) and "\n- " not in observation
        return [plain(question) for question in questions] if due or cleared else []

    def move(self, goal: str, observation: str) -> str:
        """The next search, or a pass after the last one."""
        questions = _ASKED.findall(goal)
        if _done(observation, questions):
            return ""
        count = _SEARCHES.match(observation)
        return f"<act> search: {plain(questions[int(count[1]) if count else 0])}</act>"

    def answer(self, goal: str, observation: str, texts: Sequence[str]) -> str:
        """A short answer to each question, numbered as the goal has them."""
        notes = []
        for text in texts:
            # Of an observation only the passages count: its head repeats the question.
            notes += self.notes(text) if _SEARCHES.match(text) else [text]
        sentences = [s for note in notes for s in re.split(r"(?<=[.!?])\s+", note)]
        answers = [_span(question, sentences) for question in _ASKED.findall(goal)]
        return f"<answer> {plain(join_answers(answers))}</answer>"


# The reader of each suite that has one, by ``env.name``.
READERS = {
    "ledger": LedgerReader,
    "babi": BabiReader,
    "dialogue": DialogueReader,
    "multi_qa": MultiQaReader,
    "factbook": MultiQaReader,
}


def plain(text: str) -> str:
    """The text on one line and without any tag of the action grammar.

    Args:
      text: of a note, question or answer.
    """
    return " ".join(text.replace("<", "(").replace(">", ")").split())


def _done(observation: str, questions: Sequence[str]) -> bool:
    count = _SEARCHES.match(observation)
    return count is not None and int(count[1]) >= len(questions)


def _span(question: str, sentences: Sequence[str]) -> str:
    """A short answer to a question.

    Of the names and numbers that the question lacks, it is the one whose sentences
    share most words with the question; it is a year if the question asks for one.
    """
    wanted = _words(question)
    shared = [len(wanted & _words(sentence)) for sentence in sentences]
    if not shared or not max(shared):
        return UNKNOWN
    if _VERDICT.match(question):
        return "yes"
    pattern = _YEAR if _WHEN.search(question) else _NAME
    weights: dict[str, int] = {}
    for sentence, count in zip(sentences, shared, strict=True):
        names = {match[0].rstrip(".,") for match in pattern.finditer(sentence)}
        for name in sorted(names):
            if _words(name) - wanted:
                # Squared: one sentence with two words of it outweighs two with one.
                weights[name] = weights.get(name, 0) + count * count
    return max(weights, key=lambda name: weights[name], default=UNKNOWN)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower())) - _COMMON
