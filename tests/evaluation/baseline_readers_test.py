"""Scripted readers: what they note, look up and answer."""

import pytest

from mempo_jax.evaluation.baseline_readers import (
    BabiReader,
    DialogueReader,
    LedgerReader,
    MultiQaReader,
    World,
)
from mempo_jax.memory import parse_ops

GOAL = "answer each question\n1: Where was Ada Fenwick born?\n2: Is Bob tall?"
FOUND = (
    "searches {} , found for: x\n- Ada Fenwick: Ada Fenwick was born in Aldmoor. She"
    " paints.\n- Aldmoor: <Aldmoor> has a mill."
)


def content(action):
    [op] = parse_ops(action)
    return op.kind, op.content


def test_the_newest_value_of_a_ledger_wins():
    reader = LedgerReader()
    asked = "what is ann phone"
    assert reader.notes("ann phone is now 23") == ["ann phone 23"]
    assert reader.notes(asked) == []
    assert reader.queries("", asked) == ["ann phone"]
    assert reader.queries("", "ann phone is 23") == []
    told = ["ann phone is 23", "ben phone is 11", "ben desk 9 ; ann phone 45 ; x"]
    assert content(reader.answer("", asked, told)) == ("answer", "45")
    assert content(reader.answer("", asked, told[:2])) == ("answer", "23")
    assert content(reader.answer("", asked, [asked])) == ("answer", "unknown")


def test_a_conversation_is_noted_line_by_line_with_its_date():
    reader = DialogueReader()
    chunk = "session 1, 8:05 pm on 2 May, 2024\nNora: I bought a <lamp>.\nOtto: Nice!"
    notes = reader.notes(chunk)
    assert notes[0] == "(8:05 pm on 2 May, 2024) Nora: I bought a (lamp)."
    assert len(notes) == 2
    asked = "question: When did Nora buy a lamp?"
    assert reader.notes(asked) == []
    assert reader.queries("", asked) == ["When did Nora buy a lamp?"]
    for texts in ([chunk, asked], [*notes]):
        assert content(reader.answer("", asked, texts)) == ("act", "2 May 2024")
    assert content(reader.answer("", asked, []))[1] == "not mentioned"


def test_questions_are_searched_in_turn_and_then_answered():
    reader = MultiQaReader()
    first, second = reader.move(GOAL, "searches 0"), reader.move(GOAL, FOUND.format(1))
    assert content(first) == ("act", "search: Where was Ada Fenwick born?")
    assert content(second) == ("act", "search: Is Bob tall?")
    assert reader.queries(GOAL, FOUND.format(1)) == []
    assert reader.queries(GOAL, FOUND.format(2)) == []
    assert reader.move(GOAL, FOUND.format(2)) == ""
    assert len(reader.queries(GOAL, "searches 2 , the last for: x")) == 2
    assert len(reader.queries(GOAL, "searches 0", due=True)) == 2
    notes = reader.notes(FOUND.format(1))
    assert notes[1] == "Aldmoor: (Aldmoor) has a mill."
    for texts in ([FOUND.format(1)], notes):
        kind, said = content(reader.answer(GOAL, FOUND.format(2), texts))
        assert (kind, said) == ("answer", "1: Aldmoor; 2: unknown")
    _, said = content(reader.answer(GOAL, "searches 2", ["Bob: Bob is tall."]))
    assert said == "1: unknown; 2: yes"


@pytest.mark.parametrize(
    ("told", "question", "answer"),
    [
        ("Nora went to the cellar.", "Where is Nora?", "cellar"),
        ("Nora now at cellar; Nora now at porch", "Where is Nora?", "porch"),
        ("Nora is in the cellar.", "Is Nora in the cellar?", "yes"),
        ("Nora went back to the cellar.", "Is Nora in the porch?", "no"),
        ("", "Is Nora in the porch?", "unknown"),
        (
            "Nora got the lamp. Nora went to the porch. Nora dropped the lamp."
            " Nora went to the attic.",
            "Where is the lamp?",
            "porch",
        ),
        (
            "Nora took the lamp there. Nora moved to the attic",
            "Where is the lamp?",
            "attic",
        ),
        ("lamp is at Nora; Nora now at attic", "Where is the lamp?", "attic"),
        ("lamp is at porch", "Where is the lamp?", "porch"),
        (
            "Nora got the lamp. Nora got the kite.",
            "What is Nora carrying?",
            "lamp,kite",
        ),
        ("Nora got the lamp. Nora left the lamp.", "What is Nora carrying?", "nothing"),
        ("Nora got the lamp.", "How many objects is Nora carrying?", "one"),
        ("Nora gave the lamp to Otto.", "Who gave the lamp to Otto?", "Nora"),
        ("Nora gave the lamp to Otto.", "What did Nora give to Otto?", "lamp"),
        ("Nora handed the lamp to Otto.", "Who received the lamp?", "Otto"),
        ("Nora handed the lamp to Otto.", "Who did Nora give the lamp to?", "Otto"),
        (
            "Nora went to the attic. Then she went to the porch.",
            "Where is Nora?",
            "porch",
        ),
        (
            "Nora and Otto went to the attic. After that they moved to the porch.",
            "Where is Otto?",
            "porch",
        ),
        ("Nora went to the attic.", "Why did Nora go to the attic?", "unknown"),
    ],
)
def test_a_small_world_is_read(told, question, answer):
    texts = [f"{part}." for part in told.split(". ")]
    assert content(BabiReader().answer("", question, texts)) == ("act", answer)


def test_sentences_are_noted_and_questions_looked_up():
    reader = BabiReader()
    assert reader.notes("Nora went to the cellar.") == ["Nora went to the cellar"]
    assert reader.notes("Where is Nora? ") == []
    assert reader.queries("", "Where is Nora? ") == ["Nora"]
    assert reader.queries("", "Nora went to the cellar.") == []


def test_unknown_sentences_change_nothing():
    world = World()
    world.learn("Lily is a swan")
    world.learn("")
    assert (world.place, world.bearer, world.gifts) == ({}, {}, [])
