"""The indexes: exact search is the oracle; ScaNN where it can be imported."""

import sys
import warnings

import numpy as np
import pytest

from mempo_jax.memory import Bank, BankConfig, make_embedder
from mempo_jax.memory import index as index_lib

DIM = 32
try:
    import scann  # noqa: F401

    HAS_SCANN = True
except ImportError:
    HAS_SCANN = False
needs_scann = pytest.mark.skipif(not HAS_SCANN, reason="no scann on this platform")


def clustered(count, seed):
    """Unit rows around shared centres, as texts lie: near neighbours exist."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(size=(60, DIM))
    rows = centres[rng.integers(60, size=count)] + 0.7 * rng.normal(size=(count, DIM))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def by_hand(rows, query, n, without=()):
    order = sorted(set(range(len(rows))) - set(without), key=lambda i: -rows[i] @ query)
    return order[:n]


@pytest.fixture
def no_scann(monkeypatch):
    monkeypatch.setitem(sys.modules, "scann", None)
    index_lib._scann.cache_clear()
    yield
    index_lib._scann.cache_clear()


@pytest.fixture(params=["exact", pytest.param("scann", marks=needs_scann)])
def kind(request):
    return {"exact": index_lib.ExactIndex, "scann": index_lib.ScannIndex}[request.param]


def test_finds_the_nearest(kind):
    rows, queries = clustered(3000, 0), clustered(40, 1)
    index = kind(np.arange(3000), rows)
    shared = 0
    for query in queries:
        ids, similarity = index.search(query, 10)
        shared += len(set(ids) & set(by_hand(rows, query, 10)))
        assert similarity == pytest.approx(rows[ids] @ query, abs=1e-6)
        assert list(similarity) == sorted(similarity, reverse=True)
    assert shared / 400 >= (1.0 if kind is index_lib.ExactIndex else 0.95)


def test_added_rows_are_found_at_once_and_removed_ones_never(kind):
    rows, fresh = clustered(600, 0), clustered(50, 2)
    index = kind(np.arange(600), rows)
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
    with pytest.raises(KeyError):
        index.remove(3)


def test_dead_neighbours_do_not_hide_live_ones(kind):
    rows = clustered(900, 0)
    index = kind(np.arange(900), rows)
    near = by_hand(rows, rows[5], 200)
    for victim in near:
        index.remove(victim)
    ids, _ = index.search(rows[5], 10)
    expected = by_hand(rows, rows[5], 10, without=near)
    assert len(ids) == 10
    assert len(set(ids) & set(expected)) >= 9


def test_rebuilds_keep_every_row(kind, monkeypatch):
    monkeypatch.setattr(index_lib, "_REBUILD_ROWS", 16)
    rows = clustered(400, 0)
    index = kind(np.arange(100), rows[:100])
    blocks = {id(index.block)}
    live = set(range(100))
    rng = np.random.default_rng(0)
    for new in range(100, 400):
        index.add(new, rows[new])
        live.add(new)
        if new % 3 == 0:
            victim = int(rng.choice(sorted(live)))
            index.remove(victim)
            live.discard(victim)
        blocks.add(id(index.block))
        assert len(index) == len(live)
    assert sorted(index.ids()) == sorted(live)
    assert 2 < len(blocks) < 40  # amortised: far fewer rebuilds than writes
    found, _ = index.search(rows[399], 1)
    assert found == by_hand(rows, rows[399], 1, without=set(range(400)) - live)


def test_forks_share_the_block_and_nothing_else(kind):
    rows = clustered(500, 0)
    index = kind(np.arange(500), rows)
    index.add(500, clustered(1, 5)[0])
    twin = index.fork()
    assert twin.block is index.block
    twin.add(501, clustered(1, 6)[0])
    twin.remove(4)
    index.remove(500)
    assert (len(index), len(twin)) == (500, 501)
    assert 4 in index.ids()
    assert 500 in twin.ids()
    assert 501 not in index.ids()


def test_similarity_does_not_depend_on_what_else_is_stored():
    rows = clustered(1000, 0)
    query = rows[1]
    alone = index_lib.ExactIndex(np.arange(1), rows[:1]).search(query, 1)[1][0]
    index = index_lib.ExactIndex(np.arange(1000), rows)
    ids, similarity = index.search(query, 1000)
    assert similarity[ids.index(0)].tobytes() == alone.tobytes()


def test_ties_go_to_the_lower_id():
    rows = np.repeat(clustered(1, 0), 5, axis=0)
    index = index_lib.ExactIndex(np.arange(3), rows[:3])
    index.add(7, rows[0])
    index.add(9, rows[0])
    index.remove(1)
    assert index.search(rows[0], 3)[0] == [0, 2, 7]


@needs_scann
def test_a_bank_changes_to_scann_at_its_threshold():
    embedder = make_embedder("hashing", dim=DIM)
    texts = [f"fact {i} of {i * i}" for i in range(599)]
    bank = Bank.from_texts(texts, BankConfig(ann_threshold=600), embedder, "w")
    assert type(bank._table.index) is index_lib.ExactIndex
    bank.write("zebras graze quietly", step=0)
    assert type(bank._table.index) is index_lib.ScannIndex
    assert bank.candidates("zebras graze quietly", 1) == [599]
    bank.write("otters swim upstream", step=1)
    twin = bank.fork("t")
    twin.delete([599], step=2)
    assert twin.candidates("zebras graze quietly", 1) != [599]
    assert bank.candidates("otters swim upstream", 1) == [600]
    assert twin._table.index.block.searcher is bank._table.index.block.searcher
    bank.check_valid()
    twin.check_valid()


def test_without_scann_exact_search_serves_with_one_warning(no_scann):
    embedder = make_embedder("hashing", dim=DIM)
    texts = [f"fact {i} of {i * i}" for i in range(60)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            bank = Bank.from_texts(texts, BankConfig(ann_threshold=50), embedder)
            bank.write("zebras graze quietly", step=0)
            assert bank.recall("zebras", k=1, step=0)[0].entry.id == 60
    messages = [str(warning.message) for warning in caught]
    assert len([text for text in messages if "exact search serves" in text]) == 1


def test_small_banks_never_import_scann(no_scann):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bank = Bank(BankConfig(), make_embedder("hashing"))
        bank.write("a", step=0)
        assert len(bank.recall("a", step=0)) == 1
