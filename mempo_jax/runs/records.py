"""Trajectories as a run recorded them, and the errors among them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MAX_COUNTED = 256  # trajectories in which errors are counted: one file may be large
MAX_ERROR_CHARS = 80  # errors that begin alike differ in a path or an id after that


class JsonLines:
    """The JSON objects of a file with one object a line, read one at a time.

    Attributes:
      broken: non-empty lines so far that hold no accepted object, without a last line
        that is cut off.
      cut_off: whether the last line so far is one that ends in the middle, as a killed
        process leaves it.
    """

    def __init__(
        self,
        path: pathlib.Path,
        accept: Callable[[dict[str, Any]], bool] = lambda value: True,
    ) -> None:
        """Opens nothing yet.

        Args:
          path: the file.
          accept: which objects count; the others are broken lines.
        """
        self._path = path
        self._accept = accept
        self.broken = 0
        self.cut_off = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Reads the file from its beginning.

        Yields:
          The accepted objects in order.

        Raises:
          OSError: the file cannot be read.
        """
        self.broken, self.cut_off = 0, False
        with self._path.open("rb") as file:
            for line in file:
                value = _parse_object(line)
                if value is not None and self._accept(value):
                    self.cut_off = False
                    yield value
                    continue
                self.cut_off = not line.endswith(b"\n")
                self.broken += bool(line.strip()) and not self.cut_off


@dataclasses.dataclass(frozen=True)
class ErrorCounts:
    """How often each error message occurs in one file of trajectories.

    Attributes:
      file: the file, as seen from the run's directory; "" if none could be read.
      trajectories: how many were read.
      failures: why trajectories failed.
      ops: errors of memory operations.
    """

    file: str = ""
    trajectories: int = 0
    failures: Mapping[str, int] = dataclasses.field(default_factory=dict)
    ops: Mapping[str, int] = dataclasses.field(default_factory=dict)


def read_trajectories(
    path: pathlib.Path, limit: int | None = None
) -> Iterator[dict[str, Any]]:
    """Reads a file of trajectories, without the lines that cannot be read.

    Args:
      path: the file, ``trajectories/NAME.jsonl`` of a run.
      limit: the largest number of trajectories; None for all.

    Returns:
      An iterator over the trajectories, as ``Trajectory.to_json`` wrote them.

    Raises:
      OSError: while iterating, if the file cannot be read.
    """
    return itertools.islice(JsonLines(path), limit)


def trajectory_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Files with trajectories of training steps.

    Args:
      folder: ``trajectories/`` of a run, which may be missing.

    Returns:
      The files in the order of their steps.
    """
    return sorted(folder.glob("step_*.jsonl"))


def count_errors(folder: pathlib.Path) -> ErrorCounts:
    """Counts the error messages in the newest trajectory file of a run.

    Args:
      folder: ``trajectories/`` of the run, which may be missing.

    Returns:
      The counts; empty if there is no file or it cannot be read.
    """
    files = trajectory_files(folder)
    if not files:
        return ErrorCounts()
    failures: Counter[str] = Counter()
    ops: Counter[str] = Counter()
    number = 0
    try:
        for trajectory in read_trajectories(files[-1], MAX_COUNTED):
            number += 1
            if trajectory.get("failure"):
                failures[str(trajectory["failure"])[:MAX_ERROR_CHARS]] += 1
            listed = trajectory.get("ops")
            for op in listed if isinstance(listed, list) else ():
                if isinstance(op, dict) and op.get("error"):
                    ops[str(op["error"])[:MAX_ERROR_CHARS]] += 1
    except OSError:
        return ErrorCounts()
    return ErrorCounts(f"{folder.name}/{files[-1].name}", number, failures, ops)


def _parse_object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
