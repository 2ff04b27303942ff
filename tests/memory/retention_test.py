"""Erasing, compacting and other settings: what goes is gone, what stays is the same."""

import json
import os
import random

import numpy as np
import pytest

from mempo_jax.memory import (
    Bank,
    BankConfig,
    BankConflictError,
    Reason,
    Status,
    lexical,
    make_embedder,
)
from mempo_jax.memory.lexical import comparison, statements

EMBEDDER = make_embedder("hashing", dim=16)
SECRET = "zanzibar 99431"


def bank_of(*texts, **settings):
    bank = Bank(BankConfig(merge_threshold=0.5, **settings), EMBEDDER, "t")
    for step, text in enumerate(texts):
        bank.write(text, step=step)
    return bank


def files_with(folder, *wanted):
    """The files below a folder that hold one of some byte strings."""
    return [
        name
        for name in os.listdir(folder)
        if any(each in (folder / name).read_bytes() for each in wanted)
    ]


def traces(*texts):
    """A text as files may hold it: as JSON escapes it, and as an embedding."""
    for text in texts:
        yield json.dumps(text)[1:-1].encode()
        yield EMBEDDER.embed([text])[0].astype("<f4").tobytes()


def used(secret):
    """A bank in which a secret has been written, asked for, noted and said again."""
    bank = Bank.from_texts(["rome is old"], BankConfig(), EMBEDDER, "t").fork("t")
    first = bank.write(f"the code is {secret}", title=secret, step=0).entry_id
    bank.write(f"the code is {secret}", title=secret, step=1)  # a duplicate
    bank.write("rivers run north", step=1)
    bank.recall(f"where is {secret}", step=2)
    bank.note("answer", step=3, text=f"it is {secret}")
    bank.note("malformed", step=3, error="unclosed_tag", text=secret)
    bank.write("x" * 3000 + secret, step=3)  # refused
    return bank, first


@pytest.mark.parametrize("secret", [SECRET, "Žofie 😀", "王小明\ud83d", "a\nb"])
@pytest.mark.parametrize("fate", ["active", "deleted", "merged", "base", "evicted"])
def test_a_purged_text_is_nowhere_in_the_saved_directory(tmp_path, secret, fate):
    bank, entry = used(secret)
    folder = tmp_path / "bank"
    bank.save(folder)
    assert files_with(folder, *traces(secret))
    if fate == "deleted":
        bank.delete([entry], step=4)
    elif fate == "merged":
        bank.merge([entry, 0], step=4)
    elif fate == "evicted":
        for number in range(3):
            bank.write(f"fact number {number} of another kind", step=5)
        bank.apply(bank.log[-1].__class__(6, "delete", "deleted", (entry,)))
    elif fate == "base":
        bank = bank.next_task("u")
        bank.write("glass is hard", step=0)
    result = bank.purge([entry])
    assert entry in result.purged
    assert not result.repeated_in
    bank.check_valid()
    assert files_with(folder, *traces(secret, f"the code is {secret}")) == []
    loaded = Bank.load(folder, EMBEDDER)
    loaded.check_valid()
    assert loaded.entries == bank.entries
    gone = loaded.entry(entry)
    assert (gone.text, gone.title, gone.reason) == ("", None, Reason.PURGED)
    assert "erased" in str(gone)
    assert not any(secret in repr(each) for each in (*loaded.entries, *loaded.log))
    assert entry not in loaded.candidates(secret, 9)
    assert "rivers run north" in [each.text for each in loaded.active]


def test_files_of_a_save_that_was_killed_go_as_well(tmp_path):
    bank, entry = used(SECRET)
    folder = tmp_path / "bank"
    bank.save(folder)
    for name in os.listdir(folder):  # as if an earlier save had been killed
        if name != "meta.json":
            kind, _, suffix = name.split(".")
            copy = (folder / name).read_bytes()
            (folder / f"{kind}.{'0' * 16}.{suffix}").write_bytes(copy)
    assert len(os.listdir(folder)) == 7
    bank.purge([entry])
    assert len(os.listdir(folder)) == 4
    assert files_with(folder, *traces(SECRET)) == []


def test_every_directory_of_the_bank_is_written_anew(tmp_path):
    bank, entry = used(SECRET)
    bank.save(tmp_path / "one")
    other = Bank.load(tmp_path / "one", EMBEDDER)
    other.save(tmp_path / "two")
    other.save(tmp_path / "gone")
    for name in os.listdir(tmp_path / "gone"):
        (tmp_path / "gone" / name).unlink()
    other.purge([entry])
    for name in ("one", "two"):
        assert files_with(tmp_path / name, *traces(SECRET)) == []
    assert os.listdir(tmp_path / "gone") == []


def test_a_file_that_cannot_be_removed_is_named(tmp_path, monkeypatch):
    bank, entry = used(SECRET)
    bank.save(tmp_path / "bank")

    def refuse(path, **options):
        raise PermissionError("no")

    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    with pytest.raises(OSError, match=r"could not remove.*entries\."):
        bank.purge([entry])
    assert bank.entry(entry).text == ""


def test_what_a_merge_took_over_goes_and_another_value_stays():
    bank = bank_of("ann phone is 23", "ann phone is 42", "ben likes tea")
    old, new, ben = bank.entries
    assert (old.reason, new.parents) == (Reason.SUPERSEDED, (0,))
    joined = bank.merge([1, 2], step=3).entry_id
    assert bank.purge([0]).purged == (0,)
    assert "42" in bank.entry(joined).text
    assert bank.purge([joined]).purged == (1, 2, joined)
    assert {each.text for each in bank.entries} == {""}
    bank.check_valid()
    assert len(bank) == 0
    assert ben.text == "ben likes tea"  # what was taken out before is another object


def test_statements_that_an_update_left_in_place_go_with_the_old_text():
    bank = bank_of("ann lives in oslo. ann likes tea", "ann lives in rome")
    assert bank.entries[0].reason == Reason.SUPERSEDED
    assert "tea" in bank.entries[1].text
    assert bank.purge([0]).purged == (0, 1)


def test_other_entries_that_say_it_too_are_named_and_left():
    bank = bank_of(SECRET)
    bank.delete([0], step=1)
    bank.write(f"we met in  {SECRET.upper()} once", step=2)
    result = bank.purge([0])
    assert (result.purged, result.repeated_in) == ((0,), (1,))
    assert bank.active[0].id == 1
    bank = Bank(BankConfig(merge_threshold=0.5), EMBEDDER, "t")
    bank.write("the code is 1", title=SECRET, step=0)
    bank.write("the code is 2", title=SECRET, step=1)  # which has its title as well
    assert bank.purge([0]) == bank.purge([0]).__class__((0,), (1,))


def test_the_judge_forgets_what_it_was_asked():
    class Judge:
        def __init__(self):
            self.asked = []

        def __call__(self, new, old):
            self.asked.append((new, old))
            return "other"

        def forget(self):
            self.asked.clear()

    judge = Judge()
    bank = Bank(BankConfig(), EMBEDDER, judge=judge)
    bank.write(SECRET, step=0)
    bank.write("other words", step=1)
    lexical.judge.lexical(SECRET, "the code is 12")
    caches = [
        value
        for module in (comparison, statements)
        for value in vars(module).values()
        if hasattr(value, "cache_info")
    ]
    assert judge.asked
    assert any(cache.cache_info().currsize for cache in caches)
    bank.purge([0])
    assert not judge.asked
    assert not any(cache.cache_info().currsize for cache in caches)


@pytest.mark.parametrize("ids", [[7], [0, -1], [True], ["0"], "0", None, 0])
def test_what_is_no_entry_cannot_be_purged(ids):
    bank = bank_of("one", "two words")
    before = bank.entries
    with pytest.raises((TypeError, ValueError), match="purge: expected"):
        bank.purge(ids)
    assert bank.entries == before
    assert len(bank.log) == 2


def test_a_purged_bank_goes_on_as_any_other(tmp_path):
    bank, entry = used(SECRET)
    bank.purge([entry])
    bank.purge([entry])  # again, and nothing comes of it
    assert bank.write("glass is hard", step=9).outcome == "new"
    assert bank.delete([entry], step=9).error == "inactive_id"
    after = bank.next_task("u")
    after.recall("glass", step=0)
    after.save(tmp_path / "bank")
    assert Bank.load(tmp_path / "bank", EMBEDDER).entries == after.entries
    after.check_valid()


def churn(bank, seed, turns):
    draw = random.Random(seed)
    for turn in range(turns):
        active = [entry.id for entry in bank.active]
        kind = draw.choice(["write", "write", "write", "recall", "merge", "delete"])
        if kind == "write":
            text = " ".join(draw.choice("abcdefgh") * 3 for _ in range(4))
            bank.write(f"{text} {draw.randrange(99)}", step=turn)
        elif kind == "recall":
            bank.recall(draw.choice("abcdefgh") * 3, step=turn)
        elif kind == "merge" and len(active) > 1:
            bank.merge(draw.sample(active, 2), step=turn)
        elif active:
            bank.delete([draw.choice(active)], step=turn)


def meaning(entries):
    return [
        (e.title, e.text, e.access_count, e.step_accessed, e.source) for e in entries
    ]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("turns", [0, 1, 10, 1000])
def test_a_compacted_bank_remembers_the_same(seed, turns):
    bank = bank_of("one fact", capacity=12)
    churn(bank, seed, 60)
    before = bank.next_task("t")
    queries = ["aaa bbb", "ccc", "fact"]
    ids = bank.compact(turns)
    bank.check_valid()
    assert meaning(bank.active) == meaning(before.active)
    assert not bank.log
    assert list(ids.values()) == list(range(len(bank.entries)))
    assert sorted(ids) == list(ids)
    dropped = [each for each in before.entries if each.id not in ids]
    assert all(each.status != Status.ACTIVE for each in dropped)
    assert len(dropped) == (0 if turns == 1000 else len(dropped))
    if turns == 0:
        assert len(bank.entries) == len(bank)
    for entry in bank.entries:  # what is left of the lineage still fits together
        assert all(
            bank.entry(parent).merged_into == entry.id for parent in entry.parents
        )
    for query in queries:
        assert [bank.entry(i).text for i in bank.candidates(query, 5)] == [
            before.entry(i).text for i in before.candidates(query, 5)
        ]
    for number in range(20):  # the cap evicts in the same order
        text = f"quite another thing {number * 7919}"
        results = [each.write(text, step=number).outcome for each in (bank, before)]
        assert results[0] == results[1]
    assert meaning(bank.active) == meaning(before.active)


def test_next_task_drops_old_tombstones_once_they_are_many():
    kept = bank_of("ann phone is 1")
    bank = bank_of("ann phone is 1", tombstone_turns=30)
    sizes = []
    for task in range(60):
        for each in (kept, bank):
            for turn in range(3):
                each.write(f"ann phone is {2 + 3 * task + turn}", step=turn)
        kept, bank = kept.next_task(f"{task}"), bank.next_task(f"{task}")
        bank.check_valid()
        sizes.append(len(bank.entries))
        assert meaning(bank.active) == meaning(kept.active)
        # Thirty turns are ten tasks: what was replaced in them is still there.
        recent = [each for each in kept.entries if each.step_accessed >= -30]
        assert meaning(recent) == meaning(bank.entries)[-len(recent) :]
    assert len(kept.entries) == 181
    assert max(sizes[30:]) == max(sizes[15:30]) < 60


def test_other_settings_are_taken_and_named(tmp_path):
    bank = bank_of("one fact", "two birds sing", "three old stones", capacity=9)
    bank.recall("stones", step=3)
    bank.save(tmp_path / "bank")
    config = BankConfig(capacity=2, merge_threshold=0.9, retrieval_top_k=1)
    with pytest.warns(UserWarning, match="opened with other settings") as said:
        opened = Bank.load(tmp_path / "bank", EMBEDDER, config=config)
    text = str(said[0].message)
    assert len(said) == 1
    for part in (
        "capacity is 2 and was 9",
        "merge_threshold is 0.9 and was 0.5",
        "1 entries over the capacity were evicted",
    ):
        assert part in text
    opened.check_valid()
    assert opened.config == config
    assert [each.text for each in opened.active] == [
        "two birds sing",
        "three old stones",
    ]
    assert opened.entries[0].reason == Reason.EVICTED
    assert len(opened.recall("stones", step=0)) == 1
    opened.save(tmp_path / "bank")
    again = Bank.load(tmp_path / "bank", EMBEDDER, config=config)
    assert again.entries == opened.entries  # and nothing more is said
    assert again.log == opened.log
    assert bank.config.capacity == 9


def test_the_settings_it_was_saved_with_change_nothing(tmp_path, recwarn):
    bank = bank_of("one fact", "two birds sing")
    bank.save(tmp_path / "bank")
    opened = Bank.load(tmp_path / "bank", EMBEDDER, config=bank.config)
    assert (opened.entries, opened.log) == (bank.entries, bank.log)
    assert not recwarn.list


def test_another_embedder_embeds_anew(tmp_path):
    bank = bank_of("one fact", "two birds sing")
    bank.delete([0], step=2)
    bank.save(tmp_path / "bank")
    other = make_embedder("hashing", dim=64)
    with pytest.warns(UserWarning, match="1 texts were embedded anew"):
        opened = Bank.load(tmp_path / "bank", other, config=bank.config)
    opened.check_valid()
    np.testing.assert_array_equal(
        opened.entries[1].embedding, other.embed(["two birds sing"])[0]
    )
    assert opened.write("two birds sing", step=0).outcome == "duplicate"
    opened.save(tmp_path / "bank")
    assert Bank.load(tmp_path / "bank", other).entries == opened.entries


def test_a_purge_does_not_replace_what_another_bank_has_saved(tmp_path):
    bank, entry = used(SECRET)
    bank.save(tmp_path / "bank")
    other = Bank.load(tmp_path / "bank", EMBEDDER)
    other.write("glass is hard", step=5)
    other.save(tmp_path / "bank")
    with pytest.raises(BankConflictError, match="another process or bank"):
        bank.purge([entry])
    assert Bank.load(tmp_path / "bank", EMBEDDER).entries == other.entries
