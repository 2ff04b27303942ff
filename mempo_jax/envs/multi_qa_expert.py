"""A scripted policy of ``multi_qa``: search, note what supports an answer, recall."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import numpy as np

from mempo_jax.envs.answers import VERDICTS, join_answers, normalise_answer
from mempo_jax.envs.base import Situation
from mempo_jax.envs.multi_qa_records import Fact, Record

UNKNOWN = "unknown"
NOTES_RECALLED = 2  # for each question
_ASKED = re.compile(r"^\d+: (.*)$", re.MULTILINE)
_SEARCHES = re.compile(r"searches (\d+)")
TITLE_WORDS = 6  # of a note, at most
_MARK = 40  # normalised characters by which a sentence is known again


class MultiQaExpert:
    """Shows the form, and the ceiling of a reader that misses nothing.

    It searches for each question, once for each passage that supports it, up to
    ``hops`` times: first by the question, then by what it noted, or by the record's own
    queries. Of what is found it notes, with ``write_rate``, the sentences that the
    record names as support and that it does not recall yet, up to ``note_chars``
    characters, under the names in the question. In the end it recalls by those of each
    question and gives the gold answer where the recalled notes hold it (of a yes or a
    no, where they hold a supporting sentence), else "unknown".

    Unlike the experts of other tasks it knows the truth: which passage supports an
    answer, and how an answer is worded, takes reading that no script does. Where it is
    used for demonstrations, ``write_rate`` leaves something to learn.

    Args:
      find: the record of a question.
    """

    def __init__(
        self,
        find: Callable[[str], Record | None],
        write_rate: float,
        hops: int,
        note_chars: int,
    ) -> None:
        self._find, self._write_rate = find, write_rate
        self._hops, self._note_chars = hops, note_chars

    def __call__(self, situation: Situation, rng: np.random.Generator) -> str:
        asked = _ASKED.findall(situation.goal)
        plan = [(text, hop) for text in asked for hop in range(self._hops_of(text))]
        count = _SEARCHES.match(situation.observation)
        done = int(count[1]) if count else len(plan)
        if "\n- " in situation.observation and 1 <= done <= len(plan):
            question, hop = plan[done - 1]
            fresh = len(situation.queries) == min(hop, 1)
            if hop and not situation.queries:
                return _recall(question)
            note = self._note(question, situation) if fresh else ""
            if note and rng.random() < self._write_rate:
                return f'<mem_write title="{topic(question)}"> {note}</mem_write>'
        if done < len(plan):
            return self._search(*plan[done], situation)
        for text in asked:
            if not _recalled(text, situation):
                return _recall(text)
        answers = [self._answer(text, situation.recalled) for text in asked]
        return f"<answer> {join_answers(answers)}</answer>"

    def _hops_of(self, question: str) -> int:
        record = self._find(question)
        titles = {fact.title for fact in record.support} if record else ()
        return max(1, min(self._hops, len(titles)))

    def _search(self, question: str, hop: int, situation: Situation) -> str:
        if hop and not _recalled(question, situation):
            return _recall(question)
        record = self._find(question)
        own = record.queries if record else ()
        query = own[0] if own else question
        if hop and situation.recalled:
            known = record is not None and _holds(situation.recalled, record.support)
            query = own[hop] if known and len(own) > hop else situation.recalled[0]
        return f"<act> search: {_plain(query).strip()}</act>"

    def _note(self, question: str, situation: Situation) -> str:
        """The supporting sentences that are shown and not recalled, with titles."""
        record, shown = self._find(question), situation.observation
        if record is None:
            return ""
        parts: dict[str, list[str]] = {}
        for fact in record.support:
            there = f"\n- {fact.title}: " in shown and fact.sentence in shown
            if there and not _holds(situation.recalled, [fact]):
                parts.setdefault(fact.title, []).append(fact.sentence)
        texts = [f"{title}: {' '.join(each)}" for title, each in parts.items()]
        return _plain(" ".join(texts)[: self._note_chars]).strip()

    def _answer(self, question: str, recalled: tuple[str, ...]) -> str:
        record = self._find(question)
        if record is None:
            return UNKNOWN
        gold = normalise_answer(record.answer)
        if gold in VERDICTS:
            known = _holds(recalled, record.support)
        else:
            known = f" {gold} " in f" {normalise_answer(' '.join(recalled))} "
        return record.answer if known else UNKNOWN


def _holds(recalled: Iterable[str], facts: Iterable[Fact]) -> bool:
    """Whether one of ``facts`` stands in what was recalled, by how it begins."""
    text = normalise_answer(" ".join(recalled))
    marks = [normalise_answer(f"{f.title} {f.sentence}")[:_MARK] for f in facts]
    bare = [normalise_answer(f.sentence)[:_MARK] for f in facts]
    return any(mark in text for mark in (*marks, *bare) if mark)


def topic(question: str) -> str:
    """Names and numbers of a question, as the title of its notes: recalled by it."""
    words = re.findall(r"[\w.'-]*\w", question)
    named = [word for word in words[1:] if not word[0].islower()]
    return " ".join((named or words)[-TITLE_WORDS:])


def _recall(question: str) -> str:
    return f'<mem_recall k="{NOTES_RECALLED}"> {topic(question)}</mem_recall>'


def _recalled(question: str, situation: Situation) -> bool:
    return topic(question) in map(str.strip, situation.queries)


def _plain(text: str) -> str:
    """Without what could be read as a tag."""
    return text.replace("<", " ").replace(">", " ")
