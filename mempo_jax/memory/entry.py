"""One memory: what it says, where it came from, what became of it.

What the methods of a bank give back.
"""

from __future__ import annotations

import dataclasses
import enum

import numpy as np

_SHOWN_CHARS = 160  # of a text, where an entry is shown on one line


class Status(enum.StrEnum):
    """ACTIVE entries are recalled; the others are tombstones, still readable."""

    ACTIVE = "active"
    MERGED = "merged"
    DELETED = "deleted"


class Reason(enum.StrEnum):
    """Why an entry is a tombstone; NONE for active and plainly merged entries."""

    NONE = ""
    POLICY = "policy"
    EVICTED = "evicted"
    SUPERSEDED = "superseded"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """An immutable version of one memory.

    id: unique in its bank, counting from 0. embedding: float32 [dim], unit norm.
    step_created, step_accessed: turn indices; below 0 in an earlier task, -1 being the
    turn before this task (see ``Bank.next_task``). source: id of the trajectory that
    wrote it. merged_into: id of the entry that replaced it, -1 for none. parents: ids
    of the entries merged into this one.
    """

    id: int
    title: str | None
    text: str
    embedding: np.ndarray
    step_created: int
    step_accessed: int
    access_count: int
    source: str
    status: Status = Status.ACTIVE
    reason: Reason = Reason.NONE
    merged_into: int = -1
    parents: tuple[int, ...] = ()

    def __str__(self) -> str:
        """One line: id, what became of it, how often it was recalled, what it says."""
        text = " ".join(full_text(self.title, self.text).split())
        if len(text) > _SHOWN_CHARS:
            text = f"{text[:_SHOWN_CHARS]}..."
        recalls = f"recalled {self.access_count}x"
        return f"{self.id:4}  {self._fate():18}  {recalls:14}  {text}"

    def _fate(self) -> str:
        if self.reason == Reason.SUPERSEDED:
            return f"superseded by {self.merged_into}"
        if self.status == Status.MERGED:
            return f"merged into {self.merged_into}"
        return str(self.reason if self.reason == Reason.EVICTED else self.status)

    def facts(self) -> tuple:
        """Everything but the embedding, in field order."""
        return (
            self.id,
            self.title,
            self.text,
            self.step_created,
            self.step_accessed,
            self.access_count,
            self.source,
            self.status,
            self.reason,
            self.merged_into,
            self.parents,
        )

    def __eq__(self, other) -> bool:
        """Bit-for-bit equality, embedding included."""
        if not isinstance(other, Entry):
            return NotImplemented
        return self.facts() == other.facts() and (
            self.embedding.tobytes() == other.embedding.tobytes()
        )

    def __hash__(self) -> int:
        return hash((self.id, self.text))

    def touched(self, step: int) -> Entry:
        """This entry after one more recall at turn ``step``."""
        return Entry(  # spelled out: several times faster than replace
            self.id,
            self.title,
            self.text,
            self.embedding,
            self.step_created,
            max(step, self.step_accessed),
            self.access_count + 1,
            self.source,
            self.status,
            self.reason,
            self.merged_into,
            self.parents,
        )

    def before(self, turns: int) -> Entry:
        """This entry with its steps ``turns`` earlier."""
        return dataclasses.replace(
            self,
            step_created=self.step_created - turns,
            step_accessed=self.step_accessed - turns,
        )

    def buried(self, status: Status, reason: Reason, merged_into: int = -1) -> Entry:
        """This entry as a tombstone."""
        return Entry(
            self.id,
            self.title,
            self.text,
            self.embedding,
            self.step_created,
            self.step_accessed,
            self.access_count,
            self.source,
            status,
            reason,
            merged_into,
            self.parents,
        )


def full_text(title: str | None, text: str) -> str:
    """What is embedded and judged: the title belongs to the statement."""
    return f"{title}: {text}" if title else text


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
