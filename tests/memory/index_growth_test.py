"""Growing indexes: blocks that are merged, on a thread, without a write waiting."""

import threading
import time

import numpy as np
import pytest

from mempo_jax.memory import index as index_lib
from mempo_jax.memory import index as index_module
from mempo_jax.memory.index import make_index
from tests.memory.vectors import by_hand, clustered, needs_scann


@pytest.fixture
def quick(monkeypatch):
    """Tails of 64 rows, so that small indexes have many blocks."""
    monkeypatch.setattr(index_lib, "_TAIL_ROWS", 64)


def exactly(index, query, n):
    """What a search of all live rows would give, by the index's own rows."""
    index = index.fork()
    for block in index.blocks:
        block.approximate = False
    return index.search(query, n)


@pytest.mark.parametrize("threshold", [10**9, pytest.param(300, marks=needs_scann)])
def test_random_growth_and_death_keep_every_row(quick, monkeypatch, threshold):
    monkeypatch.setattr(index_lib, "LEAST_APPROXIMATE", 256)
    rows, rng = clustered(2500, 0), np.random.default_rng(0)
    index = make_index(np.arange(100), rows[:100], ann_threshold=threshold)
    live, seen = set(range(100)), {}
    for new in range(100, 2500):
        index.add(new, rows[new])
        live.add(new)
        if new % 3 == 0 or new > 2300:
            victim = int(rng.choice(sorted(live)))
            index.remove(victim)
            live.discard(victim)
        assert len(index) == len(live)
        seen.update((id(block), block) for block in index.blocks)
        if new % 50 == 0:
            assert index.ids() == sorted(live)
            ids, _ = index.search(rows[new], 10)
            wanted, _ = exactly(index, rows[new], 10)
            assert len(set(ids) & set(wanted)) >= 9
            assert wanted == by_hand(rows, rows[new], 10, set(range(2500)) - live)
    assert len(index.blocks) <= 8
    rebuilt = sum(len(block) for block in seen.values())
    assert rebuilt < 12 * 2500  # each row a few times, not at every write
    assert any(b.approximate for b in seen.values()) == (threshold == 300)


@needs_scann
def test_what_a_search_finds_does_not_depend_on_how_long_a_build_takes(
    quick, monkeypatch
):
    monkeypatch.setattr(index_lib, "LEAST_APPROXIMATE", 256)
    rows = clustered(1500, 0)

    def run(delay):
        make_block = index_module.IndexBuild._build

        def slowly(self):
            if self._approximate:
                time.sleep(delay)
            make_block(self)

        with monkeypatch.context() as patch:
            patch.setattr(index_module.IndexBuild, "_build", slowly)
            index = make_index(np.arange(400), rows[:400], ann_threshold=300)
            found, shapes = [], []
            for new in range(400, 1500):
                index.add(new, rows[new])
                found.append(index.search(rows[(7 * new) % 1500], 5)[0])
                shapes.append([(len(b), b.approximate) for b in index.blocks])
        return found, shapes

    found, shapes = run(0.0)
    assert run(0.05) == (found, shapes)
    assert sum(approximate for _, approximate in shapes[-1]) >= 1


@needs_scann
def test_a_write_does_not_wait_for_a_build_that_is_not_due(quick, monkeypatch):
    monkeypatch.setattr(index_lib, "LEAST_APPROXIMATE", 256)
    rows, may_build = clustered(800, 0), threading.Event()
    make_block = index_module.IndexBuild._build

    def held(self):
        if self._approximate:
            assert may_build.wait(30)
        make_block(self)

    monkeypatch.setattr(index_module.IndexBuild, "_build", held)
    index = make_index(np.arange(250), rows[:250], ann_threshold=300)
    for new in range(250, 340):  # a build has begun, and is held up
        index.add(new, rows[new])
    assert index._merges
    assert not may_build.is_set()
    assert index.search(rows[339], 1)[0] == [339]
    may_build.set()
    for new in range(340, 800):
        index.add(new, rows[new])
    assert index.blocks[0].approximate


@pytest.mark.filterwarnings("ignore:ScaNN could not index")
def test_a_build_that_fails_leaves_the_rows_searchable(quick, monkeypatch):
    monkeypatch.setattr(index_lib, "LEAST_APPROXIMATE", 256)
    rows = clustered(700, 0)

    def refuse(vectors):
        raise MemoryError("no room")

    monkeypatch.setattr(index_module, "_build_searcher", refuse)
    monkeypatch.setattr(index_lib, "can_approximate", lambda: True)
    index = make_index(np.arange(200), rows[:200], ann_threshold=300)

    def grow():
        for new in range(200, 700):
            index.add(new, rows[new])

    with pytest.warns(UserWarning, match="no room"):
        grow()
    assert index.ids() == list(range(700))
    assert index.search(rows[3], 3)[0] == by_hand(rows, rows[3], 3)


def _refused(thread):
    raise RuntimeError("can't start new thread")


def _lost(thread):
    """A thread that ends with nothing made, as in a process forked meanwhile."""


@needs_scann
@pytest.mark.parametrize(("method", "fault"), [("start", _refused), ("run", _lost)])
def test_a_build_that_no_thread_makes_is_made_when_due(
    quick, monkeypatch, method, fault
):
    monkeypatch.setattr(index_lib, "LEAST_APPROXIMATE", 256)
    monkeypatch.setattr(threading.Thread, method, fault)
    rows = clustered(700, 0)
    index = make_index(np.arange(100), rows[:100], ann_threshold=300)
    for new in range(100, 700):
        index.add(new, rows[new])
    index.settle()
    assert index.ids() == list(range(700))
    assert index.blocks[0].approximate
    assert index.search(rows[7], 1)[0] == [7]


@needs_scann
def test_forks_taken_during_a_build_go_on_alone(quick, monkeypatch):
    monkeypatch.setattr(index_lib, "LEAST_APPROXIMATE", 256)
    rows = clustered(900, 0)
    index = make_index(np.arange(250), rows[:250], ann_threshold=300)
    for new in range(250, 340):
        index.add(new, rows[new])
    assert index._merges
    twin = index.fork()
    twin.remove(7)
    for new in range(340, 900):
        twin.add(new, rows[new])
    for new in range(340, 500):
        index.add(new, rows[new])
    assert twin.ids() == [i for i in range(900) if i != 7]
    assert index.ids() == list(range(500))
    assert index.search(rows[7], 1)[0] == [7]
    assert twin.search(rows[7], 1)[0] != [7]


def test_a_fork_copies_no_long_tail():
    rows = clustered(1000, 0)
    index = make_index(np.arange(10), rows[:10], ann_threshold=10_000)
    for new in range(10, 1000):
        index.add(new, rows[new])
    twins = [index.fork() for _ in range(3)]
    assert all(twin.blocks[-1] is index.blocks[-1] for twin in twins)
    assert all(len(twin._tail) == 0 for twin in twins)
    assert twins[0].search(rows[999], 1)[0] == [999]
