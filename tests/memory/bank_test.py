"""The bank: recall, deletion, views, forks, log."""

import dataclasses
import re

import numpy as np
import pytest

from mempo_jax.memory import (
    Bank,
    BankConfig,
    OpError,
    Reason,
    Status,
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


def test_an_entry_carries_its_facts(static):
    bank = Bank(BankConfig(), static, "run-7")
    result = bank.write("ann phone 17", title="ann", step=3)
    (entry,) = bank.entries
    assert (result.outcome, result.entry_id) == ("new", entry.id)
    assert (entry.title, entry.text) == ("ann", "ann phone 17")
    assert (entry.step_created, entry.step_accessed, entry.access_count) == (3, 3, 0)
    assert (entry.source, entry.status) == ("run-7", Status.ACTIVE)
    assert entry.embedding.dtype == np.float32
    assert float(entry.embedding @ entry.embedding) == pytest.approx(1, abs=1e-5)


def test_delete_leaves_a_traceable_tombstone(static):
    bank = bank_of(static, "ann phone 17", "bob lives in rome")
    assert bank.delete([0], step=5).outcome == "deleted"
    entry = bank.entry(0)
    assert (entry.status, entry.reason) == (Status.DELETED, Reason.POLICY)
    assert entry.text == "ann phone 17"
    assert [hit.entry.id for hit in bank.recall("ann phone 17", step=6)] == [1]
    assert (bank.log[2].turn, bank.log[2].entry_ids) == (5, (0,))


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ([], OpError.MISSING_ARGUMENT),
        ([9, 0], OpError.UNKNOWN_ID),
        ([-1, 0], OpError.UNKNOWN_ID),
        ([1, 2], OpError.INACTIVE_ID),
        ([0, 0], OpError.DUPLICATE_ID),
    ],
)
def test_ids_that_cannot_be_used_change_nothing(static, ids, error):
    bank = bank_of(static, "ann phone 17", "bob lives in rome", "the sky is blue")
    bank.delete([1], step=3)
    before = bank.entries
    for result in (bank.delete(ids, step=4), bank.merge(ids, step=4)):
        assert (result.outcome, result.error) == ("error", error)
        assert bank.log[-1].error == error
    assert bank.entries == before
    bank.check_valid()


def test_recall_counts_accesses_and_is_logged(static):
    bank = bank_of(static, "ann phone 17", "bob lives in rome")
    hits = bank.recall("where does bob live", k=1, step=4)
    assert [hit.entry.id for hit in hits] == [1]
    assert (hits[0].entry.access_count, hits[0].entry.step_accessed) == (1, 4)
    assert (bank.entry(0).access_count, bank.entry(0).step_accessed) == (0, 0)
    record = bank.log[-1]
    assert (record.kind, record.entry_ids, record.k) == ("recall", (1,), 1)
    assert record.similarity == pytest.approx(hits[0].similarity)


def test_the_recall_cap_always_holds(static):
    texts = [
        f"{name} likes the city"
        for name in ("ann", "bob", "carl", "dora", "eve", "finn")
    ]
    bank = Bank.from_texts(texts, BankConfig(retrieval_top_k=3), static)
    assert len(bank.recall("city", step=0)) == 3
    assert len(bank.recall("city", k=99, step=0)) == 3
    assert len(bank.recall("city", k=2, step=0)) == 2
    with pytest.raises(ValueError, match="k: expected an integer >= 1"):
        bank.recall("city", k=0, step=0)


def test_an_empty_bank_recalls_nothing(static):
    bank = Bank(BankConfig(), static)
    assert bank.recall("anything", step=0) == []
    assert bank.log[-1].outcome == "recalled"
    bank.write("a", step=1)
    bank.delete([0], step=1)
    assert bank.recall("a", step=2) == []


def test_candidates_are_by_similarity_and_count_no_access(static):
    bank = bank_of(static, "ann phone 17", "bob lives in rome", "rome is a city")
    query = static.embed(["rome"])[0]
    order = sorted(bank.active, key=lambda entry: -float(entry.embedding @ query))
    assert bank.candidates("rome", 2) == [entry.id for entry in order[:2]]
    assert all(entry.access_count == 0 for entry in bank.entries)
    assert len(bank.log) == 3


def test_summary_shows_titles_never_contents(static):
    bank = Bank(BankConfig(), static)
    for step, (title, text) in enumerate(
        [("one", "apple"), (None, "secret brick"), ("three", "cloud")]
    ):
        bank.write(text, title=title, step=step)
    assert bank.summary() == type(bank.summary())(3, ("three", "one"))
    assert bank.summary(recent=2).titles == ("three",)
    bank.delete([2], step=3)
    assert bank.summary().active == 2
    assert bank.summary().titles == ("one",)


def test_forks_are_independent_both_ways(static):
    parent = bank_of(static, "ann phone 17", "bob lives in rome")
    left, right = parent.fork("left"), parent.fork("right")
    left.write("the sky is blue", step=2)
    left.delete([0], step=2)
    parent.recall("bob", k=1, step=2)
    assert texts_of(right) == ["ann phone 17", "bob lives in rome"]
    assert right.log == []
    assert [entry.access_count for entry in right.entries] == [0, 0]
    assert right.recall("sky", step=3)[0].entry.text != "the sky is blue"
    assert len(parent.active) == 2
    assert left.entry(2).source == "left"
    for bank in (parent, left, right):
        bank.check_valid()


def test_a_disabled_bank_logs_and_does_nothing(static):
    bank = Bank(BankConfig(enabled=False), static)
    assert bank.write("a", step=0).outcome == "disabled"
    assert bank.recall("a", step=0) == []
    assert (len(bank), [record.outcome for record in bank.log]) == (0, ["disabled"] * 2)


def test_token_spans_reach_the_log(static):
    bank = bank_of(static)
    bank.write("a b", step=0, token_span=(3, 9))
    bank.recall("a", step=0, token_span=(9, 12))
    bank.delete([0], step=0, token_span=(12, 14))
    bank.merge([0, 0], step=0, token_span=(14, 15))
    bank.note("malformed", step=1, error=OpError.NESTED_TAG, token_span=(0, 2))
    spans = [record.token_span for record in bank.log]
    assert spans == [(3, 9), (9, 12), (12, 14), (14, 15), (0, 2)]
    assert (bank.log[-1].kind, bank.log[-1].error) == ("malformed", "nested_tag")
    bank.check_valid()


def test_at_shows_the_bank_at_any_earlier_step(static):
    bank = bank_of(static, "ann phone 17", "bob lives in rome")
    seen = {1: bank.entries}
    bank.write("ann phone 18", step=2)
    bank.recall("bob", k=1, step=3)
    seen[3] = bank.entries
    bank.delete([1], step=4)
    bank.write("the sky is blue", step=5)
    seen[5] = bank.entries
    for step, entries in seen.items():
        past = bank.at(step)
        past.check_valid()
        assert past.entries == entries
    assert bank.at(-1).entries == []
    assert bank.at(99).entries == bank.entries


def test_at_of_a_fork_starts_from_what_it_was_given(static):
    fork = bank_of(static, "ann phone 17").fork("t1")
    fork.delete([0], step=0)
    assert texts_of(fork.at(-1)) == ["ann phone 17"]
    assert texts_of(fork.at(0)) == []


def test_from_texts_builds_without_gates(static):
    bank = Bank.from_texts(["a b", "a b", "c"], BankConfig(), static, trajectory_id="w")
    assert texts_of(bank) == ["a b", "a b", "c"]
    assert (bank.log, bank.entry(0).source) == ([], "w")
    bank.check_valid()
    assert Bank.from_texts([], BankConfig(), static).recall("x", step=0) == []
    for texts, config in (
        (["a", " "], BankConfig()),
        (["abc"], BankConfig(max_entry_chars=2)),
        (["a", "b"], BankConfig(capacity=1)),
    ):
        with pytest.raises(ValueError, match="from_texts"):
            Bank.from_texts(texts, config, static)


def test_an_embedder_that_breaks_its_promise_is_named():
    class Broken(Directions):
        def embed(self, texts):
            return np.full((len(texts), 4), np.nan, np.float32)

    with pytest.raises(ValueError, match="directions"):
        Bank(BankConfig(), Broken({})).write("a", step=0)


def test_check_valid_sees_damage(static):
    bank = bank_of(static, "ann phone 17", "bob lives in rome")
    healthy = bank.entry(0)
    for field, value in (
        ("status", Status.DELETED),
        ("merged_into", 1),
        ("embedding", healthy.embedding * 2),
        ("access_count", 5),
        ("parents", (1,)),
        ("text", ""),
    ):
        bank._table._added[0] = dataclasses.replace(healthy, **{field: value})
        with pytest.raises(AssertionError, match="not valid"):
            bank.check_valid()
    bank._table._added[0] = healthy
    bank.check_valid()
    bank._table.index.remove(1)
    with pytest.raises(AssertionError, match="index"):
        bank.check_valid()


@pytest.mark.parametrize(
    "field",
    ["capacity", "retrieval_top_k", "oversample", "mmr_lambda", "merge_threshold"],
)
def test_impossible_settings_are_refused_by_name(field):
    with pytest.raises(ValueError, match=f"memory.{field}"):
        BankConfig(**{field: -2})


def test_a_title_is_one_line_and_a_blank_one_none():
    bank = Bank(BankConfig(), make_embedder("hashing"))
    bank.write("ann likes tea", title="  about\n ann ", step=0)
    bank.write("rome is a city", title=" \n", step=1)
    assert [entry.title for entry in bank.entries] == ["about ann", None]
    assert bank.summary().titles == ("about ann",)


def test_a_bank_prints_what_became_of_each_entry(static):
    bank = Bank(BankConfig(capacity=3), static, "today")
    bank.write("the code of the gate is 4711", step=0)
    bank.write("the code of the gate is 4712", step=1)
    bank.write("ann likes tea", title="drinks", step=2)
    bank.write("ben lives in Rome", step=3)
    bank.write("long " * 200, step=4)
    bank.recall("tea", k=1, step=5)
    bank.delete([2], step=6)
    head, *rows = str(bank).splitlines()
    assert head == "2 of 5 entries active, at most 3 at a time"
    assert [re.split(" {2,}", row.strip()) for row in rows[:4]] == [
        ["0", "superseded by 1", "recalled 0x", "the code of the gate is 4711"],
        ["1", "evicted", "recalled 0x", "the code of the gate is 4712"],
        ["2", "deleted", "recalled 1x", "drinks: ann likes tea"],
        ["3", "active", "recalled 0x", "ben lives in Rome"],
    ]
    assert rows[4].endswith("long ...")
    assert max(map(len, rows)) < 220
    assert repr(bank) == "<Bank 'today': 2 of 5 entries active, 7 ops logged>"


def test_a_large_bank_prints_its_newest_entries(static):
    texts = [f"fact {number}" for number in range(70)]
    lines = str(Bank.from_texts(texts, BankConfig(capacity=0), static)).splitlines()
    assert lines[0] == "70 of 70 entries active"
    assert lines[1].strip() == "20 older ones are left out; see Bank.entries"
    assert [lines[2].split()[0], lines[-1].split()[0]] == ["20", "69"]
