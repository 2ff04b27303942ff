"""Hygiene measures: staleness, junk, duplicates, contradictions."""

import dataclasses

import pytest

from mempo_jax.memory import Bank, BankConfig, make_embedder

LOOSE = BankConfig(judge="always", merge_threshold=1.01)  # keeps all that is written


@pytest.fixture(scope="module")
def static():
    return make_embedder("static")


def bank_of(embedder, *texts, config=LOOSE):
    return Bank.from_texts(texts, config, embedder, "t")


def test_an_empty_bank_has_nothing_wrong(static):
    hygiene = Bank(LOOSE, static).hygiene()
    counts = dataclasses.asdict(hygiene)
    assert counts.pop("contradictions") == ()
    assert set(counts.values()) == {0}


def test_one_entry_is_junk_until_it_is_recalled(static):
    bank = Bank(LOOSE, static)
    bank.write("ann phone 17", step=2)
    hygiene = bank.hygiene(step=7)
    assert (hygiene.active, hygiene.written, hygiene.probed) == (1, 1, 1)
    assert (hygiene.junk_share, hygiene.junk_written_share) == (1.0, 1.0)
    assert (hygiene.staleness_mean, hygiene.staleness_median) == (5.0, 5.0)
    assert (hygiene.duplicate_share, hygiene.contradictions) == (0.0, ())
    bank.recall("ann", step=6)
    hygiene = bank.hygiene(step=7)
    assert (hygiene.junk_share, hygiene.junk_written_share) == (0.0, 0.0)
    assert hygiene.staleness_mean == 1.0
    assert bank.hygiene().step == 6  # the last turn logged
    assert bank.hygiene(step=3).staleness_mean == 0.0


def test_staleness_counts_turns_since_the_last_access(static):
    bank = Bank(LOOSE, static)
    for step, text in enumerate(("red apple", "blue brick", "green cloud")):
        bank.write(text, step=step)
    bank.recall("red apple", k=1, step=8)
    hygiene = bank.hygiene(step=10)  # 2, 9 and 8 turns ago
    assert hygiene.staleness_mean == pytest.approx(19 / 3)
    assert hygiene.staleness_median == 8
    bank.delete([1], step=10)  # tombstones do not age
    assert bank.hygiene(step=10).staleness_mean == 5


def test_deleting_junk_does_not_hide_that_it_was_written(static):
    bank = bank_of(static, "red apple", "blue brick", "green cloud", "dark drum")
    bank.recall("red apple", k=1, step=1)
    bank.delete([1, 2], step=2)
    hygiene = bank.hygiene()
    assert (hygiene.active, hygiene.written) == (2, 4)
    assert (hygiene.junk_share, hygiene.junk_written_share) == (0.5, 0.75)


def test_what_was_merged_shares_the_recalls_of_what_it_became(static):
    bank = bank_of(static, "red apple", "blue brick", "green cloud", "dark drum")
    bank.merge([0, 1], step=1)
    bank.recall("red apple and blue brick", k=1, step=2)
    bank.recall("dark drum", k=1, step=3)
    bank.merge([2, 3], step=4)
    hygiene = bank.hygiene()  # of 6 entries only the green cloud was ...
    assert (hygiene.written, hygiene.active) == (6, 2)
    assert hygiene.junk_written_share == 0.0  # ... and it lives on in one that was
    assert hygiene.junk_share == 0.0


def test_own_leaves_out_what_the_bank_was_given(static):
    parent = bank_of(static, "red apple", "blue brick", "green cloud")
    bank = parent.fork("u")
    bank.write("dark drum", step=1)
    bank.write("red apple", step=1)
    bank.recall("dark drum", k=1, step=2)
    hygiene = bank.hygiene(own=True)
    assert (hygiene.active, hygiene.written, hygiene.probed) == (2, 2, 2)
    assert (hygiene.junk_share, hygiene.duplicate_share) == (0.5, 0.5)
    assert bank.hygiene().active == 5


def test_duplicates_repeat_another_entry(static):
    bank = bank_of(static, *["ann phone 17"] * 30)
    assert bank.hygiene().duplicate_share == 1.0
    assert bank.hygiene().contradictions == ()
    bank = bank_of(
        static,
        "ann lives in rome with bob",
        "ann lives in rome",  # adds nothing to the one above; the other way it does
        "the sky is blue",
        "ann prefers tea over coffee",
        "ann prefers coffee over tea",  # the same words, but no repeat
    )
    assert bank.hygiene().duplicate_share == 1 / 5
    bank.delete([0], step=1)
    assert bank.hygiene().duplicate_share == 0.0


def test_contradictions_are_similar_entries_with_other_values(static):
    texts = ["the code is 4711", "ann phone 17", "the sky is blue", "the code is 4712"]
    bank = bank_of(static, *texts, "ann phone 18", "bob phone 18")
    hygiene = bank.hygiene()
    pairs = [(older, newer) for older, newer, _ in hygiene.contradictions]
    assert sorted(pairs) == [(0, 3), (1, 4)]
    assert hygiene.contradiction_count == 2
    similarities = [similarity for _, _, similarity in hygiene.contradictions]
    assert similarities == sorted(similarities, reverse=True)
    for older, newer, similarity in hygiene.contradictions:
        a, b = bank.entry(older).embedding, bank.entry(newer).embedding
        assert similarity == pytest.approx(float(a @ b), abs=1e-5)
    assert bank.hygiene(similar=similarities[0]).contradiction_count == 1
    assert len(bank.hygiene(listed=1).contradictions) == 1
    assert bank.hygiene(listed=1).contradiction_count == 2
    bank.delete([3], step=1)
    assert [pair[:2] for pair in bank.hygiene().contradictions] == [(1, 4)]


def test_it_measures_and_touches_nothing(static):
    bank = bank_of(static, "ann phone 17", "ann phone 18")
    entries = bank.entries
    bank.hygiene()
    assert (bank.entries, bank.log) == (entries, [])


def test_a_large_bank_is_sampled_evenly_and_alike_each_time(static):
    texts = [f"{'xyz'[i % 3]} item {i // 2}" for i in range(600)]
    bank = bank_of(static, *texts)
    whole, part = bank.hygiene(), bank.hygiene(probes=50)
    assert (whole.probed, part.probed) == (600, 50)
    assert part == bank.hygiene(probes=50) == bank.fork("f").hygiene(probes=50)
    assert part.junk_share == whole.junk_share == 1.0
    assert bank.hygiene(probes=0).duplicate_share == 0.0
    words = ["apple", "brick", "cloud", "drum", "eagle", "fork", "goat", "hat", "ink"]
    half = bank_of(static, *words, "jam", *["the sky is blue"] * 10)
    assert half.hygiene(probes=4).duplicate_share == 0.5  # two of either kind
