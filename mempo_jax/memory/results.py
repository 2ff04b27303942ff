"""What the methods of a bank give back."""

from __future__ import annotations

import dataclasses

from mempo_jax.memory.entry import Entry


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """One recalled entry, as it stands after the recall, and its cosine similarity."""

    entry: Entry
    similarity: float


@dataclasses.dataclass(frozen=True, slots=True)
class WriteResult:
    """outcome new, merged, duplicate, error or disabled; entry_id -1 if none.

    similarity is to the nearest active entry, 0 where there was none.
    """

    outcome: str
    entry_id: int
    similarity: float
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class MergeResult:
    """outcome merged, error or disabled; entry_id of the new entry, -1 if none."""

    outcome: str
    entry_id: int
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DeleteResult:
    """outcome deleted, error or disabled."""

    outcome: str
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What the policy sees unasked: how many memories, titles of the newest."""

    active: int
    titles: tuple[str, ...]
