"""Which writes were really needed, and how far the needed ones came.

The environment says which observations hold the answer of each question (``support``).
A write is *needed* if it stored something, was made in answer to such an observation of
a question that was reached, and its text carries what that observation says. It is
*relevant* if it was made on an observation of ``Environment.useful()``, as write
precision counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mempo_jax.envs import Question, Task, TaskSuite
from mempo_jax.memory import OpRecord
from mempo_jax.memory.lineage import Lineage, makes_entry
from mempo_jax.rollout.trajectory import Trajectory

# What became of a needed write by the time its question was answered, worst first.
FATES = ("lost", "not recalled", "wrong answer", "answered")
MEANING = {
    "lost": "pushed out, replaced or deleted before the answer",
    "not recalled": "stored, but not in the context that answered",
    "wrong answer": "in that context, but the answer was wrong",
    "answered": "in that context, and the answer was right",
}
# Words of an observation that a memory of it may leave out.
IDLE = {
    "ledger": {"is", "now"},
    "babi": {
        *("the", "to", "there", "back", "up", "down", "in", "is", "now", "either"),
        *("went", "journeyed", "moved", "travelled", "took", "got", "grabbed"),
        *("picked", "left", "discarded", "dropped", "put"),
    },
}
_PUT_DOWN = re.compile(r"(\w+) (?:left|discarded|dropped|put down) the (\w+)")


def observations(suite: TaskSuite, task: Task) -> list[str]:
    """All observations of a task in order; in these suites the seed fixes them."""
    env = suite.make(task)
    seen = [env.reset(task.seed)]
    while not (step := env.step("")).done:
        seen.append(step.observation)
    return seen


def carries(suite: str, observation: str, text: str, answer: str) -> bool:
    """Whether a memory's text holds what an observation says.

    That is every word but idle ones. Of a thing put down the bearer may be missing
    where the answer, its place, is there.

    Raises:
      ValueError: a suite whose idle words are not known.
    """
    if suite not in IDLE:
        raise ValueError(
            f"tasks of {suite!r}: expected one of {', '.join(IDLE)}; say in "
            "benchmarks/_credit_truth.py which words a memory may leave out"
        )
    missing = _words(observation) - IDLE[suite] - _words(text)
    put_down = _PUT_DOWN.match(observation)
    if suite == "babi" and put_down and _words(answer) <= _words(text):
        missing -= _words(put_down[1])
    return not missing


def needed_writes(trajectory: Trajectory, seen: Sequence[str]) -> dict[int, str]:
    """Position in the log of each needed write -> its fate, the best over questions.

    Args:
      seen: the observations of the task.
    """
    lineage = Lineage(trajectory.log)
    uses = lineage.uses(len(trajectory.actions))
    found: dict[int, str] = {}
    for k, record in enumerate(trajectory.log):
        if record.kind != "write" or not makes_entry(record):
            continue
        at = trajectory.turn_observation[record.turn]
        used = set(uses.get(k, ()))
        fates = [
            _fate(trajectory, k, turns, lineage, used)
            for question, turns in reached(trajectory)
            if at in question.support
            and carries(trajectory.task.suite, seen[at], record.text, question.answer)
        ]
        if fates:
            found[k] = max(fates, key=FATES.index)
    return found


def unwritten(trajectory: Trajectory, needed: Sequence[int]) -> tuple[int, int]:
    """(observations that reached questions rest on, those without a needed write)."""
    asked = [question.support for question, _ in reached(trajectory)]
    support = frozenset().union(*asked)
    seen = trajectory.turn_observation
    written = {seen[trajectory.log[k].turn] for k in needed}
    return len(support), len(support - written)


def is_relevant(trajectory: Trajectory, record: OpRecord) -> bool:
    """Whether an op was made on an observation worth remembering."""
    return trajectory.turn_observation[record.turn] in trajectory.useful


def reached(trajectory: Trajectory) -> list[tuple[Question, list[int]]]:
    """The questions that were shown, each with the turns that had them before them."""
    seen = trajectory.turn_observation
    turns = [
        [turn for turn, at in enumerate(seen) if at == question.observation]
        for question in trajectory.questions
    ]
    return [(q, at) for q, at in zip(trajectory.questions, turns) if at]


def _fate(
    trajectory: Trajectory, k: int, turns: Sequence[int], lineage: Lineage, used: set
) -> str:
    log = trajectory.log
    end = sum(record.turn < turns[-1] for record in log)
    if not _family(log, k, end) & lineage.alive(end):
        return "lost"
    if not used & set(turns):
        return "not recalled"
    right = sum(trajectory.turn_reward[turn] for turn in turns) > 0
    return "answered" if right else "wrong answer"


def _family(log: Sequence[OpRecord], k: int, end: int) -> set[int]:
    """The entry that a write made, and those that it was joined into before ``end``."""
    family = {log[k].entry_ids[0]}
    for record in log[k + 1 : end]:
        joins = makes_entry(record) and not record.supersedes
        if joins and family & set(record.entry_ids[1:]):
            family.add(record.entry_ids[0])
    return family


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))
