"""Why an answer was wrong: was what it needed in its context, or lost before?

An observation that holds an answer is in a context while a recalled entry holds what
was written of it there; this is the truth that evaluation counts by, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mempo_jax.memory.lineage import Lineage
from mempo_jax.report.lifelines import ANSWERS, EntryHistory, entry_histories
from mempo_jax.report.run_files import RecordedQuestion, RecordedTrajectory

KINDS = {  # of a verdict, in the words that count them
    "had": "had the evidence, answered wrong",
    "lost": "lost the evidence",
}
# What an episode writes before an observation.
_STATUS = re.compile(r"turn \d+/\d+ memory \d+(?: \(.*?\))?: ", re.S)


class EvidenceVerdict(NamedTuple):
    """Why a trajectory is not solved: one of KINDS, and the same with its reason."""

    kind: str
    words: str


class AskedQuestion(NamedTuple):
    """A question as a page shows it."""

    text: str
    answer: str


def asked_questions(records: Sequence[RecordedTrajectory]) -> list[AskedQuestion]:
    """Reads what a task asks.

    Args:
      records: trajectories of one task.

    Returns:
      Its questions with their gold answers; empty if the records have none.
    """
    questions = next((each.questions for each in records if each.questions), ())
    asked = []
    for question in questions:
        turns = (
            record.turns[record.observed.index(question.observation)]
            for record in records
            if question.observation in record.observed
        )
        texts = [plain_observation(turn.observation) for turn in turns]
        # Others have a reminder behind the question.
        asked.append(AskedQuestion(min(texts, key=len, default=""), question.answer))
    return asked


def plain_observation(text: str) -> str:
    """Leaves out what an episode writes before an observation.

    Args:
      text: as a turn saw it, with its number and the size of the memory.

    Returns:
      What the environment showed.
    """
    return _STATUS.sub("", text, count=1)


def verdict(
    record: RecordedTrajectory, config: Mapping[str, Any] | None = None
) -> EvidenceVerdict | None:
    """Says why a trajectory is not solved.

    Args:
      record: the trajectory.
      config: of the run, for its context rule.

    Returns:
      A trajectory with several wrong answers has lost the evidence if it had lost that
      of one of them. None for one that is solved or failed, or if the record does not
      say: it has no questions, or the context rule shows the past in other ways.
    """
    wrong = _wrong(record)
    context = (config or {}).get("context")
    context = context if isinstance(context, Mapping) else {}
    if not wrong or context.get("rule", "window") not in ("window", "append"):
        return None
    histories = entry_histories(record)
    holds = _holds(record, histories)
    lost, answered = [], []
    for question in wrong:
        turn = _answer_turn(record, question)
        if turn is None:
            return None
        shown = _shown(record, question, turn, context)
        recalled = [entry for entry in histories if turn in entry.contexts]
        missing = question.support - shown
        still = missing.difference(*(holds[entry.entry] for entry in recalled))
        if still:
            lost.append(_loss(min(still), turn, histories, holds))
        elif missing and _changed(record, question, recalled):
            lost.append("what was stored of it says something else")
        answered.append(any(o.turn == turn and o.kind in ANSWERS for o in record.log))
    if len(wrong) > 1 and lost:
        number = f"of {len(wrong)} wrong answers {len(lost)}"
        return EvidenceVerdict("lost", f"{number} had lost the evidence")
    if lost:
        return EvidenceVerdict("lost", f"lost the evidence: {lost[0]}")
    if not any(answered):
        return EvidenceVerdict("had", "had the evidence, gave no answer")
    return EvidenceVerdict("had", KINDS["had"])


def count_verdicts(verdicts: Iterable[EvidenceVerdict | None]) -> list[str]:
    """Counts the verdicts of a group.

    Args:
      verdicts: of its members.

    Returns:
      Such as "2 lost the evidence", for each kind that there is.
    """
    counts = Counter(each.kind for each in verdicts if each is not None)
    return [f"{counts[kind]} {words}" for kind, words in KINDS.items() if counts[kind]]


def _wrong(record: RecordedTrajectory) -> list[RecordedQuestion]:
    """The questions that were not answered as they should be, if that is known."""
    if record.outcome not in ("partly", "unsolved"):
        return []
    if len(record.question_scores) == len(record.questions):
        pairs = zip(record.questions, record.question_scores, strict=True)
        return [question for question, score in pairs if score < 1]
    return list(record.questions) if len(record.questions) == 1 else []


def _answer_turn(record: RecordedTrajectory, question: RecordedQuestion) -> int | None:
    """The turn that answered, or the last one that could have."""
    turns = [n for n, at in enumerate(record.observed) if at == question.observation]
    ops = [o.turn for o in record.log if o.kind in ANSWERS and o.turn in turns]
    return next(iter([*reversed(ops), *reversed(turns)]), None)


def _holds(
    record: RecordedTrajectory, histories: Sequence[EntryHistory]
) -> dict[int, set[int]]:
    """The observations that each entry was written of, itself or what it replaced."""
    lineage = Lineage(record.log)
    holds = {
        each.entry: {
            record.observed[record.log[op].turn] for op in lineage.shares(each.entry)
        }
        for each in histories
        if record.observed
    }
    for op in record.log:
        if op.outcome == "duplicate" and op.entry_ids and op.entry_ids[0] in holds:
            holds[op.entry_ids[0]].add(record.observed[op.turn])
    return holds


def _shown(
    record: RecordedTrajectory,
    question: RecordedQuestion,
    turn: int,
    context: Mapping[str, Any],
) -> set[int]:
    """Observations that the context rule itself shows in a turn."""
    asked = record.observed.index(question.observation)
    turns = context.get("window_turns")
    past = turns if type(turns) is int else 0
    first = 0 if context.get("rule") == "append" else max(0, asked - past)
    return set(record.observed[first : turn + 1])


def _changed(
    record: RecordedTrajectory,
    question: RecordedQuestion,
    entries: Sequence[EntryHistory],
) -> bool:
    """Whether what was seen spells out the answer, and what was stored does not."""
    seen = [
        record.turns[turn].observation
        for turn, observation in enumerate(record.observed)
        if observation in question.support
    ]
    answer = re.compile(rf"(?<!\w){re.escape(question.answer)}(?!\w)", re.I)
    return any(map(answer.search, seen)) and not any(
        answer.search(entry.text) for entry in entries
    )


def _loss(
    observation: int,
    turn: int,
    histories: Sequence[EntryHistory],
    holds: Mapping[int, set[int]],
) -> str:
    """What became of an observation before the turn that needed it."""
    entries = [each for each in histories if observation in holds[each.entry]]
    if not entries:
        return "it was never stored"
    for each in entries:
        if each.end is None or each.end >= turn:
            return f"stored as entry {each.entry}, not recalled"
    last = entries[-1]
    return f"stored as entry {last.entry}, {last.fate} in turn {last.end}"
