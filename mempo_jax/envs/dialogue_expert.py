"""The scripted policy of ``dialogue``: notes of all that is said, and a simple reader.

It is blind to what will be asked: each thing said is noted with one probability. Asked,
it recalls by the question's own words and reads the answer from the note that shares
most of them: for "when", the note's date; else the words of its best sentence that the
question lacks. Where no note shares enough, it says that it was not mentioned.
"""

from __future__ import annotations

import re

import numpy as np

from mempo_jax.envs.base import Situation
from mempo_jax.envs.dialogue_answers import NOT_MENTIONED

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
