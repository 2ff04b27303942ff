"""The benchmark on conversations: reading, accounting, and recall well over chance."""

import json

import numpy as np
import pytest

from benchmarks._conversation_files import (
    Conversation,
    Question,
    Sentence,
    read_conversations,
    split_sentences,
    turn_ids,
)
from benchmarks._conversation_recall import (
    ADVERSE,
    OUTCOMES,
    Setting,
    ask_all,
    recall_nearest,
    shares,
    with_config,
    write_all,
)
from benchmarks.conversations import by_category, measure
from mempo_jax.memory import Bank, replay


def turn(place, speaker, text):
    return {"speaker": speaker, "dia_id": place, "text": text, "blip_caption": "a cat"}


def talk(name, qa):
    return {
        "sample_id": name,
        "conversation": {
            "speaker_a": "Ida",
            "speaker_b": "Olaf",
            "session_10_date_time": "2 pm on 3 May, 2031",
            "session_10": [turn("D10:1", "Olaf", "My boat is called Wren.")],
            "session_2_date_time": "9 am on 1 May, 2031",
            "session_2": [
                turn("D2:1", "Ida", "I bought 3.5 acres of land!  Come and see it?"),
                turn("D2:2", "Olaf", 'He said "no."\nThe bakery opens on Tuesdays.'),
            ],
            "session_11_date_time": "never held",
        },
        "qa": qa,
    }


def asked(question, evidence, category=4):
    return {"question": question, "evidence": evidence, "category": category}


QA = [
    asked("What is the boat called?", ["D10:1"]),
    asked("When does the bakery open?", ["D2:02; D10:1", "D2:2"], 1),
    asked("Who bought land?", ["D", "D7:1"], ADVERSE),
]


@pytest.fixture
def sample(tmp_path):
    path = tmp_path / "talks.json"
    path.write_text(json.dumps([talk("a", QA), talk("b", [])]), encoding="utf-8")
    return path


def test_sessions_are_read_in_number_order(sample):
    first, second = read_conversations(sample)
    assert (first.name, second.name) == ("a", "b")
    assert [(s.turn, s.speaker, s.text) for s in first.sentences] == [
        ("D2:1", "Ida", "I bought 3.5 acres of land!"),
        ("D2:1", "Ida", "Come and see it?"),
        ("D2:2", "Olaf", 'He said "no."'),
        ("D2:2", "Olaf", "The bakery opens on Tuesdays."),
        ("D10:1", "Olaf", "My boat is called Wren."),
    ]
    assert first.sentences[0].date == "9 am on 1 May, 2031"


def test_evidence_is_read_as_far_as_it_can_be(sample):
    first = read_conversations(sample)[0]
    assert [q.evidence for q in first.questions] == [
        ("D10:1",),
        ("D2:2", "D10:1"),
        (),
    ]
    assert first.unread == 2  # "D" holds no id, D7:1 is no turn
    assert turn_ids(["D8:6; D9:17", "D", "D08:6"]) == (["D8:6", "D9:17"], 1)


def test_sentences():
    assert split_sentences("Hi there! (So.) You?? 4.2 km") == [
        "Hi there!",
        "(So.)",
        "You??",
        "4.2 km",
    ]
    assert split_sentences(" \n ") == []


@pytest.mark.parametrize(
    "data", [{}, [], [{"qa": []}], [3], [talk("a", QA), talk("a", [])]]
)
def test_another_format_is_refused(tmp_path, data):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"x\.json.*--data"):
        read_conversations(path)


def test_recall_of_evidence_is_counted_by_turn_and_through_merges(sample):
    talks = read_conversations(sample)
    written = write_all(talks, Setting(embedder="hashing"))
    (bank,) = written.distinct()
    assert [e.outcome for e in written.events].count("duplicate") >= 5  # b repeats a
    found = [bank.resolve(written.holders["a", "D10:1"][0][0])]
    answers = ask_all(talks, written, lambda bank, query: found)
    assert answers.followed.tolist() == [1.0, 0.5]
    assert answers.kept.tolist() == [1.0, 0.5]
    merged = bank.merge((0, found[0]), text="all of it", step=99).entry_id
    answers = ask_all(talks, written, lambda bank, query: [merged])
    assert answers.followed.tolist() == [1.0, 0.5]
    assert answers.kept.tolist() == [0.0, 0.0]
    assert ask_all(talks, written, lambda bank, query: []).followed.sum() == 0


def test_a_bank_each_holds_its_own_conversation(sample):
    talks = read_conversations(sample)
    one = write_all(talks, Setting("speaker", embedder="hashing"))
    each = write_all(talks, Setting("dated", "each", embedder="hashing"))
    assert len(one.distinct()) == 1
    assert [len(bank.log) for bank in each.distinct()] == [5, 5]
    assert each.banks["b"].active[0].title == "Ida, 9 am on 1 May, 2031"
    assert one.banks["a"].active[0].text.startswith("Ida: I bought")
    loose = write_all(talks, Setting(embedder="hashing", gated=False))
    assert len(loose.banks["a"]) == 10
    assert loose.holders["b", "D10:1"] == [(9, "My boat is called Wren.")]


def test_outcomes_are_told_apart():
    said = ["The code is 4711.", "Owls hoot.", "The code is 4712.", "Owls hoot!"]
    lines = [Sentence(f"D1:{i}", "Ida", "", text) for i, text in enumerate(said)]
    talk = Conversation("c", lines, [], 0)
    written = write_all([talk], Setting(embedder="hashing", merge_threshold=0.5))
    events = written.events
    outcomes = ["new", "new", "superseded", "duplicate"]
    assert [e.outcome for e in events] == outcomes
    assert [e.other for e in events[2:]] == said[:2]
    assert events[3].similarity == pytest.approx(1)
    assert shares(events)["new"] == 0.5


def test_figures_of_a_setting_add_up(sample):
    talks = read_conversations(sample)
    row, written, reranked, nearest = measure(talks, Setting(embedder="hashing"))
    assert sum(row[name] for name in OUTCOMES) == pytest.approx(1)
    assert row["active"] == len(written.distinct()[0])
    rows = by_category(reranked, nearest)
    assert [r["n"] for r in rows] == [2, 1, 0, 0, 1, 0]


@pytest.mark.data
def test_a_real_conversation_is_accounted_for_and_recalled(data_dir):
    first = read_conversations(data_dir / "locomo" / "locomo_4.json")[0]
    written = write_all([first], Setting())
    assert len(written.events) == len(first.sentences) > 1000
    assert sum(shares(written.events).values()) == pytest.approx(1)
    assert shares(written.events)["error"] == 0
    reranked, nearest = (
        ask_all([first], written),
        ask_all([first], written, recall_nearest),
    )
    assert len(reranked.followed) > 150
    chance = reranked.mean("chance")
    assert 0 < chance < 0.03
    assert reranked.mean("followed") > 0.15
    assert nearest.mean("followed") > 0.10
    assert reranked.mean("followed") - reranked.mean("kept") < 0.03

    (bank,) = written.distinct()
    bank.check_valid()
    made = sum(e.outcome in ("new", "merged", "superseded") for e in written.events)
    assert made == len(bank.entries)
    again = replay(Bank(bank.config, bank.embedder), bank.log, bank.trajectory_id)
    assert again.entries == bank.entries
    again.check_valid()
    plain = ask_all([first], with_config(written, mmr_lambda=1.0))
    np.testing.assert_array_equal(plain.followed, nearest.followed)


def test_questions_without_evidence_are_left_out():
    lone = Conversation("c", [], [Question("Why?", 3, ())], 0)
    written = write_all([lone], Setting(embedder="hashing"))
    assert len(ask_all([lone], written).followed) == 0
