"""The life of a memory, from the op log alone."""

from mempo_jax.report.lives import lives_of
from mempo_jax.report.records import read_record
from tests.report import run_case
from tests.report.run_case import op


def lives(log=None, turns=5):
    made = run_case.record() | {"turns": [{"observation": "", "action": ""}] * turns}
    return lives_of(read_record("x", made | ({"ops": log} if log else {})))


def test_born_and_ended():
    first, second, third, fourth = lives()
    assert [life.entry for life in (first, second, third, fourth)] == [0, 1, 2, 3]
    assert [life.born for life in (first, second, third, fourth)] == [0, 0, 1, 2]
    assert (first.end, first.fate) == (None, "")
    assert (second.end, second.fate, second.into) == (1, "superseded", 2)
    assert (third.end, third.fate, third.parents) == (2, "evicted", (1,))
    assert (fourth.end, fourth.fate) == (2, "deleted")
    assert [life.op for life in (first, second, third, fourth)] == [0, 1, 2, 3]


def test_recalled_and_in_the_context_of_the_answer():
    first, second, *_ = lives()
    assert first.recalls == [(3, 1, 0.75)]
    assert first.contexts == first.answers == [4]
    assert not second.recalls


def test_a_run_of_recalls_keeps_what_the_first_found():
    log = [
        op(0, "write", "new", [0], stored="a", text="a"),
        op(1, "recall", "recalled", [0]),
        op(2, "recall", "recalled", []),
        op(3, "act", text="x"),
        op(4, "answer", text="x"),
    ]
    (life,) = lives(log)
    assert life.contexts == [2, 3]
    assert life.answers == [3]


def test_a_recall_in_the_last_turn_shows_nothing_to_anyone():
    log = [op(0, "write", "new", [0], stored="a"), op(4, "recall", "recalled", [0])]
    (life,) = lives(log)
    assert life.contexts == []


def test_joined_is_not_superseded():
    log = [
        op(0, "write", "new", [0], stored="a"),
        op(1, "write", "new", [1], stored="b"),
        op(2, "merge", "merged", [2, 0, 1], stored="a b"),
        op(3, "delete", "deleted", [0]),
    ]
    first, second, joined = lives(log)
    assert (first.fate, second.fate, joined.fate) == ("merged", "merged", "")
    assert joined.parents == (0, 1)
    assert first.end == 2, "a tombstone dies once"


def test_entries_of_an_initial_bank_were_there_before():
    log = [
        op(0, "recall", "recalled", [7, 3]),
        op(1, "delete", "deleted", [7]),
        op(1, "write", "duplicate", [3]),
        op(2, "delete", "error", [3], error="inactive_id"),
    ]
    third, seventh = lives(log)
    assert (third.born, third.op, third.end) == (-1, None, None)
    assert third.recalls[0][:2] == (0, 2)
    assert (seventh.born, seventh.end) == (-1, 1)
