"""The invariants of a bank, stated once."""

from __future__ import annotations

import numpy as np

from mempo_jax.memory.entry import Entry, Reason, Status
from mempo_jax.memory.ops import OpOutcome


def check_bank(bank, table) -> None:
    """Raises AssertionError naming the first invariant that ``bank`` breaks."""
    entries = bank.entries
    for place, entry in enumerate(entries):
        _require(entry.id == place, f"entry at {place} has id {entry.id}")
        _check_entry(entry, entries, bank.embedder.dim)
    active = [entry.id for entry in entries if entry.status == Status.ACTIVE]
    _require(len(bank) == len(active), f"{len(active)} active, counted {len(bank)}")
    _require(
        sorted(table.index.ids()) == active, "the index does not hold the active ids"
    )
    capacity = bank.config.capacity
    _require(not capacity or len(active) <= capacity, f"over the cap of {capacity}")
    _check_log(bank, entries)


def _check_entry(entry: Entry, entries: list[Entry], dim: int) -> None:
    where = f"entry {entry.id}: "
    vector = entry.embedding
    _require(
        vector.shape == (dim,) and vector.dtype == np.float32, where + "embedding type"
    )
    _require(abs(float(vector @ vector) - 1) < 1e-3, where + "embedding norm is not 1")
    _require(bool(entry.text.strip()), where + "empty text")
    _require(entry.step_accessed >= entry.step_created, where + "accessed before made")
    merged = entry.status == Status.MERGED
    _require(merged == (entry.merged_into >= 0), where + "merged_into against status")
    if merged:
        _require(
            entry.id < entry.merged_into < len(entries)
            and entry.id in entries[entry.merged_into].parents,
            where + f"not a parent of {entry.merged_into}, into which it was merged",
        )
    for parent in entry.parents:
        _require(
            0 <= parent < entry.id and entries[parent].merged_into == entry.id,
            where + f"parent {parent} was not merged into it",
        )
    allowed = {
        Status.ACTIVE: {Reason.NONE},
        Status.MERGED: {Reason.NONE, Reason.SUPERSEDED},
        Status.DELETED: {Reason.POLICY, Reason.EVICTED},
    }
    _require(
        entry.reason in allowed[entry.status],
        where + f"{entry.status} for reason {entry.reason!r}",
    )


def _check_log(bank, entries: list[Entry]) -> None:
    made, recalled = 0, 0
    for record in bank.log:
        if record.outcome in (OpOutcome.NEW, OpOutcome.MERGED):
            made += 1
        if record.outcome == OpOutcome.RECALLED:
            recalled += len(record.entry_ids)
            cap = bank.config.retrieval_top_k
            _require(len(record.entry_ids) <= cap, "a recall went over its cap")
        if record.error is None:
            _require(
                all(0 <= i < len(entries) for i in record.entry_ids),
                f"turn {record.turn}: the log names an entry that is not there",
            )
    start = len(bank.initial_entries)
    _require(start + made == len(entries), "entries that the log does not explain")
    # A merged entry takes over the accesses of its parents: count living ends only.
    ends = sum(e.access_count for e in entries if e.status != Status.MERGED)
    before = sum(
        e.access_count for e in bank.initial_entries if e.status != Status.MERGED
    )
    _require(ends == before + recalled, "access counts that the log does not explain")


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise AssertionError(f"bank is not valid: {problem}")
