"""Op kinds, outcomes and errors; ops as they were parsed; records of the op log."""

from __future__ import annotations

import dataclasses
import enum


class OpKind(enum.StrEnum):
    """What an op does."""

    WRITE = "write"
    RECALL = "recall"
    MERGE = "merge"
    DELETE = "delete"
    ACT = "act"
    ANSWER = "answer"
    MALFORMED = "malformed"
    SKIP = "skip"
    REWRITE = "rewrite"


class OpOutcome(enum.StrEnum):
    """What came of an op."""

    NEW = "new"
    MERGED = "merged"
    DUPLICATE = "duplicate"
    RECALLED = "recalled"
    DELETED = "deleted"
    NOTED = "noted"
    ERROR = "error"
    DISABLED = "disabled"


class OpError(enum.StrEnum):
    """What is wrong with an op."""

    UNCLOSED_TAG = "unclosed_tag"
    STRAY_CLOSING_TAG = "stray_closing_tag"
    NESTED_TAG = "nested_tag"
    UNKNOWN_TAG = "unknown_tag"
    MISSING_ARGUMENT = "missing_argument"
    BAD_ARGUMENT = "bad_argument"
    K_OVER_CAP = "k_over_cap"
    EMPTY_CONTENT = "empty_content"
    UNKNOWN_ID = "unknown_id"
    INACTIVE_ID = "inactive_id"
    DUPLICATE_ID = "duplicate_id"
    TOO_MANY_OPS = "too_many_ops"
    TEXT_TOO_LONG = "text_too_long"


@dataclasses.dataclass(frozen=True, slots=True)
class Op:
    """One op as the policy wrote it.

    Attributes:
      kind: an ``OpKind``.
      args: parsed arguments (``title``, ``k``, ``ids``); a malformed op has ``tag``,
        the tag name that it tried.
      content: text between the tags, stripped.
      span: character range [start, end) in the text, tags included.
      error: an ``OpError`` or None; only a malformed op is not run (``k_over_cap`` is
        clamped and run).
      token_span: range [start, end) of the tokens that overlap the span, or None.
    """

    kind: str
    args: dict
    content: str
    span: tuple[int, int]
    error: str | None = None
    token_span: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class OpRecord:
    """One line of the op log; the log and the texts in it are all that a replay needs.

    Attributes:
      turn: turn index.
      kind: an ``OpKind``.
      outcome: an ``OpOutcome``.
      entry_ids: for a write or merge the resulting entry, then its parents; for a
        duplicate the existing entry; for a recall the hits in rank order; for a delete
        or an error the ids that the policy named.
      similarity: cosine, to the nearest active entry (write) or of the best hit
        (recall), else 0.
      error: an ``OpError`` or None.
      token_span: range [start, end) of the tokens of the op, or None.
      text: what the policy wrote.
      stored: text of the resulting entry, empty if there is none.
      title: title of the resulting entry.
      k: hits asked for (recall).
      supersedes: whether the parents were replaced and not joined.
      evicted: ids of entries that the cap evicted.
    """

    turn: int
    kind: str
    outcome: str
    entry_ids: tuple[int, ...] = ()
    similarity: float = 0.0
    error: str | None = None
    token_span: tuple[int, int] | None = None
    text: str = ""
    stored: str = ""
    title: str | None = None
    k: int = 0
    supersedes: bool = False
    evicted: tuple[int, ...] = ()

    def row(self) -> dict:
        """Returns the fields by name, as a line of a saved log has them."""
        # ``dataclasses.asdict`` copies deeply, which is slow.
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_row(cls, row: dict) -> OpRecord:
        """Returns the record of a line of a saved log.

        Args:
          row: as ``row`` gives it; JSON may have changed tuples into lists.
        """
        span = row["token_span"]
        tuples = {
            "entry_ids": tuple(row["entry_ids"]),
            "evicted": tuple(row["evicted"]),
            "token_span": None if span is None else tuple(span),
        }
        return cls(**{**row, **tuples})


_MESSAGES = {
    OpError.UNCLOSED_TAG: "<{tag}> was never closed.",
    OpError.STRAY_CLOSING_TAG: "</{tag}> closes nothing.",
    OpError.NESTED_TAG: "<{tag}> may not hold other tags.",
    OpError.UNKNOWN_TAG: "<{tag}> is no known tag.",
    OpError.MISSING_ARGUMENT: '<{tag}> needs ids="...".',
    OpError.BAD_ARGUMENT: "<{tag}> has an argument that cannot be read.",
    OpError.K_OVER_CAP: "k was too large and has been lowered.",
    OpError.EMPTY_CONTENT: "<{tag}> is empty.",
    OpError.UNKNOWN_ID: "No memory has such an id.",
    OpError.INACTIVE_ID: "That memory is no longer active.",
    OpError.DUPLICATE_ID: "An id is named twice.",
    OpError.TOO_MANY_OPS: "Too many actions in one turn; <{tag}> was ignored.",
    OpError.TEXT_TOO_LONG: "The text in <{tag}> is too long.",
}


def error_message(error: str, op: Op | None = None) -> str:
    """Says in a short sentence, for the policy, what was wrong with an op.

    Args:
      error: an ``OpError``.
      op: the op, for its tag name.

    Raises:
      ValueError: ``error`` is no ``OpError``.
    """
    tag = op.args.get("tag", op.kind) if op is not None else "tag"
    return _MESSAGES[OpError(error)].format(tag=tag)
