"""Nearest entries: exact for small banks, ScaNN for large ones, one protocol.

An index is a cache of the active entries. It has a *block*, frozen and shared between
forks, and what changed since: a *tail* of added rows and a set of dead block rows. The
tail is always searched exactly, so a new entry is found at once. Blocks are rebuilt
when the tail outgrows them, which costs a constant share per write.
"""

from __future__ import annotations

import functools
import warnings

import numpy as np

# A block is rebuilt when tail plus dead rows pass both this and a share of the block.
_REBUILD_ROWS = 2048
_REBUILD_SHARE = 0.25
# ScaNN: quantisation from 256 rows (it learns 16 centres a block), a tree from 30,000.
_LEAST_QUANTISED = 256
_LEAST_TREE = 30_000
_RESCORED = 200


class Block:
    """Frozen rows: ids int64 [n] ascending, vectors float32 [n, dim]."""

    def __init__(self, ids: np.ndarray, vectors: np.ndarray):
        self.ids = ids
        self.vectors = vectors

    def __len__(self) -> int:
        return len(self.ids)

    def row_of(self, entry_id: int) -> int:
        """Row of an id, -1 if absent."""
        row = int(np.searchsorted(self.ids, entry_id))
        return row if row < len(self.ids) and self.ids[row] == entry_id else -1

    @functools.cached_property
    def searcher(self):
        """A ScaNN searcher over the rows, built on first use and shared by forks."""
        return _build_searcher(self.vectors)


class ExactIndex:
    """One matrix product; right for any size, and the oracle of the other index."""

    def __init__(self, ids: np.ndarray, vectors: np.ndarray):
        """Rows ids int64 [n] ascending, vectors float32 [n, dim] of unit norm."""
        self.block = Block(np.asarray(ids, np.int64), vectors)
        self._dim = vectors.shape[1]
        self._dead: dict[int, int] = {}  # block row -> id
        self._tail_ids: list[int] = []
        self._tail = np.empty((0, self._dim), np.float32)

    def __len__(self) -> int:
        return len(self.block) - len(self._dead) + len(self._tail_ids)

    def ids(self) -> list[int]:
        """Ids of all live rows, block first."""
        dead = self._dead
        live = [int(i) for row, i in enumerate(self.block.ids) if row not in dead]
        return live + self._tail_ids

    def fork(self) -> ExactIndex:
        """An independent index that shares the block."""
        twin = object.__new__(type(self))
        twin.block, twin._dim, twin._dead = self.block, self._dim, dict(self._dead)
        twin._tail_ids = list(self._tail_ids)
        twin._tail = self._tail[: len(self._tail_ids)].copy()
        return twin

    def add(self, entry_id: int, vector: np.ndarray) -> None:
        """Adds one row; ids must come in ascending order."""
        count = len(self._tail_ids)
        if count == len(self._tail):
            grown = np.empty((max(4, 2 * count), self._dim), np.float32)
            grown[:count] = self._tail[:count]
            self._tail = grown
        self._tail[count] = vector
        self._tail_ids.append(entry_id)
        self._rebuild_if_due()

    def remove(self, entry_id: int) -> None:
        """Takes one live row out; KeyError if there is none."""
        row = self.block.row_of(entry_id)
        if row >= 0 and row not in self._dead:
            self._dead[row] = entry_id
        elif entry_id in self._tail_ids:
            place, count = self._tail_ids.index(entry_id), len(self._tail_ids)
            self._tail[place : count - 1] = self._tail[place + 1 : count]
            del self._tail_ids[place]
        else:
            raise KeyError(f"index holds no entry {entry_id}")
        self._rebuild_if_due()

    def search(self, query: np.ndarray, n: int) -> tuple[list[int], np.ndarray]:
        """The ``n`` nearest live rows: ids, and cosine similarities float32 [<= n].

        Similarities are recomputed row by row, so they do not depend on what else the
        index holds; ties go to the lower id.
        """
        ids, vectors = self._tail_candidates(query, n)
        if len(self.block) > len(self._dead):
            rows = self._block_candidates(query, n)
            ids = self.block.ids[rows].tolist() + ids
            vectors = np.concatenate([self.block.vectors[rows], vectors])
        if not ids or n < 1:
            return [], np.empty(0, np.float32)
        similarity = np.einsum("nd,d->n", vectors, query)
        values = similarity.tolist()
        order = sorted(range(len(ids)), key=lambda i: (-values[i], ids[i]))[:n]
        return [ids[i] for i in order], similarity[order]

    def _tail_candidates(self, query, n) -> tuple[list[int], np.ndarray]:
        count = len(self._tail_ids)
        if count <= 4 * n:
            return self._tail_ids, self._tail[:count]
        rows = _top(self._tail[:count] @ query, n)
        return [self._tail_ids[row] for row in rows], self._tail[rows]

    def _block_candidates(self, query: np.ndarray, n: int) -> np.ndarray:
        scores = self.block.vectors @ query
        if self._dead:
            scores[list(self._dead)] = -np.inf
        return _top(scores, min(n, len(self.block) - len(self._dead)))

    def _rebuild_if_due(self) -> None:
        changed = len(self._tail_ids) + len(self._dead)
        if changed <= max(_REBUILD_ROWS, _REBUILD_SHARE * len(self.block)):
            return
        self.block = Block(*self._live_rows())
        self._dead, self._tail_ids = {}, []
        self._tail = np.empty((0, self._dim), np.float32)

    def _live_rows(self) -> tuple[np.ndarray, np.ndarray]:
        live = np.ones(len(self.block), bool)
        live[list(self._dead)] = False
        count = len(self._tail_ids)
        ids = np.concatenate([self.block.ids[live], self._tail_ids]).astype(np.int64)
        return ids, np.concatenate([self.block.vectors[live], self._tail[:count]])


class ScannIndex(ExactIndex):
    """The block is searched by ScaNN: partitioned, quantised, then re-scored."""

    def _block_candidates(self, query: np.ndarray, n: int) -> np.ndarray:
        total, widen = len(self.block), 1
        if total < _LEAST_QUANTISED:
            return super()._block_candidates(query, n)
        live = min(n, total - len(self._dead))
        while True:
            wanted = min(widen * (n + 16), total)
            rows, _ = self.block.searcher.search(
                query,
                final_num_neighbors=wanted,
                pre_reorder_num_neighbors=min(max(_RESCORED, 4 * wanted), total),
                leaves_to_search=min(widen * _searched(total), _leaves(total)),
            )
            rows = np.asarray([r for r in rows.tolist() if r not in self._dead], int)
            if len(rows) >= live:
                return rows
            if wanted == total:  # too many dead around the query: be exact
                return super()._block_candidates(query, n)
            widen *= 4

    @classmethod
    def of(cls, exact: ExactIndex) -> ScannIndex:
        """The same rows behind ScaNN, all in the block."""
        return cls(*exact._live_rows())


def make_index(ids: np.ndarray, vectors: np.ndarray, *, ann_threshold: int):
    """An index over the rows: exact below ``ann_threshold`` rows, ScaNN from there.

    Where ScaNN cannot be imported, exact search serves and one warning says so.
    """
    return grown(ExactIndex(ids, vectors), ann_threshold=ann_threshold)


def grown(index: ExactIndex, *, ann_threshold: int) -> ExactIndex:
    """``index``, or its ScaNN twin once it holds ``ann_threshold`` rows."""
    if len(index) < ann_threshold or isinstance(index, ScannIndex):
        return index
    return ScannIndex.of(index) if _scann() is not None else index


@functools.cache
def _scann():
    """The scann module, or None with a single warning where there is none."""
    try:
        import scann
    except ImportError as error:
        warnings.warn(
            f"scann cannot be imported ({error}): exact search serves banks of any "
            "size; recall slows with size. Install scann where it has a wheel "
            "(Linux, CPython 3.9-3.13), or raise memory.ann_threshold",
            stacklevel=2,
        )
        return None
    return scann


def _leaves(count: int) -> int:
    return int(count**0.5) if count >= _LEAST_TREE else 1


def _searched(count: int) -> int:
    return max(1, _leaves(count) // 6)


def _build_searcher(vectors: np.ndarray):
    """Quantised scoring with exact re-scoring, behind a tree where rows are many."""
    count = len(vectors)
    builder = _scann().scann_ops_pybind.builder(vectors, 10, "dot_product")
    builder.set_n_training_threads(1)
    if count >= _LEAST_TREE:
        builder = builder.tree(
            num_leaves=_leaves(count),
            num_leaves_to_search=_searched(count),
            training_sample_size=min(count, 100_000),
        )
    builder = builder.score_ah(2, anisotropic_quantization_threshold=0.2)
    searcher = builder.reorder(_RESCORED).build()
    searcher.set_num_threads(1)
    return searcher


def _top(scores: np.ndarray, n: int) -> np.ndarray:
    if n >= len(scores):
        return np.flatnonzero(scores > -np.inf)
    return np.argpartition(scores, len(scores) - n)[len(scores) - n :]
