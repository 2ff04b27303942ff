import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo_jax.envs.answers import (
    answer_f1,
    exact_match,
    join_answers,
    normalise_answer,
    split_answers,
    token_f1,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Eiffel Tower!", "eiffel tower"),
        ("a, an; the", ""),
        ("An apple a day.", "apple day"),
        ("10-January-1920", "10january1920"),
        ("theatre", "theatre"),  # an article is a word of its own
    ],
)
def test_normalisation(text, expected):
    assert normalise_answer(text) == expected


@pytest.mark.parametrize(
    ("prediction", "gold", "expected"),
    [
        ("yes", "Yes.", 1.0),
        ("yes it is", "yes", 0.0),  # where the plain F1 is 0.5
        ("the", "no", 0.0),
        ("no", "no way", 0.0),
        ("noanswer", "Paris", 0.0),
        ("Paris, France", "Paris", 2 / 3),
        ("", "Paris", 0.0),
        ("Rome", "Paris", 0.0),
    ],
)
def test_a_yes_or_no_is_right_or_wrong(prediction, gold, expected):
    assert answer_f1(prediction, gold) == pytest.approx(expected)


def test_the_plain_f1_knows_no_such_rule():
    assert token_f1("yes it is", "yes") == pytest.approx(0.5)
    assert exact_match("yes it is", "yes") == 0.0


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        ("1: Paris; 2: Rome", 2, ("Paris", "Rome")),
        ("  2: Rome ; 1: Paris ", 2, ("Paris", "Rome")),
        ("1. Paris\n2. Rome", 2, ("Paris", "Rome")),
        ("(1) Paris, (2) Rome", 2, ("Paris", "Rome")),
        ("1: Paris", 3, ("Paris", "", "")),
        ("Paris", 1, ("Paris",)),
        ("Paris", 2, ("", "")),
        ("1: red; blue; 2: x", 2, ("red; blue", "x")),  # no number, no new answer
        ("1: at 2:30 pm; 2: y", 2, ("at 2:30 pm", "y")),
        ("1: a; 7: b; 2: c", 2, ("a; 7: b", "c")),  # no seventh was asked
        ("1: a; 1: b", 1, ("b",)),
        ("1: 3.5 km; 2: 2", 2, ("3.5 km", "2")),
        ("", 2, ("", "")),
        ("1:;2:", 2, ("", "")),
        ("talk before 1: no; 2: yes", 2, ("", "yes")),
    ],
)
def test_many_answers_in_one_text(text, count, expected):
    assert split_answers(text, count) == expected


@given(st.text(), st.integers(1, 12))
def test_any_text_gives_as_many_answers_as_were_asked(text, count):
    answers = split_answers(text, count)
    assert len(answers) == count
    assert all(answer in text for answer in answers)


@given(
    st.lists(st.from_regex(r"[A-Za-z][A-Za-z ]{0,8}[a-z]", fullmatch=True), min_size=1)
)
def test_what_was_joined_is_split_again(answers):
    assert split_answers(join_answers(answers), len(answers)) == tuple(answers)
