import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo_jax.envs.dialogue_data import (
    ABSTENTIONS,
    DialogueQuestion,
    abstains,
    answer_score,
    gold_answer,
)

ASKED = DialogueQuestion("What is the boat called?", "the Swift", 4, ())
ADVERSE = DialogueQuestion("What is Nora's boat called?", "", 5, ())
WITH_ANSWER = DialogueQuestion("Did Nora sail?", "No", 5, ())


@pytest.mark.parametrize("phrase", ABSTENTIONS)
def test_every_phrase_abstains_by_itself_and_within(phrase):
    assert abstains(phrase)
    assert abstains(f"Well, it is {phrase.upper()}!")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I don't know.", True),
        ("I don’t know", True),
        ("That was not\nmentioned.", True),
        ("No information available", True),
        ("", False),
        ("   ", False),
        ("no", False),
        ("none", False),
        ("Swift", False),
        ("she mentioned it", False),
        ("an unknowns' list", False),
    ],
)
def test_abstaining(text, expected):
    assert abstains(text) is expected


@given(st.text())
def test_abstaining_is_decided_for_any_text(text):
    assert abstains(text) in (True, False)


def test_scores():
    assert answer_score("Swift!", ASKED) == 1.0
    assert answer_score("it is called Swift", ASKED) == pytest.approx(0.4)
    assert answer_score("not mentioned", ASKED) == 0.0
    assert answer_score("Swift", ADVERSE) == 0.0
    assert answer_score("", ADVERSE) == 0.0
    assert answer_score("It is not mentioned.", ADVERSE) == 1.0
    assert answer_score("no", WITH_ANSWER) == 1.0
    assert answer_score("yes", WITH_ANSWER) == 0.0
    assert answer_score("no answer", WITH_ANSWER) == 1.0


@pytest.mark.parametrize("asked", [ASKED, ADVERSE, WITH_ANSWER])
def test_the_gold_answer_scores_one(asked):
    assert answer_score(gold_answer(asked), asked) == 1.0
