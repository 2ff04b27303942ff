"""What can be read of a bank without changing it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mempo_jax.memory import checks
from mempo_jax.memory.config import BankConfig
from mempo_jax.memory.embedding import Embedder
from mempo_jax.memory.entry import Entry, Status
from mempo_jax.memory.ops import OpRecord
from mempo_jax.memory.results import Summary
from mempo_jax.memory.store import EntryTable


class BankView:
    """Entries, index and op log of one trajectory, and how to look at them."""

    def __init__(self, config: BankConfig, embedder: Embedder, trajectory_id: str):
        self.config = config
        self.embedder = embedder
        self.trajectory_id = trajectory_id
        self.log: list[OpRecord] = []
        self._accepted = self._merged = 0
        self._reset(())

    @property
    def entries(self) -> list[Entry]:
        """All entries by id, tombstones too."""
        return list(self._table)

    @property
    def active(self) -> list[Entry]:
        """Active entries by id."""
        return [entry for entry in self._table if entry.status == Status.ACTIVE]

    @property
    def initial_entries(self) -> tuple[Entry, ...]:
        """The entries as they stood before the first record of the log."""
        return self._initial

    @property
    def merge_rate(self) -> float:
        """Merged writes over accepted writes (new or merged); 0 before the first."""
        return self._merged / self._accepted if self._accepted else 0.0

    def __len__(self) -> int:
        return self._table.active_count

    def entry(self, entry_id: int) -> Entry:
        """One entry by id, active or not; KeyError if no entry has that id."""
        if not self._table.holds(entry_id):
            raise KeyError(f"expected an id below {len(self._table)}, got {entry_id!r}")
        return self._table[entry_id]

    def resolve(self, entry_id: int) -> int:
        """The id in which a memory lives on after all its merges."""
        while (entry := self.entry(entry_id)).merged_into >= 0:
            entry_id = entry.merged_into
        return entry_id

    def summary(self, recent: int = 5) -> Summary:
        """Count of active entries, and titles of the ``recent`` newest, newest first.

        An untitled entry takes its place but shows nothing of its text.
        """
        titles, left = [], min(recent, len(self))
        for entry_id in range(len(self._table) - 1, -1, -1):
            entry = self._table[entry_id]
            if left <= 0:
                break
            if entry.status == Status.ACTIVE:
                left -= 1
                titles += [entry.title] if entry.title else []
        return Summary(len(self), tuple(titles))

    def candidates(self, query: str, n: int) -> list[int]:
        """Ids of the ``n`` nearest active entries, nearest first; no access counted."""
        return self._search(query, n)[0]

    def check_valid(self) -> None:
        """Raises AssertionError naming the first broken invariant."""
        checks.check_bank(self, self._table)

    def _reset(self, entries: Iterable[Entry]) -> None:
        self._table = EntryTable(
            tuple(entries),
            dim=self.embedder.dim,
            ann_threshold=self.config.ann_threshold,
        )
        self._initial = self._table.base

    def _search(self, query: str, n: int) -> tuple[list[int], np.ndarray]:
        if not len(self):
            return [], np.empty(0, np.float32)
        return self._table.index.search(self._embed([query])[0], n)

    def _embed(self, texts: list[str]) -> np.ndarray:
        rows = np.asarray(self.embedder.embed(texts))
        shape = (len(texts), self.embedder.dim)
        fits = rows.shape == shape and rows.dtype == np.float32
        if not fits or not (abs(np.einsum("nd,nd->n", rows, rows) - 1) < 1e-3).all():
            raise ValueError(
                f"embedder {self.embedder.name!r}: expected finite float32 rows of "
                f"unit norm, shape {shape}; got {rows.dtype} {rows.shape}; "
                "see memory.embedder"
            )
        return rows
