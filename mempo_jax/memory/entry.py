"""One memory: its text, where it came from and what became of it; results of ops."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

import numpy as np

_SHOWN_CHARS = 160  # an entry is shown on one line: a longer text is cut


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
    PURGED = "purged"  # by the owner of the bank: its text is gone for good


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """An immutable version of one memory.

    Attributes:
      id: unique in its bank, counting from 0.
      title: a short name on one line, or None.
      text: what it says.
      embedding: float32 [dim], unit norm.
      step_created, step_accessed: turn indices; below 0 in an earlier task, -1 being
        the turn before this task (see ``Bank.next_task``).
      access_count: how often it was recalled; a merged entry takes over its parents'.
      source: id of the trajectory that wrote it.
      status, reason: whether it is active, and if not, why. A purged entry has no text
        any more.
      merged_into: id of the entry that replaced it, -1 for none.
      parents: ids of the entries merged into this one.
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
        """One line: id, state, how often it was recalled, what it says."""
        text = " ".join(full_text(self.title, self.text).split())
        if len(text) > _SHOWN_CHARS:
            text = f"{text[:_SHOWN_CHARS]}..."
        if self.reason == Reason.PURGED:
            text = "(its text was erased)"
        recalls = f"recalled {self.access_count}x"
        return f"{self.id:4}  {self._fate():18}  {recalls:14}  {text}"

    def _fate(self) -> str:
        if self.reason == Reason.PURGED:
            return "purged"
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

    @classmethod
    def from_facts(cls, facts: Sequence, embedding: np.ndarray) -> Entry:
        """Returns the entry of some ``facts``.

        Args:
          facts: as ``facts`` gives them; JSON may have changed tuples into lists.
          embedding: float32 [dim], unit norm.
        """
        number, title, text, *middle, status, reason, into, parents = facts
        fate = Status(status), Reason(reason), into, tuple(parents)
        return cls(number, title, text, embedding, *middle, *fate)

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
        """Returns this entry after one more recall.

        Args:
          step: turn of the recall.
        """
        return Entry(  # spelled out, on each recall: faster than dataclasses.replace
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
        """Returns this entry with earlier steps.

        Args:
          turns: by how many turns.
        """
        return dataclasses.replace(
            self,
            step_created=self.step_created - turns,
            step_accessed=self.step_accessed - turns,
        )

    def buried(self, status: Status, reason: Reason, merged_into: int = -1) -> Entry:
        """Returns this entry as a tombstone.

        Args:
          status: merged or deleted.
          reason: why.
          merged_into: id of the entry that replaces it, -1 for none.
        """
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

    def purged(self) -> Entry:
        """Returns what stays of this entry once it is erased: its place and its ids.

        The embedding goes too, since words can be guessed from it.
        """
        blank = np.zeros_like(self.embedding)
        blank[:1] = 1.0  # of unit norm, as every embedding is
        blank.setflags(write=False)
        merged = self.status == Status.MERGED
        return dataclasses.replace(
            self,
            title=None,
            text="",
            embedding=blank,
            status=Status.MERGED if merged else Status.DELETED,
            reason=Reason.PURGED,
        )


def full_text(title: str | None, text: str) -> str:
    """Returns what is embedded and judged: the title is part of the statement.

    Args:
      title: may be None.
      text: text of the entry.
    """
    return f"{title}: {text}" if title else text


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """One recalled entry.

    Attributes:
      entry: as it is after the recall.
      similarity: cosine, to the query.
    """

    entry: Entry
    similarity: float


@dataclasses.dataclass(frozen=True, slots=True)
class WriteResult:
    """What came of a write.

    Attributes:
      outcome: new, merged, duplicate, error or disabled.
      entry_id: the entry that now says the text; -1 if none does.
      similarity: cosine, to the nearest active entry; 0 if there was none.
      error: an ``OpError`` or None.
    """

    outcome: str
    entry_id: int
    similarity: float
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class MergeResult:
    """What came of a merge.

    Attributes:
      outcome: merged, error or disabled.
      entry_id: id of the new entry, -1 if there is none.
      error: an ``OpError`` or None.
    """

    outcome: str
    entry_id: int
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DeleteResult:
    """What came of a delete.

    Attributes:
      outcome: deleted, error or disabled.
      error: an ``OpError`` or None.
    """

    outcome: str
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PurgeResult:
    """What came of a purge.

    Attributes:
      purged: ids of the entries that were erased, those asked for among them.
      repeated_in: ids of other entries in which the text or title of an erased one
        occurs; they are left as they are.
    """

    purged: tuple[int, ...]
    repeated_in: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What the policy sees without asking.

    Attributes:
      active: number of active entries.
      titles: titles of the newest, newest first.
    """

    active: int
    titles: tuple[str, ...]
