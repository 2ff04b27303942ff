"""A bank over several tasks, saved in between; forks, and looking back."""

import pytest

from mempo_jax.memory import Bank, BankConfig, Reason, make_embedder

EMBEDDER = make_embedder("hashing", dim=64)


def facts(bank):
    return [(e.text, e.source, e.step_created, e.step_accessed) for e in bank.entries]


def test_three_tasks_one_after_another_saved_in_between(tmp_path):
    bank = Bank(BankConfig(merge_threshold=0.5), EMBEDDER, "task-0")
    bank.write("ann phone 17", step=0)
    bank.write("rivers run north", step=2)
    bank.note("answer", step=4)
    bank.save(tmp_path / "bank")

    bank = Bank.load(tmp_path / "bank", EMBEDDER).next_task("task-1")
    assert (bank.log, bank.trajectory_id) == ([], "task-1")
    # Five turns were taken: the last of them is turn -1 now.
    assert facts(bank) == [
        ("ann phone 17", "task-0", -5, -5),
        ("rivers run north", "task-0", -3, -3),
    ]
    bank.recall("ann phone", k=1, step=1)
    bank.write("ann phone 18", step=2)
    assert bank.at(-1).entries == bank.at(-4).entries == list(bank.initial_entries)
    assert [entry.text for entry in bank.at(1).active] == [
        "ann phone 17",
        "rivers run north",
    ]
    assert bank.at(1).entry(0).step_accessed == 1
    bank.save(tmp_path / "bank")

    bank = Bank.load(tmp_path / "bank", EMBEDDER).next_task("task-2", turns=10)
    bank.write("bob email 23", step=0)
    bank.check_valid()
    assert facts(bank) == [
        ("ann phone 17", "task-0", -15, -9),
        ("rivers run north", "task-0", -13, -13),
        ("ann phone 18", "task-1", -8, -8),
        ("bob email 23", "task-2", 0, 0),
    ]
    assert (bank.entry(0).merged_into, bank.entry(0).reason) == (2, Reason.SUPERSEDED)
    assert (bank.entry(2).parents, bank.entry(2).access_count) == ((0,), 1)
    assert [entry.id for entry in bank.at(-1).active] == [1, 2]
    assert bank.at(0).entries == bank.entries
    assert bank.hygiene(step=0).staleness_median == 8
    bank.save(tmp_path / "bank")
    again = Bank.load(tmp_path / "bank", EMBEDDER)
    assert (again.entries, again.log) == (bank.entries, bank.log)
    assert again.at(-1).entries == bank.at(-1).entries


def test_the_next_task_leaves_this_one_alone():
    bank = Bank(BankConfig(), EMBEDDER, "a")
    bank.write("ann phone 17", step=3)
    before, later = bank.entries, bank.next_task("b")
    later.delete([0], step=0)
    later.write("bob email 23", step=0)
    bank.recall("ann", step=4)
    assert len(bank.entries) == len(before) == 1
    assert bank.entry(0).access_count == 1
    assert later.entry(0).access_count == 0
    for each in (bank, later):
        each.check_valid()


def test_old_tasks_go_first_over_the_cap():
    """Without putting steps back, a late step of an old task would look recent."""
    config = BankConfig(capacity=2, judge="always", merge_threshold=1.01)
    bank = Bank(config, EMBEDDER, "a")
    bank.write("old", step=30)
    bank = bank.next_task("b")
    bank.write("young", step=0)
    bank.write("youngest", step=1)
    assert [entry.text for entry in bank.active] == ["young", "youngest"]


def test_turns_must_cover_the_log():
    bank = Bank(BankConfig(), EMBEDDER, "a")
    bank.write("ann phone 17", step=3)
    for turns, error in ((3, ValueError), (-1, ValueError), (2.0, TypeError)):
        with pytest.raises(error, match="turns"):
            bank.next_task("b", turns=turns)
    assert bank.next_task("b", turns=4).entry(0).step_created == -1
    empty = Bank(BankConfig(), EMBEDDER).next_task("b")
    assert (empty.entries, empty.trajectory_id) == ([], "b")


def test_a_step_may_go_back_and_the_log_keeps_its_order():
    bank = Bank(BankConfig(), EMBEDDER, "a")
    bank.write("ann phone 17", step=5)
    bank.write("rivers run north", step=2)
    bank.recall("rivers", k=1, step=1)
    bank.check_valid()
    assert bank.at(4).entries == []  # up to the first record of a later turn
    assert bank.at(5).entries == bank.entries
    assert bank.entry(1).step_accessed == 2


def test_looking_back_embeds_nothing_and_shares_the_vectors():
    class Counting:
        name, dim, calls = "hashing", 64, 0

        def embed(self, texts):
            self.calls += 1
            return EMBEDDER.embed(texts)

    embedder = Counting()
    bank = Bank(BankConfig(), embedder, "a")
    for step in range(5):
        bank.write(f"fact {step} about {'abcde'[step]}", step=step)
    calls = embedder.calls
    past = bank.at(3)
    assert embedder.calls == calls
    assert past.entry(2).embedding is bank.entry(2).embedding
    assert [e.id for e in past.active] == [0, 1, 2, 3]
