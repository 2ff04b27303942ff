"""What ``multi_qa`` asks and searches, wherever it comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Passage:
    """A titled paragraph, in sentences; the unit that a search returns."""

    title: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


@dataclasses.dataclass(frozen=True)
class Fact:
    """A sentence that supports an answer, and the title of its passage."""

    title: str
    sentence: str


@dataclasses.dataclass(frozen=True)
class Record:
    """A question with its answer and the sentences that support it, in order.

    kind: how it is to be answered, in the words of its source ("bridge", "two_hop").
    queries: what a reader who knows the way would search for, one a hop; empty where
    nobody knows.
    """

    id: str
    question: str
    answer: str
    support: tuple[Fact, ...]
    kind: str
    queries: tuple[str, ...] = ()


class RecordSource(Protocol):
    """Questions in *shelves*: a shelf is what one search tool is built over.

    A small source is one shelf. A large one has many, so that no more than a shelf has
    to be in memory; a task never leaves its shelf.
    """

    def shelves(self, split: str) -> int:
        """Number of shelves of a split."""
        ...

    def numbers(self, split: str, shelf: int) -> Sequence[int]:
        """Numbers of the records of a split that stand on a shelf."""
        ...

    def record(self, split: str, number: int) -> Record: ...

    def passages(self, split: str, shelf: int) -> list[Passage]:
        """All passages of a shelf, each once."""
        ...

    def find(self, question: str) -> Record | None:
        """The record with this question, None where there is none."""
        ...


def share_of(digest: int, validation: float, test: float) -> str:
    """The split of what has this 32-bit ``digest``, by shares of validation and test.

    The same thing always falls into the same split, whatever else there is.
    """
    place = digest / 2**32
    if place < test:
        return "test"
    return "validation" if place < test + validation else "train"
