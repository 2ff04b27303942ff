"""Random sequences of ops: invariants after each op; replay, look back, reload."""

import pathlib
import tempfile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mempo_jax.memory import Bank, BankConfig, make_embedder, replay

EMBEDDER = make_embedder("hashing", dim=32)
WORDS = ["ann", "bob", "phone", "email", "17", "18", "not", "lives", "rome"]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
TITLES = st.sampled_from([None, "ann", "bob phone"])
IDS = st.lists(st.integers(-1, 12), max_size=3)


class BankMachine(RuleBasedStateMachine):
    """A bank against a plain list of what its entries must be."""

    def __init__(self):
        super().__init__()
        self.step = 0
        config = BankConfig(capacity=5, merge_threshold=0.6, merge_max_chars=30)
        self.initial = Bank.from_texts(["ann phone 17", "rome"], config, EMBEDDER)
        self.bank = self.initial.fork("t")
        self.seen = {-1: self.bank.entries}
        self.others = []

    @rule(text=TEXTS, title=TITLES)
    def write(self, text, title):
        count = len(self.bank.entries)
        result = self.bank.write(text, title=title, step=self.step)
        grew = len(self.bank.entries) - count
        assert grew == (result.outcome in ("new", "merged"))
        assert self.bank.write(text, title=title, step=self.step).outcome != "new"

    @rule(text=TEXTS, k=st.sampled_from([None, 1, 3]))
    def recall(self, text, k):
        hits = self.bank.recall(text, k=k, step=self.step)
        assert len(hits) == min(k or 6, len(self.bank))
        assert all(hit.entry.status == "active" for hit in hits)
        assert len({hit.entry.id for hit in hits}) == len(hits)

    @rule(ids=IDS, text=st.one_of(st.none(), TEXTS))
    def merge(self, ids, text):
        self.bank.merge(ids, text=text, step=self.step)

    @rule(ids=IDS)
    def delete(self, ids):
        self.bank.delete(ids, step=self.step)

    @rule()
    def note(self):
        self.bank.note("malformed", step=self.step, error="nested_tag")

    @rule()
    def next_turn(self):
        self.seen[self.step] = self.bank.entries
        self.step += 1

    @rule()
    def fork(self):
        twin = self.bank.fork("other")
        self.others.append((twin, twin.entries))
        twin.fork("third").write("bob", step=self.step)

    @invariant()
    def holds(self):
        self.bank.check_valid()

    def teardown(self):
        for step, entries in self.seen.items():
            assert self.bank.at(step).entries == entries
        for twin, entries in self.others:
            assert twin.entries == entries
            twin.check_valid()
        again = replay(self.initial, self.bank.log, "t")
        again.check_valid()
        assert again.entries == self.bank.entries
        assert again.log == self.bank.log
        with tempfile.TemporaryDirectory() as folder:
            self.bank.save(pathlib.Path(folder) / "bank")
            loaded = Bank.load(pathlib.Path(folder) / "bank", EMBEDDER)
        assert loaded.entries == self.bank.entries
        for bank in (again, loaded):  # and they go on alike
            hits = bank.fork("x").recall("ann phone", step=99)
            assert hits == self.bank.fork("x").recall("ann phone", step=99)


TestBankMachine = BankMachine.TestCase
TestBankMachine.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None
)


def test_replay_refuses_the_log_of_another_bank():
    config = BankConfig()
    bank = Bank.from_texts(["ann phone 17", "rome"], config, EMBEDDER).fork("t")
    bank.write("bob email", step=0)
    bank.delete([1], step=1)
    with pytest.raises(ValueError, match="another initial bank"):
        replay(Bank(config, EMBEDDER), bank.log)
    with pytest.raises(ValueError, match="another initial bank"):
        replay(bank, bank.log)


def test_replay_leaves_the_initial_bank_alone():
    initial = Bank.from_texts(["ann phone 17"], BankConfig(), EMBEDDER)
    bank = initial.fork("t")
    bank.delete([0], step=0)
    assert replay(initial, bank.log).active == []
    assert len(initial) == 1
    assert initial.log == []
