"""What can be read of a bank without changing it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mempo_jax.memory import arguments, checks, hygiene
from mempo_jax.memory.config import BankConfig
from mempo_jax.memory.embedding import Embedder
from mempo_jax.memory.entry import Entry, Status
from mempo_jax.memory.ops import OpRecord
from mempo_jax.memory.results import Summary
from mempo_jax.memory.store import EntryTable


class BankView:
    """Entries, index and op log of one trajectory, and how to look at them."""

    def __init__(self, config: BankConfig, embedder: Embedder, trajectory_id: str):
        for name in ("name", "dim", "embed"):
            if not hasattr(embedder, name):
                raise TypeError(
                    f"Bank: expected an embedder with .name, .dim and .embed, got "
                    f"{arguments.short(embedder)}; see make_embedder"
                )
        self.config = config
        self.embedder = embedder
        self.trajectory_id = arguments.text("Bank: trajectory_id", trajectory_id)
        self._start(self._table_of(()))

    @property
    def entries(self) -> list[Entry]:
        """All entries by id, tombstones too; O(entries)."""
        return list(self._table)

    @property
    def active(self) -> list[Entry]:
        """Active entries by id; O(entries), ``len`` counts them at once."""
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
        shown = self._table.newest(min(recent, len(self)))
        titles = tuple(entry.title for entry in shown if entry.title)
        return Summary(len(self), titles)

    def candidates(self, query: str, n: int) -> list[int]:
        """Ids of the ``n`` nearest active entries, nearest first; no access counted."""
        n = arguments.integer("candidates: n", n, 0)
        return self._search(arguments.text("candidates: query", query), n)[0]

    def hygiene(self, step: int | None = None, **settings) -> hygiene.Hygiene:
        """How clean the bank is: staleness, junk, duplicates, contradictions.

        See ``mempo_jax.memory.hygiene.measure`` for units, settings and cost.
        """
        return hygiene.measure(self, self._table, step, **settings)

    def check_valid(self) -> None:
        """Raises AssertionError naming the first broken invariant."""
        checks.check_bank(self, self._table)

    def _start(self, table: EntryTable) -> None:
        """Begins a log at the entries of a fresh table."""
        self._table = table
        self._initial, self._initial_count = table.base, table.active_count
        self.log: list[OpRecord] = []
        self._accepted = self._merged = 0

    def _table_of(
        self, entries: Iterable[Entry], active_count: int | None = None
    ) -> EntryTable:
        return EntryTable(
            tuple(entries),
            dim=self.embedder.dim,
            ann_threshold=self.config.ann_threshold,
            active_count=active_count,
        )

    def _search(self, query: str, n: int) -> tuple[list[int], np.ndarray]:
        if not len(self):
            return [], np.empty(0, np.float32)
        return self._table.index.search(self._embed([query])[0], n)

    def _embed(self, texts: list[str]) -> np.ndarray:
        rows = self.embedder.embed(texts)
        return self._checked(rows, len(texts), f"embedder {self.embedder.name!r}")

    def _checked(self, rows, count: int, where: str) -> np.ndarray:
        """A read-only copy: whoever made the rows may write over them later."""
        try:
            rows = np.array(rows)
        except ValueError:  # rows of different lengths
            rows = np.array(None)
        shape = (count, self.embedder.dim)
        fits = rows.shape == shape and rows.dtype == np.float32
        if not fits or not (abs(np.einsum("nd,nd->n", rows, rows) - 1) < 1e-3).all():
            raise ValueError(
                f"{where}: expected finite float32 rows of unit norm, shape {shape}; "
                f"got {rows.dtype} {rows.shape}; see memory.embedder"
            )
        rows.setflags(write=False)
        return rows
