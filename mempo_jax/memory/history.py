"""The log of a bank: how a change is made, undone in a copy, and carried on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import numpy as np

from mempo_jax.memory import arguments, gates
from mempo_jax.memory.config import BankConfig
from mempo_jax.memory.embedding import Embedder
from mempo_jax.memory.entry import full_text
from mempo_jax.memory.judge import Judge, make_judge
from mempo_jax.memory.ops import OpKind, OpOutcome, OpRecord
from mempo_jax.memory.store import EntryTable
from mempo_jax.memory.view import BankView

_MADE = (OpOutcome.NEW, OpOutcome.MERGED)


class BankHistory(BankView):
    """Applies log records, and gives independent banks that stand elsewhere in time."""

    def __init__(
        self,
        config: BankConfig,
        embedder: Embedder,
        trajectory_id: str = "",
        *,
        judge: Judge | None = None,
        summarise: Callable[[str, int], str] | None = None,
    ):
        """An empty bank.

        Args:
          config: settings. embedder: shared by all banks of a run.
          trajectory_id: source of what is written here.
          judge: (new, old) -> Verdict; by ``config.judge`` if None.
          summarise: (text, max_chars) -> text, shortens concatenations over
            ``merge_max_chars``; without it they are cut, the newest part kept.

        Raises TypeError for an argument of another kind.
        """
        super().__init__(config, embedder, trajectory_id)
        self._gates = gates.Gates(config, make_judge(config.judge, judge), summarise)

    def fork(self, trajectory_id: str) -> Self:
        """An independent bank that starts from these entries, with an empty log.

        For trajectories of one task: steps of the entries stay as they are. The first
        fork after a change copies the list of entries (milliseconds for 100,000);
        further ones cost the same whatever the bank holds.
        """
        return self._holding(self._table.fork(), trajectory_id)

    def next_task(self, trajectory_id: str, *, turns: int | None = None) -> Self:
        """An independent bank that goes on from these entries in a new task.

        Steps count from the start of a task. So those of the entries here are put back
        by ``turns``, how many turns this task took (None: up to the last one logged):
        -1 is then its last turn. Ages and the order of eviction stay right over tasks,
        the log starts anew, and each entry keeps its source. Costs O(entries).

        Raises ValueError if the log holds a later turn than ``turns`` allows.
        """
        logged = 1 + max((record.turn for record in self.log), default=-1)
        turns = logged if turns is None else turns
        most = arguments.LAST_TURN
        turns = arguments.integer("next_task: turns", turns, logged, most)
        return self._holding(self._table.before(turns), trajectory_id)

    def at(self, step: int) -> Self:
        """An independent bank as this one stood after turn ``step`` (-1: at the start).

        The log is applied up to its first record of a later turn: one pass over it,
        without embedding. Texts and vectors are shared; the index is built when the
        past bank is first searched.
        """
        step = arguments.integer("at: step", step, -arguments.LAST_TURN)
        past = self.start()
        for record in self.log:
            if record.turn > step:
                break
            made = record.outcome in _MADE
            past._change(
                record, self._table[record.entry_ids[0]].embedding if made else None
            )
        return past

    def start(self) -> Self:
        """An independent bank as this one stood before its log began."""
        table = self._table_of(self._initial, self._initial_count)
        return self._holding(table, self.trajectory_id)

    def apply(self, record: OpRecord, embedding: np.ndarray | None = None) -> None:
        """Changes the bank as ``record`` says and logs it: the one way it changes.

        ``embedding`` float32 [dim], unit norm, of the entry that it makes; embedded
        here if None. Raises ValueError, and changes nothing, if it does not fit.
        """
        if embedding is not None:
            embedding = self._checked([embedding], 1, "Bank.apply")[0]
        self._change(record, embedding)

    def _change(self, record: OpRecord, embedding: np.ndarray | None = None) -> None:
        """``apply`` for an embedding that is checked, and ours alone."""
        made = record.outcome in _MADE
        if made and embedding is None:
            embedding = self._embed([full_text(record.title, record.stored)])[0]
        self._table.apply(record, embedding, self.trajectory_id)
        self.log.append(record)
        if made and record.kind == OpKind.WRITE:
            self._accepted += 1
            self._merged += record.outcome == OpOutcome.MERGED

    def _holding(self, table: EntryTable, trajectory_id: str) -> Self:
        """A bank of the same rules that starts from a fresh table."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)  # faster than building them again
        twin.trajectory_id = arguments.text("Bank: trajectory_id", trajectory_id)
        twin._start(table)
        return twin
