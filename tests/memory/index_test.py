"""The index: exact search is the oracle; ScaNN where it can be imported."""

import sys
import threading
import warnings

import numpy as np
import pytest

from mempo_jax.memory import Bank, BankConfig, make_embedder
from mempo_jax.memory import index as index_lib
from mempo_jax.memory import index as index_module
from mempo_jax.memory.index import make_index
from tests.memory.vectors import DIM, by_hand, clustered, needs_scann


@pytest.fixture
def no_scann(monkeypatch):
    monkeypatch.setitem(sys.modules, "scann", None)
    index_module._scann.cache_clear()
    yield
    index_module._scann.cache_clear()


@pytest.fixture(params=["exact", pytest.param("scann", marks=needs_scann)])
def make(request):
    """(rows) -> an index over them, exact or approximate from the first row."""
    threshold = {"exact": 10**9, "scann": 1}[request.param]

    def make(rows):
        index = make_index(np.arange(len(rows)), rows, ann_threshold=threshold)
        index.settle()
        return index

    return make


@pytest.fixture
def quick(monkeypatch):
    """Tails of 64 rows, so that small indexes have many blocks."""
    monkeypatch.setattr(index_lib, "_TAIL_ROWS", 64)


def test_finds_the_nearest(make):
    rows, queries = clustered(3000, 0), clustered(40, 1)
    index = make(rows)
    shared = 0
    for query in queries:
        ids, similarity = index.search(query, 10)
        shared += len(set(ids) & set(by_hand(rows, query, 10)))
        assert similarity == pytest.approx(rows[ids] @ query, abs=1e-6)
        assert list(similarity) == sorted(similarity, reverse=True)
    assert shared / 400 >= (0.95 if index.blocks[0].approximate else 1.0)


@needs_scann
def test_a_tree_of_partitions_still_finds_the_nearest():
    rows, queries = clustered(32_000, 0), clustered(100, 1)
    index = make_index(np.arange(len(rows)), rows, ann_threshold=10_000)
    index.settle()
    found = [set(index.search(query, 10)[0]) for query in queries]
    wanted = [np.argsort(-(rows @ query))[:10].tolist() for query in queries]
    shared = sum(len(a & set(b)) for a, b in zip(found, wanted))
    assert shared >= 950
    again = make_index(np.arange(len(rows)), rows.copy(), ann_threshold=10_000)
    again.settle()
    assert [set(again.search(query, 10)[0]) for query in queries] == found


def test_added_rows_are_found_at_once_and_removed_ones_never(make):
    rows, fresh = clustered(600, 0), clustered(50, 2)
    index = make(rows)
    for place, row in enumerate(fresh):
        index.add(600 + place, row)
        assert index.search(row, 1)[0] == [600 + place]
    everything = np.concatenate([rows, fresh])
    gone = set()
    for victim in [3, 610, 0, 599, 649, 600]:
        index.remove(victim)
        gone.add(victim)
        assert index.search(everything[victim], 5)[0][0] not in gone
    assert sorted(index.ids()) == [i for i in range(650) if i not in gone]
    assert len(index) == 650 - len(gone)
    for absent in (3, 610, 650, -1):
        with pytest.raises(KeyError):
            index.remove(absent)
    assert len(index) == 650 - len(gone)


def test_dead_neighbours_do_not_hide_live_ones(make):
    rows = clustered(900, 0)
    index = make(rows)
    near = by_hand(rows, rows[5], 200)
    for victim in near:
        index.remove(victim)
    ids, _ = index.search(rows[5], 10)
    expected = by_hand(rows, rows[5], 10, without=near)
    assert len(ids) == 10
    assert len(set(ids) & set(expected)) >= 9


def test_an_index_can_lose_its_last_row_and_start_again(make, quick):
    rows = clustered(300, 0)
    index = make(rows[:200])
    for victim in range(200):
        index.remove(victim)
    assert (len(index), index.ids(), index.search(rows[0], 5)[0]) == (0, [], [])
    for new in range(200, 300):
        index.add(new, rows[new])
    assert index.search(rows[250], 1)[0] == [250]


def test_forks_share_the_blocks_and_nothing_else(make):
    rows = clustered(500, 0)
    index = make(rows)
    index.add(500, clustered(1, 5)[0])
    twin = index.fork()
    assert twin.blocks == index.blocks
    twin.add(501, clustered(1, 6)[0])
    twin.remove(4)
    index.remove(500)
    assert (len(index), len(twin)) == (500, 501)
    assert 4 in index.ids()
    assert 500 in twin.ids()
    assert 501 not in index.ids()


def test_similarity_does_not_depend_on_what_else_is_stored(make):
    rows = clustered(1000, 0)
    query = rows[1]
    alone = make_index(np.arange(1), rows[:1], ann_threshold=10).search(query, 1)[1][0]
    ids, similarity = make(rows).search(query, 1000)
    assert similarity[ids.index(0)].tobytes() == alone.tobytes()


def test_ties_go_to_the_lower_id():
    rows = np.repeat(clustered(1, 0), 5, axis=0)
    index = make_index(np.arange(3), rows[:3], ann_threshold=10_000)
    index.add(7, rows[0])
    index.add(9, rows[0])
    index.remove(1)
    assert index.search(rows[0], 3)[0] == [0, 2, 7]


@needs_scann
@pytest.mark.parametrize("count", [1, 20, 255, 256, 700])
def test_tiny_and_all_equal_banks_work_at_any_threshold(count):
    rows = np.repeat(clustered(1, 0), count, axis=0)
    index = make_index(np.arange(count), rows, ann_threshold=1)
    index.settle()
    ids, similarity = index.search(rows[0], 10)
    assert len(ids) == len(set(ids)) == min(10, count)
    assert similarity == pytest.approx(1.0, abs=1e-5)
    index.remove(ids[0])
    assert ids[0] not in index.search(rows[0], 10)[0]


def test_none_asked_for_is_none_found(make):
    index = make(clustered(300, 0))
    index.add(300, clustered(1, 1)[0])
    ids, similarity = index.search(clustered(1, 2)[0], 0)
    assert (ids, similarity.shape) == ([], (0,))


def test_an_empty_index_finds_nothing():
    index = make_index(np.arange(0), np.empty((0, DIM), np.float32), ann_threshold=1)
    assert index.search(clustered(1, 0)[0], 5)[0] == []
    assert len(index) == 0


@needs_scann
def test_a_bank_changes_to_scann_at_its_threshold():
    embedder = make_embedder("hashing", dim=DIM)
    texts = [f"fact {i} of {i * i}" for i in range(600)]
    config = BankConfig(ann_threshold=600)
    small = Bank.from_texts(texts[:599], config, embedder, "w")
    small._table.index.settle()
    assert not small._table.index.blocks[0].approximate
    bank = Bank.from_texts(texts, config, embedder, "w")
    bank.write("zebras graze quietly", step=0)
    twin = bank.fork("t")  # while the build is under way
    for grown in (bank, twin):
        grown._table.index.settle()
        assert grown.candidates("zebras graze quietly", 1) == [600]
    assert twin._table.index.blocks[0] is bank._table.index.blocks[0]
    assert twin._table.index.blocks[0].approximate
    twin.delete([600], step=2)
    assert twin.candidates("zebras graze quietly", 1) != [600]
    assert bank.candidates("zebras graze quietly", 1) == [600]
    bank.check_valid()
    twin.check_valid()


@needs_scann
def test_the_first_searches_of_a_large_bank_do_not_wait_for_scann(monkeypatch):
    rows, may_build = clustered(600, 0), threading.Event()
    build = index_module._build_searcher

    def held(vectors):
        assert may_build.wait(30)
        return build(vectors)

    monkeypatch.setattr(index_module, "_build_searcher", held)
    index = make_index(np.arange(600), rows, ann_threshold=300)
    for query in rows[:100]:
        ids, _ = index.search(query, 5)
        assert ids == by_hand(rows, query, 5)
    may_build.set()
    for query in rows[:200]:
        index.search(query, 5)
    assert index.blocks[0].approximate


def test_without_scann_exact_search_serves_with_one_warning(no_scann):
    embedder = make_embedder("hashing", dim=DIM)
    texts = [f"fact {i} of {i * i}" for i in range(300)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            bank = Bank.from_texts(texts, BankConfig(ann_threshold=280), embedder)
            bank.write("zebras graze quietly", step=0)
            assert bank.recall("zebras", k=1, step=0)[0].entry.id == 300
    messages = [str(warning.message) for warning in caught]
    assert len([text for text in messages if "exact search serves" in text]) == 1


def test_small_banks_never_import_scann(no_scann):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bank = Bank(BankConfig(), make_embedder("hashing"))
        bank.write("a", step=0)
        assert len(bank.recall("a", step=0)) == 1
