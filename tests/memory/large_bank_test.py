"""A large initial bank: forking, saving and loading cost what they may."""

import time
import tracemalloc

import numpy as np
import pytest

from mempo_jax.memory import Bank, BankConfig

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


def test_a_fork_costs_under_one_percent(large):
    tracemalloc.start()
    start = time.perf_counter()
    whole = Bank.from_texts(
        [entry.text for entry in large.entries], large.config, large.embedder
    )
    whole.candidates("1", 1)
    seconds = time.perf_counter() - start
    size = tracemalloc.get_traced_memory()[0]
    whole.fork("warm")
    before, start = tracemalloc.get_traced_memory()[0], time.perf_counter()
    forks = [whole.fork(f"t{i}") for i in range(64)]
    fork_seconds = (time.perf_counter() - start) / 64
    for fork in forks:
        fork.write("7000000 is new", step=0)
        fork.delete([5], step=0)
        fork.recall("17", step=0)
    fork_size = (tracemalloc.get_traced_memory()[0] - before) / 64
    tracemalloc.stop()
    assert fork_seconds < 0.01 * seconds
    assert fork_size < 0.01 * size
    assert len(whole) == COUNT
    assert all(len(fork) == COUNT for fork in forks)


def test_it_saves_and_loads_in_seconds(large, tmp_path):
    start = time.perf_counter()
    large.save(tmp_path / "bank")
    loaded = Bank.load(tmp_path / "bank", large.embedder)
    assert time.perf_counter() - start < 20
    assert len(loaded) == COUNT
    assert loaded.entry(COUNT - 1) == large.entry(COUNT - 1)
    assert loaded.candidates("17", 3) == large.candidates("17", 3)
