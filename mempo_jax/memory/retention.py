"""What a bank does not keep: old tombstones, erased entries, those over a new cap.

All of it happens between two tasks: steps of the entries are put back, so that all are
below 0, and the log starts anew. An id is a place in the table; if tombstones are
dropped, the entries that stay get new ids in the same order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from mempo_jax.memory.bank_config import BankConfig
from mempo_jax.memory.embedding import Embedder
from mempo_jax.memory.entry import Entry, PurgeResult, Reason, Status, full_text
from mempo_jax.memory.lexical.statements import scoped

_DROPPED_SHARE = 0.25  # of all entries; then a next task drops old tombstones


def compact(bank, turns: int) -> dict[int, int]:
    """Drops the old tombstones of a bank; see ``Bank.compact``.

    Args:
      bank: changed.
      turns: tombstones that were touched in so many turns before stay.

    Returns:
      Old id -> new id of every entry that stayed.
    """
    entries = _between_tasks(bank)
    ids = kept_ids(entries, turns)
    bank._start(bank._make_table(own_vectors(renumbered(entries, ids))))
    return ids


def drop_if_many(bank, turns: int) -> None:
    """Drops the old tombstones of a bank that is about to begin a task.

    Only many at a time: ids change then, and the index is built anew.

    Args:
      bank: steps of its entries are below 0, its log is empty; changed.
      turns: as for ``compact``; 0 drops none.
    """
    if not turns or len(bank) > (1 - _DROPPED_SHARE) * len(bank._table):
        return
    entries = bank.entries
    ids = kept_ids(entries, turns)
    if len(entries) - len(ids) >= _DROPPED_SHARE * len(entries):
        bank._start(bank._make_table(own_vectors(renumbered(entries, ids))))


def purge(bank, ids: tuple[int, ...]) -> PurgeResult:
    """Erases entries from a bank in memory; see ``Bank.purge``.

    Args:
      bank: changed.
      ids: of any entries that it holds.
    """
    entries = _between_tasks(bank)
    purged = relatives(entries, ids)
    others = [entry for entry in entries if entry.id not in purged]
    words = [text for i in purged for text in (entries[i].text, entries[i].title or "")]
    repeats = saying(others, words)
    for i in purged:
        entries[i] = entries[i].purged()
    bank._start(bank._make_table(own_vectors(entries)))
    bank._gates.forget()
    return PurgeResult(tuple(sorted(purged)), repeats)


def with_settings(bank, config: BankConfig, embedder: Embedder):
    """Returns a bank as in its next task, under other settings.

    Args:
      bank: left as it is.
      config: the new settings.
      embedder: embeds all texts anew if it is not the bank's own.

    Returns:
      The bank, and in words what was changed; the same bank and nothing if all settings
      are its own.
    """
    changed = [
        f"{field.name} is {getattr(config, field.name)!r} and was "
        f"{getattr(bank.config, field.name)!r}"
        for field in dataclasses.fields(BankConfig)
        if getattr(config, field.name) != getattr(bank.config, field.name)
    ]
    before = bank.embedder
    new_model = (embedder.name, embedder.dim) != (before.name, before.dim)
    if new_model:
        changed.append(
            f"embedder is {embedder.name!r} and was {before.name!r}: {len(bank)} texts "
            "were embedded anew"
        )
    if not changed:
        return bank, []
    entries = _between_tasks(bank)
    bank = bank.fork(bank.trajectory_id)
    bank.config, bank.embedder = config, embedder
    bank._gates = dataclasses.replace(bank._gates, config=config)
    if new_model:
        texts = [full_text(entry.title, entry.text) for entry in entries]
        rows = bank._embed(texts) if texts else ()
        entries = [
            dataclasses.replace(entry, embedding=row)
            for entry, row in zip(entries, rows)
        ]
    bank._start(bank._make_table(entries))
    surplus = len(bank) - config.capacity if config.capacity else 0
    if surplus > 0:
        bank._table.evict(bank._table.first_to_go(surplus))
        bank._start(bank._make_table(bank._table))
        changed.append(f"{surplus} entries over the capacity were evicted")
    return bank, changed


class SavedModel(NamedTuple):
    """Stands for the embedder that a bank was saved with, and embeds nothing.

    Attributes:
      name, dim: of that embedder.
    """

    name: str
    dim: int

    def embed(self, texts: list[str]) -> np.ndarray:
        """Never asked: a bank with this embedder is not handed out.

        Args:
          texts: not read.
        """
        raise NotImplementedError(f"embedder {self.name!r} is not here")


def _between_tasks(bank) -> list[Entry]:
    """All entries of a bank, their steps put back by the turns of its task."""
    turns = 1 + max((record.turn for record in bank.log), default=-1)
    return [entry.before(turns) for entry in bank.entries]


def kept_ids(entries: list[Entry], turns: int) -> dict[int, int]:
    """Numbers the entries that stay when old tombstones are dropped.

    Args:
      entries: all entries in order of id, their steps below 0.
      turns: a tombstone goes if it was written and last recalled before so many turns.

    Returns:
      Old id -> new id, ascending.
    """
    dropped: set[int] = set()
    # From the youngest: what an entry was merged into is younger than itself, and
    # must not be dropped before it.
    for entry in reversed(entries):
        gone = entry.status != Status.ACTIVE and entry.step_accessed < -turns
        if gone or entry.merged_into in dropped:
            dropped.add(entry.id)
    stays = [entry.id for entry in entries if entry.id not in dropped]
    return {old: new for new, old in enumerate(stays)}


def renumbered(entries: Iterable[Entry], ids: dict[int, int]) -> list[Entry]:
    """Returns the entries that stay, under new ids.

    Args:
      entries: all entries in order of id.
      ids: old id -> new id of those that stay.
    """
    return [
        dataclasses.replace(
            entry,
            id=ids[entry.id],
            merged_into=ids.get(entry.merged_into, -1),
            parents=tuple(ids[parent] for parent in entry.parents if parent in ids),
        )
        for entry in entries
        if entry.id in ids
    ]


def own_vectors(entries: list[Entry]) -> list[Entry]:
    """Returns entries whose embeddings share memory with nothing else.

    Those of a loaded bank are views of one array, which would keep every row alive.

    Args:
      entries: of one bank, in order of id.
    """
    if not entries:
        return []
    vectors = np.stack([entry.embedding for entry in entries])
    vectors.setflags(write=False)
    return [
        dataclasses.replace(entry, embedding=row)
        for entry, row in zip(entries, vectors)
    ]


def relatives(entries: list[Entry], ids: Iterable[int]) -> set[int]:
    """Returns entries and all others that took over a text of theirs, or gave it.

    A merge puts the texts of its parents into the new entry. An update replaces a text
    that makes a single statement as a whole, so the old and the new value are not
    related; of several statements it may have left some as they were.

    Args:
      entries: all entries of a bank in order of id.
      ids: those to begin from.
    """

    def gave_its_text(parent: Entry) -> bool:
        several = parent.reason == Reason.SUPERSEDED and len(scoped(parent.text)) > 1
        return several or parent.reason == Reason.NONE

    found, queue = set(ids), list(ids)
    while queue:
        entry = entries[queue.pop()]
        near = [p for p in entry.parents if gave_its_text(entries[p])]
        if entry.merged_into >= 0 and gave_its_text(entry):
            near.append(entry.merged_into)
        queue += [each for each in near if each not in found]
        found.update(near)
    return found


def saying(entries: Iterable[Entry], texts: Iterable[str]) -> tuple[int, ...]:
    """Returns ids of the entries in which one of some texts occurs, word for word.

    Args:
      entries: to look through, titles included.
      texts: blanks and upper case do not count.
    """
    folded = {_folded(text) for text in texts} - {""}
    says = {e.id: _folded(full_text(e.title, e.text)) for e in entries}
    return tuple(i for i, text in says.items() if any(t in text for t in folded))


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()
