"""The lexical judge, by pairs of statements (old, new)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_jax.memory import Verdict
from mempo_jax.memory.lexical import comparison
from mempo_jax.memory.lexical.judge import always_adds, joined, lexical, updated
from mempo_jax.memory.lexical.statements import scoped, statements

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

ONE_RULE_EACH = [
    # one way of writing
    ("the call is at 5 pm", "the call is at 17:00", Verdict.REPEATS),
    ("the call is at 5 pm", "the call is at 5 am", Verdict.UPDATES),
    ("due 2024-03-05", "due March 5, 2024", Verdict.REPEATS),
    ("blood type: O+", "blood type: O-", Verdict.UPDATES),
    ("grade: A", "grade: A+", Verdict.UPDATES),
    ("it is due on 2024-03-05", "it is due on 5 May 2024", Verdict.UPDATES),
    ("Bob has twenty-one chairs", "Bob has 21 chairs", Verdict.REPEATS),
    ("the fee is €1,200", "the fee is 1200 euros", Verdict.REPEATS),
    ("the fee is €1,200", "the fee is $1,200", Verdict.UPDATES),
    ("timeout: 30s", "timeout: 30ms", Verdict.UPDATES),
    ("the offset is -5", "the offset is 5", Verdict.UPDATES),
    ("mail ann@x.org", "mail ann@y.org", Verdict.UPDATES),
    ("file a.txt is corrupt", "file b.txt is corrupt", Verdict.OTHER),
    ("预算是三万五千元", "预算是35000元", Verdict.REPEATS),
    ("二〇二四年三月五日开会", "2024年3月5号开会", Verdict.REPEATS),
    ("下午两点半开会", "14:30开会", Verdict.REPEATS),
    ("他周三来", "他星期三来", Verdict.REPEATS),
    # the same in another order, and not the same
    ("Paris is the capital of France", "France's capital is Paris", Verdict.REPEATS),
    ("Tom painted the fence", "The fence was painted by Tom", Verdict.REPEATS),
    ("Eve eats apples every day", "Every day Eve eats an apple", Verdict.REPEATS),
    ("The fence was painted by Tom", "Jim painted the fence", Verdict.OTHER),
    ("Tom is the son of Jim", "Jim is the son of Tom", Verdict.OTHER),
    ("a ferry from Oslo to Kiel", "a ferry from Kiel to Oslo", Verdict.UPDATES),
    # less than the plain fact
    ("Ann may come", "Ann comes", Verdict.UPDATES),
    ("Bob comes if it rains", "Bob comes", Verdict.UPDATES),
    ("Bob only eats fish", "Bob eats fish", Verdict.UPDATES),
    ("Bob denies that he won", "Bob won", Verdict.UPDATES),
    ("Ann used to smoke", "Ann smokes", Verdict.UPDATES),
    ("Ann was in Rome", "Ann is in Rome", Verdict.UPDATES),
    ("Ann lives in Rome", "Does Ann live in Rome?", Verdict.OTHER),
    ("她可能去北京", "她去北京", Verdict.UPDATES),
    ("他没去过日本", "他去过日本", Verdict.UPDATES),
    ("他只吃素", "他吃素", Verdict.UPDATES),
    ("他有一只猫", "他有1只猫", Verdict.REPEATS),
    # a title before the same words
    ("ann: ann bob", "ann bob", Verdict.REPEATS),
    ("bob phone: bob phone 18", "bob phone 18", Verdict.REPEATS),
    # somebody else's
    ("Ann lives in Rome", "Ann's sister lives in Rome", Verdict.OTHER),
    ("Ann's sister lives in Rome", "Ann lives in Rome", Verdict.OTHER),
    ("Ann likes tea and Bob likes coffee", "Ann likes coffee", Verdict.OTHER),
    ("Ann's code is 17 and Bob's code is 18", "Ann's code is 18", Verdict.OTHER),
    ("Ann is a nurse", "Ann has a cat", Verdict.OTHER),
    ("Dr. Roe is a dentist", "Dr. Poe is a dentist", Verdict.OTHER),
    # under a heading
    ("status: open.", "status: closed.", Verdict.UPDATES),
    ("hotel: 3 nights", "hotel: 4 nights", Verdict.UPDATES),
    ("wifi password: hunter2.", "wifi password: hunter3.", Verdict.UPDATES),
    ("Ann: lives in Rome", "Ann: lives in Milan", Verdict.UPDATES),
    ("Ann: vegetarian", "Ann: not vegetarian", Verdict.UPDATES),
    ("phones: ann 17", "phones: bob 17", Verdict.OTHER),
    ("phones: ann phone 17", "phones: ann desk 18", Verdict.OTHER),
    ("Ann: Fair enough.", "Ann: Same here.", Verdict.OTHER),
    ("Ann: likes jazz", "Ann: hates rain", Verdict.OTHER),
    ("Ann: sings", "Ann: paints", Verdict.OTHER),
    ("Ann: see you", "Bob: Ann, see you", Verdict.OTHER),
    ("Ann, 3 May: it rains here", "Ann, 4 May: it snows here", Verdict.OTHER),
    ("Ann: we won", "Ann: \U0001f600", Verdict.OTHER),
    # a remark
    ("The code is 4711", "The code is 4712!", Verdict.OTHER),
    ("Is Ann in Rome?", "Is Ann in Milan?", Verdict.OTHER),
    ("Is Ann in Rome?", "Is Ann in Rome with Bob?", Verdict.OTHER),
    ("That sounds fun to Ann", "That sounds odd to Ann", Verdict.OTHER),
    ("It made a big impact on all", "You made an impact", Verdict.OTHER),
    # words that only occur in it
    ("Ann saw the big old red barn of Bob burn", "Ann burn", Verdict.OTHER),
    ("Ann saw the big red barn burn", "Ann saw the barn burn", Verdict.REPEATS),
    # hardly a content word
    ("Ann: good luck", "Ann: we can do it", Verdict.OTHER),
    ("the lamp is on", "the lamp is off", Verdict.UPDATES),
]
KNOWN_LIMITS = [
    ("Ann bought a car", "Ann bought a house", Verdict.UPDATES),
    ("Karl sold the house", "Karl painted the house", Verdict.UPDATES),
    ("Eve is afraid of spiders", "Eve fears spiders", Verdict.OTHER),
    ("The user wants short answers", "The user wants long answers", Verdict.OTHER),
    ("Ann: I am a nurse", "Ann: I am a teacher", Verdict.OTHER),
    ("fruit: apples", "fruit: pears", Verdict.OTHER),
    ("todo: buy milk", "todo: call Bob", Verdict.UPDATES),
    ("The password is Secret", "The password is secret", Verdict.REPEATS),
    ("The result is 5 + 3", "The result is 5 - 3", Verdict.REPEATS),
    ("他喜欢猫", "他讨厌猫", Verdict.OTHER),
]


@pytest.mark.parametrize(
    ("old", "new", "verdict"), [*PAIRS, *ONE_RULE_EACH, *KNOWN_LIMITS]
)
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


def test_lines_lean_on_their_heading_and_pronouns_on_the_name_before():
    under = "Ann:\nphone 17\ndesk 4"
    assert scoped(under) == ("Ann: phone 17", "Ann: desk 4")
    assert scoped("Ann: phone 17\ndesk 4")[1] == "Ann: desk 4"
    assert scoped("a: 1\nb: 2") == ("a: 1", "b: 2")
    assert scoped("Ann sings. She paints.") == ("Ann sings.", "Ann paints.")
    assert scoped("Ann:\nShe sings.") == ("Ann: She sings.",)
    assert scoped("Ann:") == ("Ann:",)
    assert lexical("Bob:\nphone 17\ndesk 4", under) == Verdict.OTHER
    assert lexical("Bob sings. He paints.", "Ann sings. He paints.") == Verdict.OTHER
    assert updated([under, "Ann: phone 18"]) == "Ann: desk 4\nAnn: phone 18"


def test_statements_end_at_stops_but_not_after_a_title():
    assert statements("Dr. Roe sings. Ann paints.") == ("Dr. Roe sings.", "Ann paints.")
    assert statements("甲在。乙不在！") == ("甲在。", "乙不在！")
    assert statements(" \n ") == ()


def test_long_statements_are_compared_as_wholes():
    words = [f"word{i}" for i in range(300)]
    long = " ".join(words)
    assert lexical(long, long + " more") == Verdict.REPEATS
    assert lexical(long + " more", long) == Verdict.ADDS
    assert lexical("not " + long + " more", long) == Verdict.OTHER
    assert lexical(" ".join(words[::-1]), long) == Verdict.OTHER


def test_the_work_on_two_long_texts_does_not_grow_with_their_product():
    old = " ".join(f"Ann likes thing{i}." for i in range(100))
    new = " ".join(f"Ann likes thing{i}." for i in range(100, 200))
    before = comparison.compare.cache_info().misses
    assert lexical(new, old) == Verdict.UPDATES
    assert comparison.compare.cache_info().misses - before <= 3 * 100
