"""What went wrong in so many words: errors in the newest trajectories of a run."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections import Counter
from collections.abc import Mapping

MOST = 256  # trajectories that are read
LONGEST = 80  # characters of an error that tell one from another
SHOWN = 2


@dataclasses.dataclass(frozen=True)
class Complaints:
    """How often each error stands in one file of trajectories.

    failures: why trajectories failed; ops: errors of memory operations.
    """

    file: str = ""
    trajectories: int = 0
    failures: Mapping[str, int] = dataclasses.field(default_factory=dict)
    ops: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def told(self, counts: Mapping[str, int]) -> str:
        """The most frequent of them in a sentence, "" for none."""
        most = Counter(counts).most_common(SHOWN)
        if not most:
            return ""
        each = ", ".join(f"{text!r} {count} times" for text, count in most)
        return f" In {self.file} most often: {each}."


def read_complaints(folder: pathlib.Path) -> Complaints:
    """Of the newest training step that was kept; nothing where none can be read."""
    files = sorted(folder.glob("step_*.jsonl"))
    if not files:
        return Complaints()
    failures, ops, number = Counter(), Counter(), 0
    try:
        with files[-1].open(encoding="utf-8", errors="replace") as lines:
            for line, _ in zip(lines, range(MOST), strict=False):
                number += _count(line, failures, ops)
    except OSError:
        return Complaints()
    return Complaints(f"trajectories/{files[-1].name}", number, failures, ops)


def _count(line: str, failures: Counter, ops: Counter) -> bool:
    try:
        made = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(made, dict):
        return False
    if made.get("failure"):
        failures[str(made["failure"])[:LONGEST]] += 1
    listed = made.get("ops")
    for op in listed if isinstance(listed, list) else ():
        if isinstance(op, dict) and op.get("error"):
            ops[str(op["error"])[:LONGEST]] += 1
    return True
