"""The memory of one trajectory: what the policy writes, recalls, merges and deletes.

``Bank`` has the operations of the policy, readers that change nothing, and the op log,
by which a bank is forked, shown as it was at an earlier turn, and replayed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Self

import numpy as np

from mempo_jax.memory import arguments, gates, hygiene, persist, retention
from mempo_jax.memory.bank_config import BankConfig
from mempo_jax.memory.embedding import Embedder, checked_rows
from mempo_jax.memory.entry import (
    DeleteResult,
    Entry,
    Hit,
    MergeResult,
    PurgeResult,
    Status,
    Summary,
    WriteResult,
    full_text,
)
from mempo_jax.memory.index import mmr
from mempo_jax.memory.lexical.judge import Judge, make_judge
from mempo_jax.memory.ops import OpError, OpKind, OpOutcome, OpRecord
from mempo_jax.memory.store import EntryTable, check_bank

_MAKES_ENTRY = (OpOutcome.NEW, OpOutcome.MERGED)
_SHOWN_ENTRIES = 50  # printing a bank shows this many of the newest


class Bank:
    """Entries, their index and the op log of one trajectory.

    Every change is an ``OpRecord`` that is applied and logged. A fault of the policy
    comes back as outcome ``error``. A fault of the caller raises TypeError or
    ValueError, and exceptions of the embedder, the judge and ``summarise`` pass
    through: then nothing has changed. A step is a turn index of this task, from 0. It
    may go backwards; the log keeps the order in which ops ran.

    Attributes:
      config: settings of the bank.
      embedder: turns texts into vectors; shared by all banks of a run.
      trajectory_id: source of the entries that are written here.
      log: the records of all ops, in the order in which they ran.
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
        """Makes an empty bank.

        Args:
          config: settings.
          embedder: shared by all banks of a run; see ``make_embedder``.
          trajectory_id: source of the entries that are written here.
          judge: (new, old) -> Verdict; chosen by ``config.judge`` if None.
          summarise: (text, max_chars) -> text, shortens joined texts over
            ``merge_max_chars``; if None they are cut and the newest part stays.

        Raises:
          TypeError: an argument is of another kind.
          ValueError: ``config.judge`` names no judge.
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
        self._saved: dict[str, persist.SavedVersion] = {}
        self._start(self._make_table(()))
        self._gates = gates.Gates(config, make_judge(config.judge, judge), summarise)

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        config: BankConfig,
        embedder: Embedder,
        trajectory_id: str = "",
        **callables,
    ) -> Bank:
        """Builds a bank with one active entry per text; no gates, an empty log.

        Args:
          texts: the texts, in order of id.
          config: settings.
          embedder: embeds all texts in one call.
          trajectory_id: source of the entries.
          **callables: ``judge`` and ``summarise``, as in the constructor.

        Raises:
          ValueError: a text is empty or too long, or there are more texts than the cap.
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
        bank._start(bank._make_table(entries))
        return bank

    def write(
        self, text: str, *, title: str | None = None, step: int, token_span=None
    ) -> WriteResult:
        """Stores ``text`` unless an entry says it already; see ``Gates.write``.

        Args:
          text: what to remember.
          title: a short name, shown in the summary; part of the statement.
          step: turn index.
          token_span: range [start, end) of the tokens that wrote it; only logged.
        """
        draft = OpRecord(
            arguments.turn("write", step),
            OpKind.WRITE,
            "",
            token_span=arguments.span("write", token_span),
            text=arguments.text("write: text", text),
            title=gates.plain_title(arguments.optional_text("write: title", title)),
        )
        error = self._gates.text_error(text, title)
        if self._log_refused(draft, error):
            return WriteResult(self.log[-1].outcome, -1, 0.0, error)
        vector = self._embed([full_text(draft.title, text)])[0]
        record = self._gates.write(draft, self._table, vector)
        # The vector is of the text as it was sent: a joined text needs its own.
        unchanged = (record.title, record.stored) == (draft.title, text)
        self._change(record, vector if unchanged else None)
        if record.outcome == OpOutcome.MERGED:
            gates.warn_of_merges(self._accepted, self._merged, self.config)
        return WriteResult(record.outcome, record.entry_ids[0], record.similarity)

    def recall(
        self,
        query: str,
        *,
        k: int | None = None,
        step: int,
        token_span=None,
        error: str | None = None,
    ) -> list[Hit]:
        """Finds the entries nearest to a query, in rank order, and counts their access.

        Args:
          query: any text.
          k: hits wanted; at most, and by default, ``config.retrieval_top_k``.
          step: turn index.
          token_span: range [start, end) of the tokens that asked; only logged.
          error: a fault to log that does not keep the op from running (``k_over_cap``).

        Raises:
          ValueError: ``k`` is below 1.
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
        if self._log_refused(draft, None):
            return []
        # More candidates than hits, so that the re-ranking has something to choose.
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
        """Makes one new entry of two or more; the parents become tombstones.

        Args:
          ids: active entries, at least two.
          text: text of the new entry; the parents' texts joined if None or blank.
          step: turn index.
          token_span: range [start, end) of the tokens of the op; only logged.
        """
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
        if self._log_refused(draft, error):
            return MergeResult(self.log[-1].outcome, -1, error)
        record = self._gates.merge(draft, self._table, ids, text or None, False)
        self._change(record)
        return MergeResult(record.outcome, record.entry_ids[0])

    def delete(self, ids, *, step: int, token_span=None) -> DeleteResult:
        """Turns entries into tombstones: all of them, or none if one id is at fault.

        Args:
          ids: active entries, at least one.
          step: turn index.
          token_span: range [start, end) of the tokens of the op; only logged.
        """
        ids = gates.plain_ids("delete", ids)
        draft = OpRecord(
            arguments.turn("delete", step),
            OpKind.DELETE,
            "",
            ids,
            token_span=arguments.span("delete", token_span),
        )
        error = gates.ids_error(self._table, ids, least=1)
        if not self._log_refused(draft, error):
            self._change(dataclasses.replace(draft, outcome=OpOutcome.DELETED))
        return DeleteResult(self.log[-1].outcome, error)

    def note(
        self, kind: str, *, step: int, error=None, token_span=None, text: str = ""
    ) -> None:
        """Logs an op that does not touch the bank.

        Args:
          kind: malformed, skip, act, answer or rewrite.
          step: turn index.
          error: an ``OpError``; the outcome is then ``error``.
          token_span: range [start, end) of the tokens of the op.
          text: content of the op.
        """
        record = OpRecord(
            arguments.turn("note", step),
            OpKind(kind),
            OpOutcome.ERROR if error else OpOutcome.NOTED,
            error=arguments.optional_text("note: error", error),
            token_span=arguments.span("note", token_span),
            text=arguments.text("note: text", text),
        )
        self.log.append(record)

    def questions(
        self, text: str, *, title: str | None = None
    ) -> list[tuple[str, str]]:
        """Lists the (new, old) pairs that ``write`` would ask the judge about just now.

        Args:
          text: as for ``write``; no pairs if it would be refused.
          title: as for ``write``.
        """
        refused = self._gates.text_error(text, title) or not self.config.enabled
        if refused or not len(self):
            return []
        text = full_text(gates.plain_title(title), text)
        return self._gates.questions(text, self._table, self._embed([text])[0])

    @property
    def entries(self) -> list[Entry]:
        """All entries in order of id, tombstones included; costs O(entries)."""
        return list(self._table)

    @property
    def active(self) -> list[Entry]:
        """The active entries in order of id; costs O(entries), ``len`` only O(1)."""
        return [entry for entry in self._table if entry.status == Status.ACTIVE]

    def __len__(self) -> int:
        return self._table.active_count

    def entry(self, entry_id: int) -> Entry:
        """Returns one entry, active or not.

        Args:
          entry_id: its id.

        Raises:
          KeyError: no entry has that id.
        """
        if not self._table.holds(entry_id):
            raise KeyError(f"expected an id below {len(self._table)}, got {entry_id!r}")
        return self._table[entry_id]

    def resolve(self, entry_id: int) -> int:
        """Follows the merges of an entry to the id in which it lives on.

        Args:
          entry_id: id of any entry; KeyError if no entry has it.
        """
        while (entry := self.entry(entry_id)).merged_into >= 0:
            entry_id = entry.merged_into
        return entry_id

    def summary(self, recent: int = 5) -> Summary:
        """Counts the active entries and lists titles of the newest, newest first.

        Args:
          recent: entries looked at; an untitled one takes a place and shows nothing.
        """
        newest = self._table.newest(min(recent, len(self)))
        titles = tuple(entry.title for entry in newest if entry.title)
        return Summary(len(self), titles)

    def candidates(self, query: str, n: int) -> list[int]:
        """Returns ids of the nearest active entries, nearest first; counts no access.

        Args:
          query: any text.
          n: ids wanted.
        """
        n = arguments.integer("candidates: n", n, 0)
        return self._search(arguments.text("candidates: query", query), n)[0]

    @property
    def initial_entries(self) -> tuple[Entry, ...]:
        """The entries as they were before the first record of the log."""
        return self._initial

    @property
    def merge_rate(self) -> float:
        """Merged writes over accepted writes (new or merged); 0 without any."""
        return self._merged / self._accepted if self._accepted else 0.0

    def hygiene(self, step: int | None = None, **settings) -> hygiene.Hygiene:
        """Measures how clean the bank is: staleness, junk, duplicates, contradictions.

        Args:
          step: turn to measure at; the last one logged if None.
          **settings: see ``mempo_jax.memory.hygiene.measure``, also for units and cost.
        """
        return hygiene.measure(self, self._table, step, **settings)

    def __str__(self) -> str:
        """Lists the entries, one a line, the newest last; see ``Entry.__str__``."""
        cap = self.config.capacity
        limit = f", at most {cap} at a time" if cap else ""
        lines = [f"{len(self)} of {len(self._table)} entries active{limit}"]
        entries = self.entries
        hidden = max(0, len(entries) - _SHOWN_ENTRIES)
        if hidden:
            lines.append(f"      {hidden} older ones are left out; see Bank.entries")
        return "\n".join([*lines, *map(str, entries[-_SHOWN_ENTRIES:])])

    def __repr__(self) -> str:
        return (
            f"<Bank {self.trajectory_id!r}: {len(self)} of {len(self._table)} entries "
            f"active, {len(self.log)} ops logged>"
        )

    def fork(self, trajectory_id: str) -> Self:
        """Makes an independent bank that starts from these entries; its log is empty.

        It is for trajectories of one task: steps of the entries stay as they are. The
        first fork after a change copies the list of entries (milliseconds for 100,000);
        further ones cost the same whatever the bank holds.

        Args:
          trajectory_id: source of what is written in the fork.
        """
        return self._with_table(self._table.fork(), trajectory_id)

    def next_task(self, trajectory_id: str, *, turns: int | None = None) -> Self:
        """Makes an independent bank that goes on from these entries in a new task.

        Steps count from the start of a task, so those of these entries are put back by
        ``turns``: -1 is the last turn of this task. Ages and the order of eviction stay
        right, the log starts anew, and entries keep their source. Costs O(entries).

        With ``config.tombstone_turns``, tombstones last touched longer ago are dropped
        once they are a quarter of all entries; ids change then, see ``compact``.

        Args:
          trajectory_id: source of what is written in the new task.
          turns: how many turns this task took; up to the last one logged if None.

        Raises:
          ValueError: the log holds a later turn than ``turns`` allows.
        """
        # Turns count from 0, so n turns end with turn n - 1.
        logged = 1 + max((record.turn for record in self.log), default=-1)
        turns = logged if turns is None else turns
        most = arguments.LAST_TURN
        turns = arguments.integer("next_task: turns", turns, logged, most)
        bank = self._with_table(self._table.before(turns), trajectory_id)
        retention.drop_if_many(bank, self.config.tombstone_turns)
        return bank

    def compact(self, turns: int = 0) -> dict[int, int]:
        """Drops old tombstones, so that a bank does not grow with all it ever held.

        As in ``next_task`` steps are put back and the log starts anew. An id is a
        place, so the entries that stay get new ids in the same order.

        Args:
          turns: tombstones that were written or recalled in so many turns before stay.

        Returns:
          Old id -> new id of every entry that stayed.
        """
        turns = arguments.integer("compact: turns", turns, 0)
        return retention.compact(self, turns)

    def purge(self, ids) -> PurgeResult:
        """Erases entries for good: title, text and embedding, in memory and on disk.

        So are those that took over their text in a merge, or gave it to them. The ids
        stay, without a text. The log, which holds what was written, asked and answered,
        starts anew as in ``next_task``, and the bank is saved wherever it was loaded
        from or saved to. What was copied before stays: forks, trajectories, backups.

        Args:
          ids: of any entries, active or not.

        Raises:
          TypeError, ValueError: they are no ids of this bank; nothing is changed.
          BankConflictError, OSError: erased here, and not in the directory named.
        """
        ids = gates.plain_ids("purge", ids)
        if unknown := [i for i in ids if not self._table.holds(i)]:
            raise ValueError(
                f"purge: expected ids below {len(self._table)}, got {unknown}"
            )
        result = retention.purge(self, ids)
        persist.save_again(self)
        return result

    def at(self, step: int) -> Self:
        """Makes an independent bank as this one was after a turn.

        The log is applied up to its first record of a later turn: one pass over it,
        without embedding. Texts and vectors are shared; the index is built when the
        past bank is first searched.

        Args:
          step: the turn; -1 gives the bank at the start.
        """
        step = arguments.integer("at: step", step, -arguments.LAST_TURN)
        past = self.start()
        for record in self.log:
            if record.turn > step:
                break
            adds = record.outcome in _MAKES_ENTRY
            past._change(
                record, self._table[record.entry_ids[0]].embedding if adds else None
            )
        return past

    def start(self) -> Self:
        """Makes an independent bank as this one was before its log began."""
        table = self._make_table(self._initial, self._initial_count)
        return self._with_table(table, self.trajectory_id)

    def apply(self, record: OpRecord, embedding: np.ndarray | None = None) -> None:
        """Does what a record says and logs it: the one way in which a bank changes.

        Args:
          record: what to do; its outcome is taken as it is.
          embedding: float32 [dim], unit norm, of the entry that the record makes;
            embedded here if None.

        Raises:
          ValueError: the record does not fit the bank; nothing is changed.
        """
        if embedding is not None:
            dim = self.embedder.dim
            embedding = checked_rows([embedding], 1, dim, "Bank.apply")[0]
        self._change(record, embedding)

    def save(self, directory, *, replace: bool = False) -> None:
        """Writes the bank to one directory, in place of the bank that was there.

        It refuses if another process has saved there since this bank was loaded.

        Args:
          directory: new, empty, or holding a saved bank; errors: see ``persist.save``.
          replace: replaces any bank that is there.
        """
        persist.save(self, directory, replace)

    @classmethod
    def load(cls, directory, embedder: Embedder, **options) -> Bank:
        """Reads a saved bank, its log included; see ``persist.load``, also for errors.

        Args:
          directory: where ``save`` wrote it.
          embedder: of the same name and width as the saved bank's.
          **options: ``judge`` and ``summarise``, as in the constructor, and ``config``:
            settings to go on with in place of those that it was saved with.
        """
        return persist.load(cls, directory, embedder, **options)

    def check_valid(self) -> None:
        """Raises AssertionError naming the first broken invariant."""
        check_bank(self, self._table)

    def _start(self, table: EntryTable) -> None:
        """Begins an empty log at the entries of a fresh table."""
        self._table = table
        self._initial, self._initial_count = table.base, table.active_count
        self.log: list[OpRecord] = []
        self._accepted = self._merged = 0

    def _make_table(
        self, entries: Iterable[Entry], active_count: int | None = None
    ) -> EntryTable:
        return EntryTable(
            tuple(entries),
            dim=self.embedder.dim,
            ann_threshold=self.config.ann_threshold,
            active_count=active_count,
        )

    def _with_table(self, table: EntryTable, trajectory_id: str) -> Self:
        """Makes a bank of the same rules that starts from a fresh table."""
        twin = object.__new__(type(self))
        # Rules, embedder and gates are shared: faster than building them again.
        twin.__dict__.update(self.__dict__)
        twin._saved = dict(self._saved)
        twin.trajectory_id = arguments.text("Bank: trajectory_id", trajectory_id)
        twin._start(table)
        return twin

    def _change(self, record: OpRecord, embedding: np.ndarray | None = None) -> None:
        """Does what ``apply`` does, for a checked embedding that nobody else holds."""
        adds = record.outcome in _MAKES_ENTRY
        if adds and embedding is None:
            embedding = self._embed([full_text(record.title, record.stored)])[0]
        self._table.apply(record, embedding, self.trajectory_id)
        self.log.append(record)
        if adds and record.kind == OpKind.WRITE:
            self._accepted += 1
            self._merged += record.outcome == OpOutcome.MERGED

    def _log_refused(self, draft: OpRecord, error: OpError | None) -> bool:
        """Logs an op that is not run, for an error or with memory off; True then."""
        if not error and self.config.enabled:
            return False
        outcome = OpOutcome.ERROR if error else OpOutcome.DISABLED
        self.log.append(dataclasses.replace(draft, outcome=outcome, error=error))
        return True

    def _search(self, query: str, n: int) -> tuple[list[int], np.ndarray]:
        if not len(self):
            return [], np.empty(0, np.float32)
        return self._table.index.search(self._embed([query])[0], n)

    def _rank(self, ids: list[int], similarities: np.ndarray, k: int) -> list[int]:
        if len(ids) < 2:
            return list(range(len(ids)))
        vectors = np.stack([self._table[i].embedding for i in ids])
        return mmr(similarities, vectors, k=k, mmr_lambda=self.config.mmr_lambda)

    def _embed(self, texts: list[str]) -> np.ndarray:
        where = f"embedder {self.embedder.name!r}"
        return checked_rows(
            self.embedder.embed(texts), len(texts), self.embedder.dim, where
        )
