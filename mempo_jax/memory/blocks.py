"""Frozen rows that can be searched: by one matrix product, or by ScaNN.

A block never changes after it is made, so indexes share it; what died in it since is
kept by each index. Large blocks are built on a thread (ScaNN lets go of the interpreter
while it trains), so that no write waits for one.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Collection, Sequence

import numpy as np

# ScaNN learns 16 centres a subspace; below this many rows one product is as fast.
LEAST_APPROXIMATE = 4096
LEAST_TRAINED = 256
# From here on a tree of partitions; figures for the choices below: BUILD_NOTES.
_LEAST_TREE = 30_000
_ROWS_A_LEAF_TRAINED = 200
_SEARCHED_SHARE = 16  # one leaf in so many is searched
_LEAST_RESCORED = 200


class Block:
    """Rows ids int64 [n] ascending, vectors float32 [n, dim] of unit norm.

    approximate: searched by ScaNN; else exactly.
    """

    def __init__(self, ids: np.ndarray, vectors: np.ndarray, approximate: bool):
        self.ids = np.asarray(ids, np.int64)
        self.vectors = vectors
        self.approximate = approximate and len(ids) >= LEAST_TRAINED
        self.refused = False  # ScaNN could not learn it: not to be tried at every turn
        self._lock = threading.Lock()
        self._searcher = None

    def __len__(self) -> int:
        return len(self.ids)

    def row_of(self, entry_id: int) -> int:
        """Row of an id, -1 if absent."""
        row = int(np.searchsorted(self.ids, entry_id))
        return row if row < len(self.ids) and self.ids[row] == entry_id else -1

    @property
    def searcher(self):
        """A ScaNN searcher over the rows, built on first use and shared by forks."""
        with self._lock:
            if self._searcher is None:
                self._searcher = _build_searcher(self.vectors)
        return self._searcher

    def nearest(self, query: np.ndarray, n: int, dead: Collection[int]) -> np.ndarray:
        """Rows int64 [<= n] nearest to ``query`` that are not dead, in no order."""
        n = min(n, len(self) - len(dead))
        if n < 1:
            return np.empty(0, np.int64)
        if self.approximate:
            rows = self._approximately(query, n, dead)
            if rows is not None:
                return rows
        scores = self.vectors @ query
        if dead:
            scores[list(dead)] = -np.inf
        return top(scores, n)

    def _approximately(self, query, n: int, dead) -> np.ndarray | None:
        """By ScaNN; None where the dead lie so thick that only exact search helps."""
        total, widen, leaves = len(self), 1, _leaves(len(self))
        while True:
            wanted = min(widen * n + min(len(dead), 16), total)
            rows, _ = self.searcher.search(
                query,
                final_num_neighbors=wanted,
                pre_reorder_num_neighbors=min(max(_rescored(total), 4 * wanted), total),
                leaves_to_search=min(widen * _searched(leaves), leaves),
            )
            found = np.asarray(rows, np.int64)
            if dead:
                found = np.asarray([r for r in rows.tolist() if r not in dead], int)
            if len(found) >= n:
                return found
            if wanted == total:
                return None
            widen *= 4


class Build:
    """One block made of the live rows of others, on a thread if ScaNN is to learn it.

    sources: blocks with the rows dead in each when the build began.
    """

    def __init__(
        self, sources: Sequence[tuple[Block, frozenset[int]]], approximate: bool
    ):
        self.sources = tuple(sources)
        self._approximate = approximate
        self._block: Block | None = None
        self._thread = _started(self._make) if approximate else None
        if not approximate:
            self._make()

    def block(self) -> Block:
        """The block; waits for it where it is not ready.

        Made here if no thread could make it: none started, or this is a forked process.
        """
        if self._thread is not None:
            self._thread.join()
        if self._block is None:
            self._make()
        return self._block

    def _make(self) -> None:
        lives = []
        for block, dead in self.sources:
            live = np.ones(len(block), bool)
            live[list(dead)] = False
            lives.append(live)
        blocks = [block for block, _ in self.sources]
        if len(blocks) == 1 and lives[0].all():  # no copy of what is whole
            lives = [slice(None)]
        ids = _joined([b.ids[live] for b, live in zip(blocks, lives)])
        rows = _joined([b.vectors[live] for b, live in zip(blocks, lives)])
        block = Block(ids, rows, self._approximate)
        try:
            if block.approximate:
                _ = block.searcher
        except Exception as error:
            # The rows are whole; a search that cannot be built is no reason to lose
            # a write.
            warnings.warn(
                f"ScaNN could not index {len(ids)} entries ({error}): they are "
                "searched exactly, which is slower",
                stacklevel=2,
            )
            block.approximate, block.refused = False, True
        self._block = block


def _started(target: Callable[[], None]) -> threading.Thread | None:
    """A running thread, or None where the system has no more threads to give."""
    thread = threading.Thread(target=target, name="index build", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def can_approximate() -> bool:
    """Whether ScaNN can be imported; if not, one warning says so."""
    return _scann() is not None


def top(scores: np.ndarray, n: int) -> np.ndarray:
    """Rows of the ``n`` greatest scores, in no order; -inf never counts.

    Of equal scores at the edge the first rows are taken.
    """
    if n < 1:
        return np.empty(0, np.int64)
    if n >= len(scores):
        return np.flatnonzero(scores > -np.inf)
    edge = np.partition(scores, len(scores) - n)[len(scores) - n]
    above = np.flatnonzero(scores > edge)
    return np.concatenate([above, np.flatnonzero(scores == edge)[: n - len(above)]])


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
    return int(2 * count**0.5) if count >= _LEAST_TREE else 1


def _searched(leaves: int) -> int:
    return max(1, leaves // _SEARCHED_SHARE)


def _rescored(count: int) -> int:
    """Candidates scored exactly: with more rows, more look alike once quantised."""
    return max(_LEAST_RESCORED, int(0.8 * count**0.5))


def _build_searcher(vectors: np.ndarray):
    """Quantised scoring with exact re-scoring, behind a tree where rows are many.

    The tree lists each row in two leaves that err differently ("SOAR: Improved Indexing
    for Approximate Nearest Neighbor Search", 2023). One thread, and no quantisation of
    residuals, which draws at random: the same rows give the same searcher.
    """
    count, leaves = len(vectors), _leaves(len(vectors))
    builder = _scann().scann_ops_pybind.builder(vectors, 10, "dot_product")
    builder.set_n_training_threads(1)
    if count >= _LEAST_TREE:
        builder = builder.tree(
            num_leaves=leaves,
            num_leaves_to_search=_searched(leaves),
            training_sample_size=min(count, _ROWS_A_LEAF_TRAINED * leaves),
            training_iterations=5,
            soar_lambda=1.5,
            overretrieve_factor=2.0,
        )
    builder = builder.score_ah(
        2,
        anisotropic_quantization_threshold=0.2,
        training_sample_size=10_000,
        training_iterations=5,
        residual_quantization=False,
    )
    searcher = builder.reorder(_rescored(count)).build()
    searcher.set_num_threads(1)
    return searcher
