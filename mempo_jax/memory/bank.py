"""The memory of one trajectory: what the policy writes, recalls, merges, deletes."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable

import numpy as np

from mempo_jax.memory import gates, persist
from mempo_jax.memory.config import BankConfig
from mempo_jax.memory.embedding import Embedder
from mempo_jax.memory.entry import Entry, full_text
from mempo_jax.memory.judge import Judge, make_judge
from mempo_jax.memory.ops import OpError, OpKind, OpOutcome, OpRecord
from mempo_jax.memory.rerank import mmr
from mempo_jax.memory.results import (
    DeleteResult,
    Hit,
    MergeResult,
    WriteResult,
)
from mempo_jax.memory.view import BankView

_RATE_WARNING = 0.30
_RATE_LEAST_WRITES = 20  # accepted writes before the merge rate means anything
_MADE = (OpOutcome.NEW, OpOutcome.MERGED)


class Bank(BankView):
    """Entries, their index and the op log of one trajectory.

    Every change is an ``OpRecord`` that is applied and logged. Faults of the policy
    come back as outcome ``error``; only faults of the caller raise.
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
        """
        super().__init__(config, embedder, trajectory_id)
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
        """Bulk build: one active entry a text, ids in order, no gates, an empty log.

        ``callables``: judge and summarise, as in the constructor. Raises ValueError for
        an empty or over-long text, or for more texts than the cap.
        """
        texts = list(texts)
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
        bank._reset(
            Entry(i, None, text, row, 0, 0, 0, trajectory_id)
            for i, (text, row) in enumerate(zip(texts, rows))
        )
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
            step,
            OpKind.WRITE,
            "",
            token_span=token_span,
            text=text,
            title=title or None,
        )
        error = self._gates.text_error(text, title)
        if self._refused(draft, error):
            return WriteResult(self.log[-1].outcome, -1, 0.0, error)
        vector = self._embed([full_text(draft.title, text)])[0]
        record = self._gates.write(draft, self._table, vector)
        same = (record.title, record.stored) == (draft.title, text)
        self.apply(record, vector if same else None)
        self._warn_of_merges()
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
        """At most ``min(k, retrieval_top_k)`` hits in rank order, each now accessed.

        error: a fault of the op that does not keep it from running (``k_over_cap``).

        Raises ValueError for ``k`` below 1.
        """
        cap = self.config.retrieval_top_k
        if k is not None and k < 1:
            raise ValueError(f"recall: expected k >= 1 or None, got {k!r}")
        k = cap if k is None else min(k, cap)
        draft = OpRecord(
            step, OpKind.RECALL, "", token_span=token_span, text=query, k=k
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
        self.apply(record)
        return [Hit(self._table[i], similarity) for i, similarity in chosen]

    def merge(
        self, ids, *, text: str | None = None, step: int, token_span=None
    ) -> MergeResult:
        """One new entry of two or more; without a text, of their texts joined."""
        ids, text = gates.plain_ids(ids), (text or "").strip()
        draft = OpRecord(step, OpKind.MERGE, "", ids, token_span=token_span, text=text)
        error = gates.ids_error(self._table, ids, least=2)
        if not error and text:
            error = self._gates.text_error(text, None)
        if self._refused(draft, error):
            return MergeResult(self.log[-1].outcome, -1, error)
        record = self._gates.merge(draft, self._table, ids, text or None, False)
        self.apply(record)
        return MergeResult(record.outcome, record.entry_ids[0])

    def delete(self, ids, *, step: int, token_span=None) -> DeleteResult:
        """Turns entries into tombstones, all or none of them."""
        ids = gates.plain_ids(ids)
        draft = OpRecord(step, OpKind.DELETE, "", ids, token_span=token_span)
        error = gates.ids_error(self._table, ids, least=1)
        if not self._refused(draft, error):
            self.apply(dataclasses.replace(draft, outcome=OpOutcome.DELETED))
        return DeleteResult(self.log[-1].outcome, error)

    def note(
        self, kind: str, *, step: int, error=None, token_span=None, text: str = ""
    ) -> None:
        """Logs an op that does not touch the bank: malformed, skip, act, answer."""
        outcome = OpOutcome.ERROR if error else OpOutcome.NOTED
        self.log.append(
            OpRecord(step, kind, outcome, error=error, token_span=token_span, text=text)
        )

    def fork(self, trajectory_id: str) -> Bank:
        """An independent bank that starts from these entries, with an empty log."""
        twin = self._sibling(trajectory_id)
        twin._table = self._table.fork()
        twin._initial = twin._table.base
        return twin

    def at(self, step: int) -> Bank:
        """An independent bank as this one stood after turn ``step`` (-1: at the start).

        The log is applied up to its first record of a later turn.
        """
        past = self.start()
        for record in self.log:
            if record.turn > step:
                break
            made = record.outcome in _MADE
            past.apply(
                record, self._table[record.entry_ids[0]].embedding if made else None
            )
        return past

    def start(self) -> Bank:
        """An independent bank as this one stood before its log began."""
        past = self._sibling(self.trajectory_id)
        past._reset(self._initial)
        return past

    def apply(self, record: OpRecord, embedding: np.ndarray | None = None) -> None:
        """Changes the bank as ``record`` says and logs it: the one way it changes.

        ``embedding`` float32 [dim] of the entry that it makes; embedded here if None.
        Raises ValueError, and changes nothing, if the record does not fit the bank.
        """
        if record.outcome in _MADE and embedding is None:
            embedding = self._embed([full_text(record.title, record.stored)])[0]
        self._table.apply(record, embedding, self.trajectory_id)
        self.log.append(record)
        if record.kind == OpKind.WRITE and record.outcome in _MADE:
            self._accepted += 1
            self._merged += record.outcome == OpOutcome.MERGED

    def _sibling(self, trajectory_id: str) -> Bank:
        rules = self._gates
        return type(self)(
            self.config,
            self.embedder,
            trajectory_id,
            judge=rules.judge,
            summarise=rules.summarise,
        )

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
