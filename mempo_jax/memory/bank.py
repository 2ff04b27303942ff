"""The memory of one trajectory: what the policy writes, recalls, merges, deletes.

One class: the operations of the policy, what can be read without changing anything, and
the log by which a bank is forked, shown as it stood at an earlier step, and replayed.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable
from typing import Self

import numpy as np

from mempo_jax.memory import arguments, gates, hygiene, persist
from mempo_jax.memory.bank_config import BankConfig
from mempo_jax.memory.embedding import Embedder
from mempo_jax.memory.entry import (
    DeleteResult,
    Entry,
    Hit,
    MergeResult,
    Status,
    Summary,
    WriteResult,
    full_text,
)
from mempo_jax.memory.lexical.judge import Judge, make_judge
from mempo_jax.memory.ops import OpError, OpKind, OpOutcome, OpRecord
from mempo_jax.memory.rerank import mmr
from mempo_jax.memory.store import EntryTable, check_bank

_MADE = (OpOutcome.NEW, OpOutcome.MERGED)
_RATE_WARNING = 0.30
_RATE_LEAST_WRITES = 20  # accepted writes before the merge rate means anything
_SHOWN_ENTRIES = 50  # the newest ones, where a bank is printed


class Bank:
    """Entries, their index and the op log of one trajectory.

    Every change is an ``OpRecord`` that is applied and logged. Faults of the policy
    come back as outcome ``error``; only faults of the caller raise (TypeError,
    ValueError), and so do faults of the embedder, the judge and ``summarise``: then
    nothing has changed. A step is a turn index of this task, from 0. It may go
    backwards; the log keeps the order in which ops ran.
    """

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
        self._gates = gates.Gates(config, make_judge(config.judge, judge), summarise)

    def __repr__(self) -> str:
        return (
            f"<Bank {self.trajectory_id!r}: {len(self)} of {len(self._table)} entries "
            f"active, {len(self.log)} ops logged>"
        )

    def __str__(self) -> str:
        """The entries, the newest last, each on one line; see ``Entry.__str__``."""
        cap = self.config.capacity
        limit = f", at most {cap} at a time" if cap else ""
        lines = [f"{len(self)} of {len(self._table)} entries active{limit}"]
        entries = self.entries
        hidden = max(0, len(entries) - _SHOWN_ENTRIES)
        if hidden:
            lines.append(f"      {hidden} older ones are left out; see Bank.entries")
        return "\n".join([*lines, *map(str, entries[-_SHOWN_ENTRIES:])])

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        config: BankConfig,
        embedder: Embedder,
        trajectory_id: str = "",
        **callables,
    ) -> Bank:
        """Bulk build: one active entry a text, ids in order, no gates, an empty log.

        ``callables``: judge and summarise, as in the constructor. Raises ValueError for
        an empty or over-long text, or for more texts than the cap.
        """
        texts = [arguments.text("from_texts: a text", text) for text in texts]
        if 0 < config.capacity < len(texts):
            raise ValueError(
                f"from_texts: expected at most {config.capacity} texts, "
                f"got {len(texts)}; raise memory.capacity, or 0 for no cap"
            )
        bank = cls(config, embedder, trajectory_id, **callables)
        for place, text in enumerate(texts):
            if error := bank._gates.text_error(text, None):
                raise ValueError(
                    f"from_texts: text {place} of {len(text)} characters: {error}; "
                    f"expected 1 to {config.max_entry_chars}, memory.max_entry_chars"
                )
        rows = bank._embed(texts) if texts else ()
        entries = (
            Entry(i, None, text, row, 0, 0, 0, trajectory_id)
            for i, (text, row) in enumerate(zip(texts, rows))
        )
        bank._start(bank._table_of(entries))
        return bank

    @classmethod
    def load(cls, directory, embedder: Embedder, **callables) -> Bank:
        """The bank saved there, log included; errors: see ``persist.load``."""
        return persist.load(cls, directory, embedder, **callables)

    def save(self, directory) -> None:
        """Writes the bank to one directory, in place of what was there."""
        persist.save(self, directory)

    def write(
        self, text: str, *, title: str | None = None, step: int, token_span=None
    ) -> WriteResult:
        """Stores ``text`` unless an entry says it already; see ``Gates.write``."""
        draft = OpRecord(
            arguments.turn("write", step),
            OpKind.WRITE,
            "",
            token_span=arguments.span("write", token_span),
            text=arguments.text("write: text", text),
            title=_plain_title(arguments.optional_text("write: title", title)),
        )
        error = self._gates.text_error(text, title)
        if self._refused(draft, error):
            return WriteResult(self.log[-1].outcome, -1, 0.0, error)
        vector = self._embed([full_text(draft.title, text)])[0]
        record = self._gates.write(draft, self._table, vector)
        same = (record.title, record.stored) == (draft.title, text)
        self._change(record, vector if same else None)
        self._warn_of_merges()
        return WriteResult(record.outcome, record.entry_ids[0], record.similarity)

    def questions(
        self, text: str, *, title: str | None = None
    ) -> list[tuple[str, str]]:
        """The (new, old) pairs that ``write`` would ask the judge about just now."""
        refused = self._gates.text_error(text, title) or not self.config.enabled
        if refused or not len(self):
            return []
        text = full_text(_plain_title(title), text)
        return self._gates.questions(text, self._table, self._embed([text])[0])

    def recall(
        self,
        query: str,
        *,
        k: int | None = None,
        step: int,
        token_span=None,
        error: str | None = None,
    ) -> list[Hit]:
        """At most ``min(k, retrieval_top_k)`` hits in rank order, each now accessed.

        error: a fault of the op that does not keep it from running (``k_over_cap``).

        Raises ValueError for ``k`` below 1.
        """
        cap = self.config.retrieval_top_k
        k = cap if k is None else min(arguments.integer("recall: k", k, 1), cap)
        error = arguments.optional_text("recall: error", error)
        draft = OpRecord(
            arguments.turn("recall", step),
            OpKind.RECALL,
            "",
            token_span=arguments.span("recall", token_span),
            text=arguments.text("recall: query", query),
            k=k,
        )
        if self._refused(draft, None):
            return []
        ids, similarities = self._search(query, k * self.config.oversample)
        rows = self._rank(ids, similarities, k)
        chosen = [(ids[row], float(similarities[row])) for row in rows]
        record = dataclasses.replace(
            draft,
            outcome=OpOutcome.RECALLED,
            entry_ids=tuple(entry_id for entry_id, _ in chosen),
            similarity=max((similarity for _, similarity in chosen), default=0.0),
            error=error,
        )
        self._change(record)
        return [Hit(self._table[i], similarity) for i, similarity in chosen]

    def merge(
        self, ids, *, text: str | None = None, step: int, token_span=None
    ) -> MergeResult:
        """One new entry of two or more; without a text, of their texts joined."""
        ids = gates.plain_ids("merge", ids)
        draft = OpRecord(
            arguments.turn("merge", step),
            OpKind.MERGE,
            "",
            ids,
            token_span=arguments.span("merge", token_span),
            text=(arguments.optional_text("merge: text", text) or "").strip(),
        )
        text = draft.text
        error = gates.ids_error(self._table, ids, least=2)
        if not error and text:
            error = self._gates.text_error(text, None)
        if self._refused(draft, error):
            return MergeResult(self.log[-1].outcome, -1, error)
        record = self._gates.merge(draft, self._table, ids, text or None, False)
        self._change(record)
        return MergeResult(record.outcome, record.entry_ids[0])

    def delete(self, ids, *, step: int, token_span=None) -> DeleteResult:
        """Turns entries into tombstones, all or none of them."""
        ids = gates.plain_ids("delete", ids)
        draft = OpRecord(
            arguments.turn("delete", step),
            OpKind.DELETE,
            "",
            ids,
            token_span=arguments.span("delete", token_span),
        )
        error = gates.ids_error(self._table, ids, least=1)
        if not self._refused(draft, error):
            self._change(dataclasses.replace(draft, outcome=OpOutcome.DELETED))
        return DeleteResult(self.log[-1].outcome, error)

    def note(
        self, kind: str, *, step: int, error=None, token_span=None, text: str = ""
    ) -> None:
        """Logs an op that does not touch the bank: malformed, skip, act, answer,
        rewrite."""
        record = OpRecord(
            arguments.turn("note", step),
            OpKind(kind),
            OpOutcome.ERROR if error else OpOutcome.NOTED,
            error=arguments.optional_text("note: error", error),
            token_span=arguments.span("note", token_span),
            text=arguments.text("note: text", text),
        )
        self.log.append(record)

    def _refused(self, draft: OpRecord, error: OpError | None) -> bool:
        """Logs an op that has no effect, for an error or because memory is off."""
        if not error and self.config.enabled:
            return False
        outcome = OpOutcome.ERROR if error else OpOutcome.DISABLED
        self.log.append(dataclasses.replace(draft, outcome=outcome, error=error))
        return True

    def _rank(self, ids: list[int], similarities: np.ndarray, k: int) -> list[int]:
        if len(ids) < 2:
            return list(range(len(ids)))
        vectors = np.stack([self._table[i].embedding for i in ids])
        return mmr(similarities, vectors, k=k, mmr_lambda=self.config.mmr_lambda)

    def _warn_of_merges(self) -> None:
        due = self._accepted >= _RATE_LEAST_WRITES and self.log[-1].outcome == "merged"
        if due and self.merge_rate > _RATE_WARNING:
            warnings.warn(
                "more than 30 % of the accepted writes were merged; raise "
                f"memory.merge_threshold (now {self.config.merge_threshold})",
                stacklevel=3,
            )

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
        check_bank(self, self._table)

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


def _plain_title(title: str | None) -> str | None:
    """One line without outer blanks: titles are shown in a list; None if empty."""
    return " ".join((title or "").split()) or None


def replay(
    initial: Bank, log: Iterable[OpRecord], trajectory_id: str | None = None
) -> Bank:
    """``log`` applied to ``initial``: the logged bank again, bit for bit.

    Args:
      initial: the bank before the log; it is left as it is.
      log: the records, complete and in order.
      trajectory_id: source of the entries made; that of ``initial`` if None.

    Raises:
      ValueError: if a record does not fit what came before it.
    """
    name = initial.trajectory_id if trajectory_id is None else trajectory_id
    bank = initial.fork(name)
    for record in log:
        bank.apply(record)
    return bank
