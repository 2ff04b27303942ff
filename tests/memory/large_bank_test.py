"""A large initial bank: forking, saving and loading cost what they may."""

import dataclasses
import tracemalloc

import numpy as np
import pytest

from mempo_jax.memory import Bank, BankConfig
from mempo_jax.memory.store import EntryTable

COUNT, DIM = 100_000, 16


class Numbered:
    """Fast unit rows from a text's number."""

    name, dim = "numbered", DIM

    def embed(self, texts):
        numbers = np.asarray([int(text.split()[0]) for text in texts], np.int64)
        angle = numbers[:, None] * np.arange(1, DIM + 1)[None] * 0.61803
        rows = np.sin(angle) + 1e-3
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows.astype(np.float32)


@pytest.fixture(scope="module")
def large():
    texts = [f"{i} is the number" for i in range(COUNT)]
    # Exact search, so that the figures are those of the bank alone.
    config = BankConfig(ann_threshold=10**9, judge="always", merge_threshold=1.01)
    return Bank.from_texts(texts, config, Numbered(), "world")


def test_a_fork_costs_under_one_percent_of_the_memory(large):
    tracemalloc.start()
    whole = Bank.from_texts(
        [entry.text for entry in large.entries], large.config, large.embedder
    )
    whole.candidates("1", 1)
    size = tracemalloc.get_traced_memory()[0]
    whole.fork("warm")
    before = tracemalloc.get_traced_memory()[0]
    forks = [whole.fork(f"t{i}") for i in range(64)]
    for number, fork in enumerate(forks):
        fork.write(f"{7_000_000 + number} is new", step=0)
        fork.delete([5], step=0)
        fork.recall("17", step=0)
    fork_size = (tracemalloc.get_traced_memory()[0] - before) / 64
    tracemalloc.stop()
    assert fork_size < 0.01 * size
    assert 64 * fork_size < 64 * 2**20
    assert len(whole) == COUNT
    assert all(len(fork) == COUNT for fork in forks)
    assert whole.entry(5).status == "active"
    for number, fork in enumerate(forks):  # what one wrote, no other sees
        assert fork.entry(COUNT).text == f"{7_000_000 + number} is new"
        assert len(fork.entries) == COUNT + 1


@pytest.fixture(scope="module")
def full(large):
    """The same, with a cap that one more entry exceeds."""
    config = dataclasses.replace(large.config, capacity=COUNT)
    texts = [entry.text for entry in large.entries]
    return Bank.from_texts(texts, config, large.embedder, "world")


@pytest.fixture
def looks(monkeypatch):
    """Counts the entries that are looked at."""
    count = {"entries": 0}
    get, iterate = EntryTable.__getitem__, EntryTable.__iter__

    def counted_get(self, entry_id):
        count["entries"] += 1
        return get(self, entry_id)

    def counted_iterate(self):
        for entry in iterate(self):
            count["entries"] += 1
            yield entry

    monkeypatch.setattr(EntryTable, "__getitem__", counted_get)
    monkeypatch.setattr(EntryTable, "__iter__", counted_iterate)
    return count


def test_what_is_asked_every_turn_looks_at_few_entries(full, looks):
    bank = full.fork("t")
    bank.delete(list(range(COUNT // 2, COUNT - 1)), step=0)
    bank.summary()  # walks the long run of tombstones below the last entry
    looks["entries"] = 0
    for twin in (bank, bank.fork("u"), bank.next_task("v")):
        for _ in range(10):
            assert twin.summary().active == COUNT // 2 + 1
    assert looks["entries"] < 3 * COUNT  # what next_task copies, no run again
    for step in range(60):
        bank.write(f"{step} is the number", step=step)
    looks["entries"] = 0
    for step in range(60):
        bank.write(f"{step} is the number", step=step)
        bank.summary()
        bank.recall("17", step=step)
        len(bank)
    assert looks["entries"] < 60 * 100


def test_a_write_over_the_cap_looks_at_few_entries(full, looks):
    forks = [full.fork(f"t{i}") for i in range(3)]
    looks["entries"] = 0
    for fork in forks:
        fork.recall("17", step=0)
        for step in range(100):
            fork.write(f"{step} is the number", step=step)
        assert len(fork) == COUNT
        assert all(fork.entry(i).reason == "evicted" for i in range(10))
    assert looks["entries"] < 300 * 20
    assert len(full) == COUNT
    assert full.entry(0).status == "active"


def test_its_hygiene_needs_a_bounded_number_of_searches(large, monkeypatch):
    index = large._table.index
    searches = []
    monkeypatch.setattr(
        type(index),
        "search",
        lambda self, query, n: searches.append(n) or ([0], np.ones(1, np.float32)),
    )
    hygiene = large.hygiene()
    assert (hygiene.active, hygiene.probed, len(searches)) == (COUNT, 1000, 1000)
    assert hygiene.junk_share == 1.0


def test_it_saves_and_loads_whole(large, tmp_path):
    large.save(tmp_path / "bank")
    loaded = Bank.load(tmp_path / "bank", large.embedder)
    assert len(loaded) == COUNT
    assert loaded.entry(COUNT - 1) == large.entry(COUNT - 1)
    assert loaded.candidates("17", 3) == large.candidates("17", 3)
