"""Reads bAbI story files: numbered sentences, questions with answer and evidence.

Format (Weston et al. 2015, "Towards AI-Complete Question Answering"): a line is
``N text``; the number returns to 1 at a new story. A question line is
``N question TAB answer TAB evidence``, evidence being numbers of earlier sentences. All
twenty tasks share it: an answer may be a list ("milk,football"), a path ("n,w"), a
count, yes, no or maybe. Only an answer that says there is nothing may lack evidence.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterator
from typing import BinaryIO

from mempo_jax.envs.babi_answers import NOTHING
from mempo_jax.settings import ConfigError


class DataError(ConfigError):
    """A data file that is missing or damaged; names file, line and expectation."""


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a story; ``answer`` is None for a statement."""

    text: str
    answer: str | None
    evidence: frozenset[int]  # positions in the story, 0 is the first line


@dataclasses.dataclass(frozen=True)
class Story:
    task: int
    lines: tuple[Line, ...]


def find_file(data_dir: str, task: int, split: str) -> pathlib.Path:
    """The one file ``qa{task}_*_{split}.txt`` of a folder.

    Raises:
      DataError: no such folder, no such file, or more than one.
    """
    folder = pathlib.Path(data_dir)
    where = "set config.env.data_dir to the folder of the bAbI files"
    if not data_dir or not folder.is_dir():
        raise DataError(
            f"config.env.data_dir: expected a folder with bAbI files, got {data_dir!r},"
            f" which is not one; {where}"
        )
    found = sorted(folder.glob(f"qa{task}_*_{split}.txt"))
    if len(found) != 1:
        names = [p.name for p in found] or "none"
        raise DataError(
            f"{folder}: expected one file qa{task}_*_{split}.txt, found {names}; "
            f"{where} or change config.env.babi.tasks"
        )
    return found[0]


def read_stories(path: pathlib.Path, task: int) -> Iterator[Story]:
    """Streams the stories of one file.

    Raises:
      DataError: a file that cannot be opened, or a line that does not fit, with file
        name and line number.
    """
    lines: list[Line] = []
    with _open(path) as file:
        for at, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            place = f"{path}, line {at}"
            number, line = _parse_line(_decode(raw, place), place)
            if number == 1 and lines:
                yield Story(task, tuple(lines))
                lines = []
            if number != len(lines) + 1:
                raise DataError(
                    f"{place}: expected line number {len(lines) + 1} or 1 (a new "
                    f"story), got {number}"
                )
            _check_evidence(line, lines, place)
            lines.append(line)
    if lines:
        yield Story(task, tuple(lines))


def _open(path: pathlib.Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, got {error}") from error


def _decode(raw: bytes, place: str) -> str:
    try:
        return raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: expected UTF-8 text, got {error}") from error


def _parse_line(text: str, place: str) -> tuple[int, Line]:
    head = re.match(r"(\d{1,9}) +(?=\S)", text)
    if head is None:
        raise DataError(
            f"{place}: expected 'NUMBER sentence', got {text[:60]!r}; one line of a "
            "story each, questions with TAB answer TAB evidence"
        )
    number, rest = int(head.group(1)), text[head.end() :]
    fields = rest.split("\t")
    if len(fields) == 1 and "?" not in rest:
        return number, Line(rest.strip(), None, frozenset())
    if len(fields) != 3 or not fields[0].strip() or not fields[1].strip():
        raise DataError(
            f"{place}: expected 'question TAB answer TAB evidence numbers', got "
            f"{len(fields)} fields: {text[:60]!r}"
        )
    words = fields[2].split()
    if not words and fields[1].strip().lower() in NOTHING:
        return number, Line(fields[0].strip(), fields[1].strip(), frozenset())
    if not words or not all(w.isascii() and w.isdigit() and len(w) < 10 for w in words):
        raise DataError(
            f"{place}: expected evidence as numbers of earlier lines, got "
            f"{fields[2][:40]!r}"
        )
    evidence = frozenset(int(w) - 1 for w in words)
    return number, Line(fields[0].strip(), fields[1].strip(), evidence)


def _check_evidence(line: Line, earlier: list[Line], place: str) -> None:
    for at in sorted(line.evidence):
        if not 0 <= at < len(earlier) or earlier[at].answer is not None:
            raise DataError(
                f"{place}: expected evidence among the statements before it (1 to "
                f"{len(earlier)}), got {at + 1}"
            )
