"""The indexes side by side, one thread each, behind the same four calls.

``search(query, k)`` gives ids, ``add(id, vector)`` adds one row, ``settings`` are the
values to tune over (cheapest first) and ``use(setting)`` takes one of them.
"""

from __future__ import annotations

import importlib.util

import numpy as np

from mempo_jax.memory import BankConfig
from mempo_jax.memory import index as index_lib

_LISTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_BEAMS = (10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_M = 16
_POINTS_A_LIST = 64  # training points per list of an inverted file
_LARGE = 500_000  # rows from which a graph is built with a narrower beam


def construction(count: int) -> int:
    """efConstruction of both graphs: 200, or 100 where building takes minutes."""
    return 200 if count < _LARGE else 100


class Numpy:
    """Brute force: one matrix-vector product, a partition, a sort of k."""

    settings = ()

    def __init__(self, rows: np.ndarray, count: int):
        self._all, self._count = rows, count
        self.label = "brute force"

    def search(self, query, k):
        scores = self._all[: self._count] @ query
        top = np.argpartition(scores, len(scores) - k)[-k:]
        return top[np.argsort(-scores[top])]

    def add(self, row, vector):
        """The row lies in the matrix already; it is taken in."""
        self._count = row + 1


class Ours:
    """The index of a bank at its shipped defaults."""

    settings = ()

    def __init__(self, rows: np.ndarray, count: int):
        threshold = BankConfig().ann_threshold
        self._index = index_lib.make_index(
            np.arange(count), rows[:count], ann_threshold=threshold
        )
        self._index.settle()  # else the first searches would be exact
        self.label = "defaults"

    def search(self, query, k):
        return self._index.search(query, k)[0]

    def add(self, row, vector):
        self._index.add(row, vector)


class Hnswlib:
    """hnswlib: tuned over ef."""

    settings = _BEAMS

    def __init__(self, rows: np.ndarray, count: int):
        import hnswlib

        self._index = hnswlib.Index("ip", rows.shape[1])
        beam = construction(count)
        self._index.init_index(len(rows), M=_M, ef_construction=beam, random_seed=1)
        self._index.set_num_threads(1)
        self._index.add_items(rows[:count], np.arange(count), num_threads=1)
        self._built = f"M={_M} efC={beam}"

    def use(self, setting):
        self._index.set_ef(setting)
        self.label = f"{self._built} ef={setting}"

    def search(self, query, k):
        return self._index.knn_query(query, k, num_threads=1)[0][0]

    def add(self, row, vector):
        self._index.add_items(vector[None], [row], num_threads=1)


class _Faiss:
    """What the faiss indexes share."""

    def search(self, query, k):
        return self._index.search(query[None], k)[1][0]

    def add(self, row, vector):
        """faiss numbers rows in order of arrival."""
        self._index.add(vector[None])

    def _build(self, rows: np.ndarray, description: str):
        import faiss

        faiss.omp_set_num_threads(1)
        self._index = faiss.index_factory(
            rows.shape[1], description, faiss.METRIC_INNER_PRODUCT
        )
        return faiss


class FaissHnsw(_Faiss):
    """faiss HNSW: tuned over efSearch."""

    settings = _BEAMS

    def __init__(self, rows: np.ndarray, count: int):
        self._build(rows, f"HNSW{_M},Flat")
        beam = construction(count)
        self._index.hnsw.efConstruction = beam
        self._index.add(rows[:count])
        self._built = f"M={_M} efC={beam}"

    def use(self, setting):
        self._index.hnsw.efSearch = setting
        self.label = f"{self._built} ef={setting}"


class FaissIvf(_Faiss):
    """faiss inverted file, full vectors: tuned over nprobe."""

    settings = _LISTS

    def __init__(self, rows: np.ndarray, count: int):
        self._lists = _lists(count)
        self._build(rows, f"IVF{self._lists},Flat")
        self._index.cp.max_points_per_centroid = _POINTS_A_LIST
        self._index.cp.spherical = True
        self._index.train(rows[:count])
        self._index.add(rows[:count])

    def use(self, setting):
        self._index.nprobe = setting
        self.label = f"lists={self._lists} nprobe={setting}"


class FaissIvfPq(_Faiss):
    """faiss inverted file of 4-bit codes, re-scored: over nprobe and rows re-scored."""

    settings = (*((p, 20) for p in _LISTS), *((p, 80) for p in _LISTS))

    def __init__(self, rows: np.ndarray, count: int):
        self._lists = _lists(count)
        codes = rows.shape[1] // 2
        faiss = self._build(rows, f"IVF{self._lists},PQ{codes}x4fs,RFlat")
        self._inner = faiss.downcast_index(self._index.base_index)
        self._inner.cp.max_points_per_centroid = _POINTS_A_LIST
        self._inner.cp.spherical = True
        self._index.train(rows[:count])
        self._index.add(rows[:count])

    def use(self, setting):
        self._inner.nprobe, self._index.k_factor = setting
        self.label = f"lists={self._lists} nprobe={setting[0]} rescore={setting[1]}k"


def _lists(count: int) -> int:
    """2 sqrt(n) lists, fewer where each would have too few points to learn from."""
    return max(1, min(round(2 * count**0.5), count // 40))


KINDS = {
    "numpy": Numpy,
    "ours": Ours,
    "hnswlib": Hnswlib,
    "faiss_hnsw": FaissHnsw,
    "faiss_ivf": FaissIvf,
    "faiss_ivfpq": FaissIvfPq,
}


def missing(name: str) -> str:
    """Why an index cannot be built here, "" if it can."""
    package = name.split("_")[0]
    outside = package in ("hnswlib", "faiss")
    if outside and importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    return ""
