"""Which recorded trajectories a page shows: whole groups, spread over the run.

Files of training steps are taken at equal distances, the first and the last among them.
In each, groups whose rewards differ come first: they are what taught something. Of the
held-out tasks the first ones are shown, each with what the policy did before and after.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Sequence

from mempo_jax.report.records import Lines, Record, read_record

STEP = re.compile(r"step_(\d+)$")
HELD_OUT = {  # files of held-out tasks, in order, and how a task's runs are called
    "cold_start_greedy": "cold, greedy",
    "cold_start_sampled": "cold, sampled",
    "trained_greedy": "trained, greedy",
    "trained_sampled": "trained, sampled",
}
HELD_OUT_SHARE = 0.2  # of the trajectories, at most


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs of one task that stand beside each other; step None: a held-out task."""

    step: int | None
    task: str
    members: tuple[Record, ...]

    @property
    def spread(self) -> float:
        """Largest less smallest reward."""
        totals = [m.total for m in self.members if m.total is not None]
        return max(totals) - min(totals) if totals else 0.0


@dataclasses.dataclass(frozen=True)
class Chosen:
    """groups in order, held-out tasks last. recorded: trajectories that can be read, in
    files that were not looked into by the look of their lines. files: of steps, all and
    those looked into. unreadable: lines. unreadable_files: what is named like a file of
    trajectories and is none, as a directory."""

    groups: tuple[Group, ...]
    recorded: int
    step_files: int
    step_files_shown: int
    unreadable: int
    unreadable_files: int

    @property
    def shown(self) -> int:
        return sum(len(group.members) for group in self.groups)


def choose(folder: pathlib.Path, most: int) -> Chosen:
    """At most ``most`` trajectories of the folder, in whole groups; one group at least.

    Raises:
      OSError: a file cannot be read.
    """
    named = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
    files = [file for file in named if file.is_file()]
    steps = sorted(
        ((int(found[1]), file) for file in files if (found := STEP.match(file.stem))),
    )
    held_out = [f for name in HELD_OUT for f in files if f.stem == name]
    reader = _Reader()
    share = int(most * HELD_OUT_SHARE) if steps else most
    tasks = reader.tasks(held_out, share)
    left = most - sum(len(group.members) for group in tasks)
    groups, looked = reader.steps(steps, left)
    return Chosen(
        groups=(*groups, *tasks),
        recorded=sum(reader.recorded(file) for file in files),
        step_files=len(steps),
        step_files_shown=looked,
        unreadable=reader.unreadable,
        unreadable_files=len(named) - len(files),
    )


class _Reader:
    """Reads groups, and counts what it could not read."""

    def __init__(self) -> None:
        self.unreadable = 0
        self._read: dict[pathlib.Path, int] = {}  # records of files read to their end

    def recorded(self, file: pathlib.Path) -> int:
        """How many trajectories the file holds."""
        known = self._read.get(file)
        return _count(file) if known is None else known

    def tasks(self, files: Sequence[pathlib.Path], most: int) -> list[Group]:
        """The first held-out tasks, with the runs of each in all of the files."""
        if not files or not most:
            return []
        count = max(1, most // len(files))
        by_task: dict[str, list[Record]] = {}
        for file in files:
            for record in self._records(file, count):
                by_task.setdefault(record.task, []).append(record)
        return [Group(None, task, tuple(made)) for task, made in by_task.items()]

    def steps(
        self, files: Sequence[tuple[int, pathlib.Path]], most: int
    ) -> tuple[list[Group], int]:
        """Groups of steps, and how many of the files they come from."""
        if not files:
            return [], 0
        last = self._groups(*files[-1])
        size = max((len(group.members) for group in last), default=1)
        places = max(1, most // size)
        taken = _spread(len(files), min(len(files), places))
        groups: list[Group] = []
        for number, at in enumerate(taken):
            own = -(-(places - len(groups)) // (len(taken) - number))
            is_last = at == len(files) - 1
            made = last if is_last else self._groups(*files[at])
            first = sorted(range(len(made)), key=lambda n: not made[n].spread)[:own]
            groups += [made[n] for n in sorted(first)]
        while len(groups) > 1 and sum(len(g.members) for g in groups) > most:
            groups.pop()
        return groups, len({group.step for group in groups})

    def _groups(self, step: int, file: pathlib.Path) -> list[Group]:
        records = self._records(file, None)
        return [
            Group(step, task, tuple(made))
            for task, made in itertools.groupby(records, key=lambda r: r.task)
        ]

    def _records(self, file: pathlib.Path, most: int | None) -> list[Record]:
        lines, found, wrong = Lines(file), [], 0
        for value in lines:
            record = read_record(file.stem, value)
            if record is None:
                wrong += 1
            else:
                found.append(record)
            if most is not None and len(found) >= most:
                break
        else:
            self._read[file] = len(found)
        self.unreadable += lines.unreadable + wrong
        return found


def _spread(count: int, places: int) -> list[int]:
    """So many of ``count`` positions, at equal distances, both ends among them."""
    if places == 1:
        return [count - 1]
    return [round(n * (count - 1) / (places - 1)) for n in range(places)]


def _count(file: pathlib.Path) -> int:
    """Lines that look whole; a long run has more than a page should wait for."""
    with file.open("rb") as lines:
        stripped = map(bytes.strip, lines)
        return sum(s.startswith(b"{") and s.endswith(b"}") for s in stripped)
