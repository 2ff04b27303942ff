"""Nearest entries of a bank of any size: small banks exactly, large ones by ScaNN.

An index is a cache of the active entries. It is made of frozen *blocks*, of a *tail* of
rows added since, and of the rows that died in each block. A block never changes after
it is made, so forks share it. The tail is always searched exactly, so a new entry is
found at once. A full tail becomes a block; neighbouring blocks are merged when the
younger ones outgrow a quarter of the older, so that there are few blocks and each row
is rebuilt a few times only.

ScaNN learns a block on a thread (it lets go of the interpreter while it trains), so no
write waits for a build. The blocks that it will replace serve until a fixed number of
calls later, whether it is ready sooner or not: what a search finds depends on the
sequence of calls alone, never on timing. Only a caller that is faster than a build
waits there.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import warnings
from collections.abc import Callable, Collection, Sequence

import numpy as np

LEAST_APPROXIMATE = 4096  # with fewer rows one matrix product is as fast
LEAST_TRAINED = 256  # ScaNN learns 16 centres a subspace: fewer rows teach it little
# Figures for the choices of the tree: BUILD_NOTES.
_LEAST_TREE = 30_000  # from here on rows are partitioned by a tree
_ROWS_A_LEAF_TRAINED = 200  # bounds the time of training
_SEARCHED_SHARE = 16  # one leaf in 16 is searched; more find nothing more
_LEAST_RESCORED = 200  # enough for small blocks; grows with the square root of rows
_TAIL_ROWS = 1024  # a longer tail becomes a block: each search scans the tail
_FORKED_ROWS = 256  # a longer tail becomes a block, so that forks share it uncopied
_AGE_RATIO = 4  # an older block is merged once the younger exceed 1/4 of it
_DEAD_SHARE = 0.25  # a block of which more is dead is rebuilt
_GRACE_SHARE = 0.125  # calls a row until a merge takes effect: time for the build
_FIRST_CALLS = 256  # calls for which a large bank's first block is searched exactly


def make_index(ids: np.ndarray, vectors: np.ndarray, *, ann_threshold: int) -> Index:
    """Makes an index over rows: exact below a threshold, ScaNN from there.

    If ScaNN cannot be imported, search is exact at any size and one warning says so.

    Args:
      ids: int64 [n], ascending.
      vectors: float32 [n, dim], unit norm.
      ann_threshold: rows from which search is approximate.
    """
    return Index(ids, vectors, ann_threshold=ann_threshold)


def mmr(
    similarity: np.ndarray, vectors: np.ndarray, *, k: int, mmr_lambda: float
) -> list[int]:
    """Chooses rows one by one, best first.

    Each step takes the row of greatest ``l * sim(query, row) - (1 - l) * max over the
    chosen of sim(row, chosen)``. Carbonell and Goldstein, SIGIR 1998.

    Args:
      similarity: float32 [n], to the query.
      vectors: float32 [n, dim], unit norm.
      k: rows wanted.
      mmr_lambda: ``l`` in [0, 1].

    Returns:
      At most ``k`` row numbers; ties go to the lower row.
    """
    count = len(similarity)
    if count == 0 or k < 1:
        return []
    relevance = mmr_lambda * similarity
    between = (1.0 - mmr_lambda) * (vectors @ vectors.T)
    chosen = [int(relevance.argmax())]
    redundancy = between[chosen[0]].copy()
    open_rows = np.zeros(count, np.float32)  # -inf takes a chosen row out
    open_rows[chosen[0]] = -np.inf
    while len(chosen) < min(k, count):
        best = int((relevance - redundancy + open_rows).argmax())
        chosen.append(best)
        open_rows[best] = -np.inf
        # A running maximum, so that a step costs n and not n times the chosen.
        np.maximum(redundancy, between[best], out=redundancy)
    return chosen


class Index:
    """The active rows of one bank; the module docstring says how they are kept."""

    def __init__(self, ids: np.ndarray, vectors: np.ndarray, *, ann_threshold: int):
        """Makes an index over rows.

        Args:
          ids: int64 [n], ascending.
          vectors: float32 [n, dim], unit norm.
          ann_threshold: live rows from which blocks are searched approximately.
        """
        self._dim = vectors.shape[1]
        self._threshold = ann_threshold
        self._tail_rows = min(_TAIL_ROWS, max(64, ann_threshold // 4))
        self._parts: list[_Part] = []
        self._merges: list[_Merge] = []
        self._calls = 0
        self._clear_tail()
        self._count = len(ids)
        if len(ids):
            self._parts.append(_Part(IndexBlock(ids, vectors, False), set()))
            if len(ids) >= max(ann_threshold, LEAST_TRAINED) and can_approximate():
                self._merge(self._parts, grace=_FIRST_CALLS)

    def search(self, query: np.ndarray, n: int) -> tuple[list[int], np.ndarray]:
        """Finds the nearest live rows, nearest first; ties go to the lower id.

        Similarities are recomputed row by row, so they do not depend on what else the
        index holds.

        Args:
          query: float32 [dim], unit norm.
          n: rows wanted.

        Returns:
          Ids, and cosine similarities float32 [<= n].
        """
        self._count_call()
        ids, vectors = self._tail_candidates(query, n)
        if self._parts:
            ids, vectors = list(ids), [vectors]
            for part in self._parts:
                rows = part.block.nearest(query, n, part.dead)
                ids += part.block.ids[rows].tolist()
                vectors.append(part.block.vectors[rows])
            vectors = np.concatenate(vectors)
        if not ids or n < 1:
            return [], np.empty(0, np.float32)
        # Not ``@``: its rounding depends on how many rows there are.
        similarity = np.einsum("nd,d->n", vectors, query)
        values = similarity.tolist()
        order = sorted(range(len(ids)), key=lambda i: (-values[i], ids[i]))[:n]
        return [ids[i] for i in order], similarity[order]

    def add(self, entry_id: int, vector: np.ndarray) -> None:
        """Adds one row.

        Args:
          entry_id: higher than all ids before it.
          vector: float32 [dim], unit norm.
        """
        count = len(self._tail_ids)
        if count == len(self._tail):
            # Doubling keeps the cost of an added row constant on average.
            grown = np.empty((max(4, 2 * count), self._dim), np.float32)
            grown[:count] = self._tail[:count]
            self._tail = grown
        self._tail[count] = vector
        self._tail_ids.append(entry_id)
        self._count += 1
        self._count_call()

    def remove(self, entry_id: int) -> None:
        """Takes one live row out.

        Args:
          entry_id: its id.

        Raises:
          KeyError: no live row has that id.
        """
        if self._tail_ids and entry_id >= self._tail_ids[0]:
            self._remove_from_tail(entry_id)
        else:
            part = next((p for p in self._parts if p.block.ids[-1] >= entry_id), None)
            row = -1 if part is None else part.block.row_of(entry_id)
            if row < 0 or row in part.dead:
                raise KeyError(f"index holds no entry {entry_id}")
            part.dead.add(row)
            self._rebuild_if_dead(part)
        self._count -= 1
        self._count_call()

    def fork(self) -> Index:
        """Makes an independent index that shares the blocks."""
        if len(self._tail_ids) > _FORKED_ROWS:
            self._seal()
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._parts = [_Part(part.block, set(part.dead)) for part in self._parts]
        twin._merges = list(self._merges)
        twin._tail_ids = list(self._tail_ids)
        twin._tail = self._tail[: len(self._tail_ids)].copy()
        return twin

    def __len__(self) -> int:
        return self._count

    def ids(self) -> list[int]:
        """Ids of all live rows, ascending."""
        live: list[int] = []
        for part in self._parts:
            ids = part.block.ids.tolist()
            live += [i for row, i in enumerate(ids) if row not in part.dead]
        return live + self._tail_ids

    @property
    def blocks(self) -> tuple[IndexBlock, ...]:
        """The frozen blocks, oldest first; their ids ascend from block to block."""
        return tuple(part.block for part in self._parts)

    def settle(self) -> None:
        """Waits for all builds under way and puts them in effect."""
        self._finish_due(max((merge.due for merge in self._merges), default=0))

    def _tail_candidates(self, query, n) -> tuple[list[int], np.ndarray]:
        count = len(self._tail_ids)
        if count <= 4 * n:  # so few are taken all, unsorted
            return self._tail_ids, self._tail[:count]
        rows = top(self._tail[:count] @ query, n)
        return [self._tail_ids[row] for row in rows], self._tail[rows]

    def _remove_from_tail(self, entry_id: int) -> None:
        if entry_id not in self._tail_ids:
            raise KeyError(f"index holds no entry {entry_id}")
        place, count = self._tail_ids.index(entry_id), len(self._tail_ids)
        self._tail[place : count - 1] = self._tail[place + 1 : count]
        del self._tail_ids[place]

    def _count_call(self) -> None:
        """Runs once a call: closes a full tail, puts merges that are due in effect."""
        self._calls += 1
        if len(self._tail_ids) >= self._tail_rows:
            self._seal()
        if self._merges:
            self._finish_due(self._calls)

    def _seal(self) -> None:
        """Turns the tail into a block and merges blocks if the rule says so."""
        count = len(self._tail_ids)
        block = IndexBlock(np.asarray(self._tail_ids), self._tail[:count], False)
        self._parts.append(_Part(block, set()))
        self._clear_tail()
        self._compact()

    def _clear_tail(self) -> None:
        self._tail_ids: list[int] = []
        self._tail = np.empty((0, self._dim), np.float32)

    def _compact(self) -> None:
        """Merges the youngest blocks that outgrew a share of the next older one."""
        first, rows = len(self._parts) - 1, len(self._parts[-1])
        while first > 0 and self._outgrows(self._parts[first - 1], rows):
            first -= 1
            rows += len(self._parts[first])
        if first < len(self._parts) - 1:
            self._merge(self._parts[first:])

    def _outgrows(self, older: _Part, rows: int) -> bool:
        """Whether younger rows are so many that an older block is rebuilt with them."""
        if self._is_merging(older):
            return False
        # An exact block of a bank that has grown past the threshold is due for ScaNN.
        overdue = self._wants_scann(len(older)) and not older.block.approximate
        overdue = overdue and not older.block.refused
        return rows * _AGE_RATIO > len(older) or overdue

    def _wants_scann(self, rows: int) -> bool:
        """Whether a block of this many rows is to be searched by ScaNN."""
        least = min(LEAST_APPROXIMATE, self._threshold)
        return len(self) >= self._threshold and rows >= least and can_approximate()

    def _rebuild_if_dead(self, part: _Part) -> None:
        """Rebuilds a block of which too much is dead."""
        most = max(self._tail_rows, _DEAD_SHARE * len(part.block))
        if len(part.dead) > most and not self._is_merging(part):
            self._merge([part])

    def _is_merging(self, part: _Part) -> bool:
        return any(merge.replaces(part.block) for merge in self._merges)

    def _merge(self, parts: list[_Part], grace: int | None = None) -> None:
        rows = sum(len(part) for part in parts)
        approximate = grace is not None or self._wants_scann(rows)
        build = IndexBuild([(p.block, frozenset(p.dead)) for p in parts], approximate)
        if approximate:
            if grace is None:
                grace = max(self._tail_rows, int(_GRACE_SHARE * rows))
            self._merges.append(_Merge(build, self._calls + grace))
        else:
            self._finish(_Merge(build, self._calls))

    def _finish_due(self, calls: int) -> None:
        for merge in [m for m in self._merges if m.due <= calls]:
            self._merges.remove(merge)
            self._finish(merge)

    def _finish(self, merge: _Merge) -> None:
        """Puts a built block in place of its sources; what died since stays dead."""
        block, dead = merge.build.block(), set()
        places = [i for i, p in enumerate(self._parts) if merge.replaces(p.block)]
        for place, (source, before) in zip(places, merge.build.sources):
            died = self._parts[place].dead - before
            dead.update(block.row_of(int(source.ids[row])) for row in died)
        self._parts[places[0] : places[-1] + 1] = (
            [_Part(block, dead)] if len(block) else []
        )


class _Part:
    """A block as one index sees it: rows shared with forks, dead rows of its own."""

    __slots__ = ("block", "dead")

    def __init__(self, block: IndexBlock, dead: set[int]):
        self.block, self.dead = block, dead

    def __len__(self) -> int:
        return len(self.block) - len(self.dead)


@dataclasses.dataclass(frozen=True, slots=True)
class _Merge:
    """A build under way and the count of calls at which it takes effect."""

    build: IndexBuild
    due: int

    def replaces(self, block: IndexBlock) -> bool:
        return any(block is source for source, _ in self.build.sources)


class IndexBlock:
    """Frozen rows that are searched by one matrix product, or by ScaNN.

    Attributes:
      ids: int64 [n], ascending.
      vectors: float32 [n, dim], unit norm.
      approximate: whether ScaNN searches it.
      refused: whether ScaNN failed to learn it.
    """

    def __init__(self, ids: np.ndarray, vectors: np.ndarray, approximate: bool):
        """Makes a block; ScaNN learns it on first use.

        Args:
          ids: int64 [n], ascending.
          vectors: float32 [n, dim], unit norm.
          approximate: search by ScaNN, if there are rows enough to train it.
        """
        self.ids = np.asarray(ids, np.int64)
        self.vectors = vectors
        self.approximate = approximate and len(ids) >= LEAST_TRAINED
        self.refused = False  # set if ScaNN could not learn it: not tried at every turn
        self._lock = threading.Lock()  # forks on several threads build it once only
        self._searcher = None

    def __len__(self) -> int:
        return len(self.ids)

    def row_of(self, entry_id: int) -> int:
        """Returns the row of an id, -1 if the block does not hold it.

        Args:
          entry_id: the id.
        """
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
        """Returns the live rows nearest to a query, int64 [<= n], in no order.

        Args:
          query: float32 [dim], unit norm.
          n: rows wanted.
          dead: rows to leave out.
        """
        n = min(n, len(self) - len(dead))
        if n < 1:
            return np.empty(0, np.int64)
        if self.approximate:
            rows = self._approximate_rows(query, n, dead)
            if rows is not None:
                return rows
        scores = self.vectors @ query
        if dead:  # -inf: ``top`` never returns them
            scores[list(dead)] = -np.inf
        return top(scores, n)

    def _approximate_rows(self, query, n: int, dead) -> np.ndarray | None:
        """Searches by ScaNN; None if only exact search can find enough live rows."""
        total, widen, leaves = len(self), 1, _leaf_count(len(self))
        while True:
            # A few more than n, since dead rows among them are dropped.
            wanted = min(widen * n + min(len(dead), 16), total)
            rows, _ = self.searcher.search(
                query,
                final_num_neighbors=wanted,
                pre_reorder_num_neighbors=min(
                    max(_rescored_rows(total), 4 * wanted), total
                ),
                leaves_to_search=min(widen * _searched_leaves(leaves), leaves),
            )
            live = np.asarray(rows, np.int64)
            if dead:
                live = np.asarray([r for r in rows.tolist() if r not in dead], int)
            if len(live) >= n:
                return live
            if wanted == total:
                return None
            widen *= 4  # so that a search among many dead takes few rounds


class IndexBuild:
    """One block made of the live rows of others, on a thread if ScaNN is to learn it.

    Attributes:
      sources: blocks, each with the rows that were dead when the build began.
    """

    def __init__(
        self, sources: Sequence[tuple[IndexBlock, frozenset[int]]], approximate: bool
    ):
        """Starts the build.

        Args:
          sources: blocks and their dead rows, oldest first.
          approximate: whether ScaNN is to learn the new block.
        """
        self.sources = tuple(sources)
        self._approximate = approximate
        self._block: IndexBlock | None = None
        self._thread = _start_thread(self._build) if approximate else None
        if not approximate:
            self._build()

    def block(self) -> IndexBlock:
        """Returns the block; waits for it if it is not ready.

        It is built here if no thread could build it: none was started, or this is a
        forked process.
        """
        if self._thread is not None:
            self._thread.join()
        if self._block is None:
            self._build()
        return self._block

    def _build(self) -> None:
        masks = []
        for block, dead in self.sources:
            live = np.ones(len(block), bool)
            live[list(dead)] = False
            masks.append(live)
        blocks = [block for block, _ in self.sources]
        if len(blocks) == 1 and masks[0].all():  # nothing died: no copy is needed
            masks = [slice(None)]
        ids = _concatenate([b.ids[live] for b, live in zip(blocks, masks)])
        rows = _concatenate([b.vectors[live] for b, live in zip(blocks, masks)])
        block = IndexBlock(ids, rows, self._approximate)
        try:
            if block.approximate:
                _ = block.searcher
        except Exception as error:
            # The rows are complete: a search that cannot be built is no reason to
            # lose a write.
            warnings.warn(
                f"ScaNN could not index {len(ids)} entries ({error}): they are "
                "searched exactly, which is slower",
                stacklevel=2,
            )
            block.approximate, block.refused = False, True
        self._block = block


def can_approximate() -> bool:
    """Whether ScaNN can be imported; if not, one warning says so."""
    return _scann() is not None


def top(scores: np.ndarray, n: int) -> np.ndarray:
    """Returns rows of the greatest scores, in no order; -inf never counts.

    Args:
      scores: float32 [rows].
      n: rows wanted. Of equal scores at the edge the first rows are taken.
    """
    if n < 1:
        return np.empty(0, np.int64)
    if n >= len(scores):
        return np.flatnonzero(scores > -np.inf)
    # A partition and not a sort: linear in the rows.
    edge = np.partition(scores, len(scores) - n)[len(scores) - n]
    above = np.flatnonzero(scores > edge)
    return np.concatenate([above, np.flatnonzero(scores == edge)[: n - len(above)]])


def _concatenate(arrays: list[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _start_thread(target: Callable[[], None]) -> threading.Thread | None:
    """Starts a thread; None if the system has no more threads to give."""
    thread = threading.Thread(target=target, name="index build", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


@functools.cache
def _scann():
    """The scann module, or None after a single warning if it cannot be imported."""
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


def _build_searcher(vectors: np.ndarray):
    """Quantised scoring with exact re-scoring, under a tree if there are many rows.

    The tree lists each row in two leaves that err differently ("SOAR: Improved Indexing
    for Approximate Nearest Neighbor Search", 2023). One thread, and no quantisation of
    residuals, which draws at random: the same rows give the same searcher.
    """
    count, leaves = len(vectors), _leaf_count(len(vectors))
    # 10: the default number of neighbours, which every search here overrides.
    builder = _scann().scann_ops_pybind.builder(vectors, 10, "dot_product")
    builder.set_n_training_threads(1)
    if count >= _LEAST_TREE:
        builder = builder.tree(
            num_leaves=leaves,
            num_leaves_to_search=_searched_leaves(leaves),
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
    searcher = builder.reorder(_rescored_rows(count)).build()
    searcher.set_num_threads(1)
    return searcher


def _leaf_count(count: int) -> int:
    """Leaves of the tree over ``count`` rows; 1 without a tree."""
    return int(2 * count**0.5) if count >= _LEAST_TREE else 1


def _searched_leaves(leaves: int) -> int:
    return max(1, leaves // _SEARCHED_SHARE)


def _rescored_rows(count: int) -> int:
    """Candidates scored exactly: with more rows, more look alike once quantised."""
    return max(_LEAST_RESCORED, int(0.8 * count**0.5))
