"""The lexical judge, by pairs of statements (old, new)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_jax.memory import Verdict
from mempo_jax.memory.judge import always_adds, joined, lexical, updated

PAIRS = [
    # nothing new
    ("ann phone 17", "ann phone 17", Verdict.REPEATS),
    ("ann phone 17", "Ann's phone is 17.", Verdict.REPEATS),
    ("ann lives in rome with bob", "Ann lives in Rome", Verdict.REPEATS),
    ("ann phone 17\nbob email 23", "bob email 23", Verdict.REPEATS),
    ("ann phone 17. bob email 23.", "bob email 23. ann phone 17.", Verdict.REPEATS),
    ("Bob isn't allergic", "Bob is not allergic", Verdict.REPEATS),
    # another value
    ("ann phone 17", "ann phone 18", Verdict.UPDATES),
    ("The code is 4711", "The code is now 4712", Verdict.UPDATES),
    ("The gate code is 4711 as of May", "The gate code is 4712 as of May", "updates"),
    ("Bob is allergic to nuts", "Bob is not allergic to nuts", Verdict.UPDATES),
    ("Bob never smokes", "Bob smokes", Verdict.UPDATES),
    ("Ann likes tea", "Ann likes coffee", Verdict.UPDATES),
    ("Ann lives in New York", "Ann lives in Paris", Verdict.UPDATES),
    ("The capital of France is Paris", "The capital of France is Lyon", "updates"),
    ("She prefers tea over coffee", "She prefers coffee over tea", Verdict.UPDATES),
    ("bob email 23\nann phone 17", "ann phone 18", Verdict.UPDATES),
    ("rate 3.5 percent", "rate 3.6 percent", Verdict.OTHER),
    # more about the same
    ("Ann lives in Rome", "Ann lives in Rome with her dog", Verdict.ADDS),
    ("ann phone 17", "ann phone 17. bob email 23", Verdict.ADDS),
    # something else
    ("ann phone 17", "bob phone 17", Verdict.OTHER),
    ("ann phone 17", "ann email 23", Verdict.OTHER),
    ("alice owes bob 5", "bob owes alice 5", Verdict.OTHER),
    ("The capital of France is Paris", "The capital of Spain is Madrid", "other"),
    ("room 12 has a cat", "room 13 has a cat", Verdict.OTHER),
    ("item number 5 is in box 3", "item number 6 is in box 3", Verdict.OTHER),
    ("The north door code is 4711", "The south door code is 4711", Verdict.OTHER),
]


@pytest.mark.parametrize(("old", "new", "verdict"), PAIRS)
def test_verdict(old, new, verdict):
    assert lexical(new, old) == verdict


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_judged_and_repeats_itself(new, old):
    assert lexical(new, old) in set(Verdict)
    assert lexical(new, new) == Verdict.REPEATS


def test_always_adds():
    assert always_adds("a", "a") == Verdict.ADDS


def test_joined_leaves_out_what_a_later_text_contains():
    assert joined(["ann.", "bob", "see ann now"]) == "bob\nsee ann now"
    assert joined(["code 471", "code 4711"]) == "code 471\ncode 4711"


def test_updated_keeps_what_is_untouched():
    old = "ann phone 17\nbob email 23. carl sleeps"
    assert updated([old, "ann phone 18"]) == "bob email 23.\ncarl sleeps\nann phone 18"
    assert updated(["ann phone 17", "ann phone 18"]) == "ann phone 18"


def test_signs_alone_are_compared_as_they_stand():
    assert lexical("\U0001f600", "\u200b") == Verdict.OTHER
    assert lexical("\U0001f600", "\U0001f600") == Verdict.REPEATS
    assert lexical("\U0001f600", "the code is 17") == Verdict.OTHER
