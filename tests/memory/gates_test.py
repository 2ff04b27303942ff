"""Writes and merges: the two gates, lineage, merged texts, the cap."""

import warnings

import numpy as np
import pytest

from mempo_jax.memory import (
    Bank,
    BankConfig,
    OpError,
    Reason,
    Status,
    Verdict,
    make_embedder,
)


class Directions:
    """Embeds each text as the direction the test gives it."""

    name = "directions"
    dim = 4

    def __init__(self, table):
        self._table = table

    def embed(self, texts):
        rows = np.asarray([self._table[text] for text in texts], np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def static():
    return make_embedder("static")


def bank_of(embedder, *texts, **config):
    bank = Bank(BankConfig(**config), embedder, "t0")
    for step, text in enumerate(texts):
        bank.write(text, step=step)
    return bank


def texts_of(bank):
    return [entry.text for entry in bank.active]


def test_the_same_text_twice_is_one_entry_and_stays(static):
    bank = bank_of(static, "ann phone 17")
    result = bank.write("ann phone 17", step=1)
    assert (result.outcome, result.entry_id) == ("duplicate", 0)
    assert result.similarity == pytest.approx(1, abs=1e-5)
    assert [entry.status for entry in bank.entries] == [Status.ACTIVE]


def test_copies_of_a_recalled_memory_do_not_accumulate(static):
    bank = bank_of(static, "ann phone 17", "bob lives in rome")
    for step in range(2, 8):
        for hit in bank.recall("ann phone", step=step):
            assert bank.write(hit.entry.text, step=step).outcome == "duplicate"
            assert bank.write(f"Note: {hit.entry.text}.", step=step).outcome == (
                "duplicate"
            )
    assert len(bank.entries) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ann phone 17", "ann phone 18"),
        ("The code is 4711", "The code is 4712"),
        ("Bob is allergic to nuts", "Bob is not allergic to nuts"),
    ],
)
def test_a_changed_value_supersedes_and_both_stay_readable(static, old, new):
    bank = bank_of(static, old)
    result = bank.write(new, step=1)
    assert (result.outcome, result.entry_id) == ("merged", 1)
    before, after = bank.entries
    assert (before.text, before.status) == (old, Status.MERGED)
    assert (before.reason, before.merged_into) == (Reason.SUPERSEDED, 1)
    assert (after.text, after.parents) == (new, (0,))
    assert [hit.entry.text for hit in bank.recall(old, step=2)] == [new]


@pytest.mark.parametrize("new", ["bob phone 17", "ann email 23"])
def test_another_subject_or_attribute_is_a_new_entry_at_any_similarity(static, new):
    bank = bank_of(static, "ann phone 17", new, merge_threshold=-1.0)
    assert [entry.status for entry in bank.entries] == [Status.ACTIVE] * 2


def test_word_order_makes_no_duplicate(static):
    bank = bank_of(static, "Ann prefers tea over coffee")
    result = bank.write("Ann prefers coffee over tea", step=1)
    assert result.similarity == pytest.approx(1, abs=1e-4)
    assert result.outcome != "duplicate"
    assert texts_of(bank) == ["Ann prefers coffee over tea"]


def test_swapped_subjects_are_two_facts(static):
    bank = bank_of(static, "alice owes bob 5", "bob owes alice 5")
    assert len(bank.active) == 2


def test_similar_with_more_information_is_merged_into_the_nearest():
    short, long = "the red key opens the door", "the red key opens the door at night"
    embedder = Directions({short: [1, 0, 0, 0], long: [1, 0.1, 0, 0]})
    bank = Bank(BankConfig(), embedder, "t")
    bank.write(short, step=0)
    result = bank.write(long, step=1)
    assert result.outcome == "merged"
    assert bank.entry(0).merged_into == result.entry_id
    assert bank.entry(0).reason == Reason.NONE
    assert short in bank.entry(1).text
    assert long in bank.entry(1).text


def test_dissimilar_that_adds_nothing_is_a_duplicate():
    whole, part = "ann lives in rome with bob and carl", "ann lives in rome"
    embedder = Directions({whole: [1, 0, 0, 0], part: [0, 1, 0, 0]})
    bank = bank_of(embedder, whole)
    assert bank.write(part, step=1).outcome == "duplicate"


def test_dissimilar_with_information_is_new():
    embedder = Directions({"code is 1": [1, 0, 0, 0], "code is 2": [0, 1, 0, 0]})
    assert len(bank_of(embedder, "code is 1", "code is 2").active) == 2


def test_an_update_finds_its_entry_behind_a_nearer_one():
    embedder = Directions(
        {"ann phone 17": [1, 0.3, 0, 0], "bob phone 18": [1, 0, 0, 0]}
        | {"ann phone 18": [1, 0.05, 0, 0]}
    )
    bank = bank_of(embedder, "ann phone 17", "bob phone 18", "ann phone 18")
    assert texts_of(bank) == ["bob phone 18", "ann phone 18"]


def test_an_update_of_a_joined_entry_keeps_its_other_statements(static):
    bank = bank_of(static, "ann phone 17", "bob lives in rome", merge_threshold=0.2)
    bank.merge([0, 1], step=2)
    assert bank.write("ann phone 18", step=3).outcome == "merged"
    assert texts_of(bank) == ["bob lives in rome\nann phone 18"]


def test_the_always_judge_leaves_it_to_the_similarity():
    embedder = Directions({"a": [1, 0, 0, 0], "b": [1, 0.1, 0, 0], "c": [0, 1, 0, 0]})
    embedder._table["a\nb"] = [1, 0.05, 0, 0]
    bank = bank_of(embedder, "a", "b", "c", judge="always")
    assert texts_of(bank) == ["a\nb", "c"]


def test_a_judge_can_be_passed_in(static):
    bank = Bank(
        BankConfig(judge="policy"), static, judge=lambda new, old: Verdict.REPEATS
    )
    bank.write("a", step=0)
    assert bank.write("something else entirely", step=1).outcome == "duplicate"
    with pytest.raises(ValueError, match="pass judge="):
        Bank(BankConfig(judge="policy"), static)
    with pytest.raises(ValueError, match="lexcal"):
        Bank(BankConfig(judge="lexcal"), static)


def test_threshold_is_inclusive_and_obeyed():
    embedder = Directions({"a": [1, 0, 0, 0], "a b": [0.6, 0.8, 0, 0]})
    embedder._table["a\na b"] = [1, 1, 0, 0]
    same = float(embedder.embed(["a"])[0] @ embedder.embed(["a b"])[0])
    for threshold, count in ((same, 1), (same + 1e-3, 2)):
        bank = bank_of(embedder, "a", "a b", merge_threshold=threshold)
        assert len(bank) == count


def test_merge_by_policy_makes_one_entry_with_parents(static):
    bank = bank_of(static, "ann phone 17", "bob lives in rome", "the sky is blue")
    result = bank.merge([2, 0], text="ann phone 17, sky blue", step=4)
    assert (result.outcome, result.entry_id, result.error) == ("merged", 3, None)
    new = bank.entry(3)
    assert (new.parents, new.step_created, new.status) == ((2, 0), 4, Status.ACTIVE)
    assert [bank.entry(i).merged_into for i in (0, 2)] == [3, 3]
    assert bank.resolve(0) == 3
    assert bank.log[-1].entry_ids == (3, 2, 0)
    bank.check_valid()


def test_merge_without_text_concatenates(static):
    bank = bank_of(static, "ann phone 17", "bob lives in rome")
    bank.merge([0, 1], step=2)
    assert texts_of(bank) == ["ann phone 17\nbob lives in rome"]


def test_a_long_concatenation_is_cut_and_keeps_the_newest(static):
    old, new = "old " * 10, "brand new words"
    bank = bank_of(static, old, new, merge_max_chars=30)
    bank.merge([0, 1], step=2)
    (text,) = texts_of(bank)
    assert len(text) <= 30
    assert text.endswith(new)


def test_a_cut_leaves_no_entry_of_blanks(static):
    bank = bank_of(static, "   ann    ", "   bob    ", merge_max_chars=3)
    bank.merge([0, 1], step=2)
    assert texts_of(bank) == ["bob"]
    bank.check_valid()


def test_a_long_concatenation_is_summarised_where_a_model_is_at_hand(static):
    asked = []

    def summarise(text, limit):
        asked.append((text, limit))
        return "in short"

    bank = Bank(BankConfig(merge_max_chars=12), static, summarise=summarise)
    bank.write("ann phone 17", step=0)
    bank.write("bob lives in rome", step=0)
    bank.merge([0, 1], step=1)
    assert texts_of(bank) == ["in short"]
    assert asked == [("ann phone 17\nbob lives in rome", 12)]


def test_texts_that_cannot_be_stored(static):
    bank = Bank(BankConfig(max_entry_chars=5), static)
    assert bank.write(" \n", step=0).error == OpError.EMPTY_CONTENT
    assert bank.write("123456", step=0).error == OpError.TEXT_TOO_LONG
    assert bank.entries == []
    assert [record.outcome for record in bank.log] == ["error", "error"]


def test_capacity_evicts_fewest_accesses_then_oldest_access():
    embedder = make_embedder("hashing")
    words = ["apple", "brick", "cloud", "drum", "eagle", "fork"]
    bank = Bank(BankConfig(capacity=3, retrieval_top_k=1), embedder)
    for step, word in enumerate(words[:3]):
        bank.write(word, step=step)
    bank.recall("apple", step=3)
    bank.write("drum", step=4)  # brick: never used, older than cloud
    assert texts_of(bank) == ["apple", "cloud", "drum"]
    assert bank.entry(1).reason == Reason.EVICTED
    assert bank.log[-1].evicted == (1,)
    bank.recall("cloud", step=5)
    bank.recall("drum", step=6)
    bank.write("eagle", step=7)  # one use each: apple's is the oldest
    assert texts_of(bank) == ["cloud", "drum", "eagle"]
    bank.write("fork", step=8)  # the new eagle, not the fork just written
    assert texts_of(bank) == ["cloud", "drum", "fork"]
    bank.check_valid()


def test_the_title_is_part_of_the_statement(static):
    bank = Bank(BankConfig(), static)
    bank.write("17", title="ann phone", step=0)
    assert bank.write("17", title="bob phone", step=1).outcome == "new"
    assert bank.write("17", title="ann phone", step=2).outcome == "duplicate"
    assert bank.write("18", title="ann phone", step=3).outcome == "merged"
    assert [(e.title, e.text) for e in bank.active] == [
        ("bob phone", "17"),
        ("ann phone", "18"),
    ]


def test_merge_rate_is_measured_and_warns_above_thirty_percent(static):
    bank = Bank(BankConfig(merge_threshold=-1.0), static)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(19):
            bank.write(f"the code is {step}", step=step)
    assert bank.merge_rate == pytest.approx(18 / 19)
    with pytest.warns(UserWarning, match="raise memory.merge_threshold"):
        bank.write("the code is 99", step=20)


def test_numpy_ids_are_ids():
    bank = Bank(BankConfig(), make_embedder("hashing"))
    for step, text in enumerate(("ann phone 17", "ben desk 23", "cleo badge 41")):
        bank.write(text, step=step)
    assert bank.merge(np.array([0, 1]), step=3).outcome == "merged"
    assert bank.delete(np.array([2]), step=4).outcome == "deleted"
    assert type(bank.log[-1].entry_ids[0]) is int
