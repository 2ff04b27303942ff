"""Why an answer was wrong: by what its context held."""

import pytest

from mempo_jax.report.evidence import asked_questions, count_verdicts, verdict
from mempo_jax.report.run_files import read_record
from tests.report import run_case
from tests.report.run_case import op

RECALL, ANSWER = op(3, "recall", "recalled", [0]), op(4, "answer", text="2")
WRITE = op(0, "write", "new", [0], stored="is 1", text="is 1")


def record(ops=None, score=0.0, **changes):
    changes |= {} if ops is None else {"ops": ops}
    return read_record("step_000000", run_case.record(score=score, **changes))


def words(*ops, **more):
    config = more.pop("config", None)
    found = verdict(record(list(ops), **more), config)
    return None if found is None else found.words


@pytest.mark.parametrize(
    ("ops", "said"),
    [
        ((WRITE, RECALL, ANSWER), "had the evidence, answered wrong"),
        ((WRITE, RECALL), "had the evidence, gave no answer"),
        (
            (WRITE, op(0, "write", "duplicate", [0]), RECALL, ANSWER),
            "had the evidence, answered wrong",
        ),
        ((ANSWER,), "lost the evidence: it was never stored"),
        (
            (op(1, "write", "new", [0], stored="b"), RECALL, ANSWER),
            "lost the evidence: it was never stored",
        ),
        ((WRITE, ANSWER), "lost the evidence: stored as entry 0, not recalled"),
        (
            (WRITE, op(1, "write", "new", [1], stored="b", evicted=[0]), ANSWER),
            "lost the evidence: stored as entry 0, evicted in turn 1",
        ),
        (
            (WRITE, op(2, "delete", "deleted", [0]), RECALL, ANSWER),
            "had the evidence, answered wrong",
        ),
    ],
)
def test_what_the_answer_had(ops, said):
    assert words(*ops) == said


def test_an_answer_that_was_stored_wrong_is_lost():
    """The observation says "one is 1", and nothing that was recalled does."""
    stored = [op(0, "write", "new", [0], stored=f"one {n}") for n in (1, 12, 2)]
    said = [words(write, RECALL, ANSWER) for write in stored]
    assert said[0] == "had the evidence, answered wrong"
    lost = "lost the evidence: what was stored of it says something else"
    assert said[1:] == [lost, lost]


def test_what_was_merged_still_holds_what_it_was_made_of():
    other = op(1, "write", "new", [1], stored="b", text="b")
    merge = op(2, "merge", "merged", [2, 0, 1], stored="is 1\nb")
    recall = op(3, "recall", "recalled", [2])
    assert words(WRITE, other, merge, recall, ANSWER).startswith("had")
    update = op(2, "write", "merged", [2, 0], stored="c", text="c", supersedes=True)
    lost = "lost the evidence: stored as entry 0, superseded in turn 2"
    assert words(WRITE, other, update, recall, ANSWER) == lost


@pytest.mark.parametrize(
    ("context", "said"),
    [
        ({"rule": "window", "window_turns": 2}, "lost"),
        ({"rule": "window", "window_turns": 3}, "had"),
        ({"rule": "append"}, "had"),
        ({"rule": "rolling"}, None),
        ({"rule": "budget"}, None),
        (None, "lost"),
        ("no mapping", "lost"),
    ],
)
def test_what_the_context_rule_shows_itself(context, said):
    made = verdict(record([ANSWER]), {"context": context})
    assert (made and made.kind) == said


def test_no_verdict_without_a_question_or_a_wrong_answer():
    assert verdict(record(score=1.0)) is None
    assert verdict(record(questions=[])) is None
    assert verdict(record(failure="KeyError")) is None
    never = [{"observation": 9, "answer": "1", "support": [0]}]
    assert verdict(record(questions=never)) is None, "it was not reached"


def test_of_several_questions_the_wrong_ones_count():
    asked = [
        {"observation": 3, "answer": "1", "support": [0]},
        {"observation": 2, "answer": "1", "support": [1]},
        {"observation": 1, "answer": "1", "support": [0]},
    ]
    made = record(questions=asked, question_scores=[0.0, 1.0, 1.0], score=0.5)
    assert verdict(made).kind == "had"
    made = record(questions=asked, question_scores=[0.0, 0.0, 0.0])
    assert verdict(made).words == "of 3 wrong answers 2 had lost the evidence"
    made = record(questions=asked, question_scores=[])
    assert verdict(made) is None, "which of them were wrong is not known"


def test_verdicts_are_counted():
    made = [verdict(record([WRITE, ANSWER])), verdict(record()), None]
    assert count_verdicts([*made, made[0]]) == [
        "1 had the evidence, answered wrong",
        "2 lost the evidence",
    ]


def test_a_question_is_shown_without_what_stands_around_it():
    turns = [{"observation": "", "action": ""} for _ in range(5)]
    turns[3]["observation"] = "turn 3/30 memory 2 (a (b), c): what: is it remember"
    reminded = record(turns=turns)
    plain = [dict(turn) for turn in turns]
    plain[3]["observation"] = "turn 3/30 memory 2: what: is it"
    asked = asked_questions([reminded, record(turns=plain)])
    assert asked == [("what: is it", "1")]
    assert asked_questions([record(questions=[])]) == []
    assert asked_questions([record(turns=[])]) == [("", "1")]
