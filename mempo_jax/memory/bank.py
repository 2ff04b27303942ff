"""The memory of one trajectory: what the policy writes, recalls, merges, deletes."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable

import numpy as np

from mempo_jax.memory import arguments, gates, persist
from mempo_jax.memory.config import BankConfig
from mempo_jax.memory.embedding import Embedder
from mempo_jax.memory.entry import Entry, full_text
from mempo_jax.memory.history import BankHistory
from mempo_jax.memory.ops import OpError, OpKind, OpOutcome, OpRecord
from mempo_jax.memory.rerank import mmr
from mempo_jax.memory.results import (
    DeleteResult,
    Hit,
    MergeResult,
    WriteResult,
)

_RATE_WARNING = 0.30
_RATE_LEAST_WRITES = 20  # accepted writes before the merge rate means anything


class Bank(BankHistory):
    """Entries, their index and the op log of one trajectory.

    Every change is an ``OpRecord`` that is applied and logged. Faults of the policy
    come back as outcome ``error``; only faults of the caller raise (TypeError,
    ValueError), and so do faults of the embedder, the judge and ``summarise``: then
    nothing has changed. A step is a turn index of this task, from 0. It may go
    backwards; the log keeps the order in which ops ran.
    """

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


def _plain_title(title: str | None) -> str | None:
    """One line without outer blanks: titles are shown in a list; None if empty."""
    return " ".join((title or "").split()) or None
