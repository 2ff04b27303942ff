"""Scripted readers: what stands in a context, read the same for every memory rule.

A baseline is a rule about memory. So that a comparison is of rules and not of how well
a model reads, one reader of each task suite answers for all of them from the texts
that the rule leaves in the context, and from nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from mempo_jax.envs.answers import join_answers
from mempo_jax.envs.dialogue_expert import QUESTION, read_answer
from mempo_jax.envs.ledger import UNKNOWN, VALUES
from mempo_jax.evaluation.baselines_babi import BabiReader

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
