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

from mempo_jax.report.markup import count
from mempo_jax.report.run_files import Lines, RecordedTrajectory, read_record

STEP = re.compile(r"step_(\d+)$")
HELD_OUT = {  # files of held-out tasks, in order: the policy, and how it was decoded
    "cold_start_greedy": ("cold start", "greedy"),
    "cold_start_sampled": ("cold start", "sampled"),
    "trained_greedy": ("trained", "greedy"),
    "trained_sampled": ("trained", "sampled"),
}
HELD_OUT_SHARE = 0.2  # of the trajectories, at most
MOST_KEY = 100  # characters of a link


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs of one task, to be compared.

    Attributes:
      step: the training step that drew them; None for a held-out task.
      task: its id.
      members: as their files have them.
    """

    step: int | None
    task: str
    members: tuple[RecordedTrajectory, ...]

    @property
    def where(self) -> str:
        """The step in words."""
        return "held-out" if self.step is None else f"step {self.step}"

    @property
    def spread(self) -> float:
        """Largest less smallest reward."""
        totals = [m.total for m in self.members if m.total is not None]
        return max(totals) - min(totals) if totals else 0.0

    @property
    def ordered(self) -> list[RecordedTrajectory]:
        """The members of a training group by reward, the best first; the runs of a
        held-out task in the order of their files."""
        if self.step is None:
            return list(self.members)
        return sorted(self.members, key=_falling_reward)

    def name(self, member: RecordedTrajectory) -> str:
        """Names a member within its group.

        Args:
          member: one of the members.

        Returns:
          Its number; of a held-out task, the policy and how it was sampled.
        """
        if self.step is not None:
            return f"#{member.sample}"
        return ", ".join(HELD_OUT[member.source])

    @property
    def by_policy(self) -> dict[str, list[RecordedTrajectory]]:
        """The ordered members by the policy that acted; "" in a training step."""
        members: dict[str, list[RecordedTrajectory]] = {}
        for each in self.ordered:
            policy = "" if self.step is not None else HELD_OUT[each.source][0]
            members.setdefault(policy, []).append(each)
        return members

    @property
    def key(self) -> str:
        """A name for links, the same on every page of the run that shows the group."""
        return re.sub(r"[^A-Za-z0-9]+", "-", f"{self.where} {self.task}")[:MOST_KEY]


@dataclasses.dataclass(frozen=True)
class Selection:
    """What a page shows of the recorded trajectories.

    Attributes:
      groups: in the order of their steps, held-out tasks last.
      recorded: trajectories that can be read; in files that were not read, the lines
        that look like one.
      step_files: files of training steps.
      step_files_shown: those of them that the groups come from.
      unreadable: lines that are no trajectory.
      unreadable_files: what has the name of a file of trajectories and is none, such as
        a directory.
    """

    groups: tuple[Group, ...]
    recorded: int
    step_files: int
    step_files_shown: int
    unreadable: int
    unreadable_files: int

    @property
    def shown(self) -> int:
        """Trajectories of all groups."""
        return sum(len(group.members) for group in self.groups)

    @property
    def size(self) -> str:
        """How many of the recorded trajectories are shown, in one line."""
        parts = [
            f"{self.shown:,} of {self.recorded:,} recorded trajectories, in "
            f"{count(len(self.groups), 'group')}"
        ]
        if self.step_files:
            parts.append(f"from {self.step_files_shown} of {self.step_files} steps")
        more = " --trajectories=N shows more." if self.shown < self.recorded else ""
        return f"{' '.join(parts)}.{more}{self.losses}"

    @property
    def losses(self) -> str:
        """What could not be read, as a sentence after another; "" for nothing."""
        counted = ((self.unreadable, "line"), (self.unreadable_files, "file"))
        lost = " and ".join(count(amount, noun) for amount, noun in counted if amount)
        return f" {lost} could not be read." if lost else ""


def select_groups(folder: pathlib.Path, most: int) -> Selection:
    """Chooses the groups that a page shows.

    Args:
      folder: of the files of trajectories; may be missing.
      most: trajectories at most; groups are whole, so one group may be more.

    Returns:
      The groups, and how much was left out.

    Raises:
      OSError: a file cannot be read.
    """
    named = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
    files = [file for file in named if file.is_file()]
    steps = sorted(
        ((int(name[1]), file) for file in files if (name := STEP.match(file.stem))),
    )
    held_out = [f for name in HELD_OUT for f in files if f.stem == name]
    reader = _Reader()
    share = int(most * HELD_OUT_SHARE) if steps else most
    tasks = reader.tasks(held_out, share)
    left = most - sum(len(group.members) for group in tasks)
    groups, files_read = reader.steps(steps, left)
    return Selection(
        groups=(*groups, *tasks),
        recorded=sum(reader.recorded(file) for file in files),
        step_files=len(steps),
        step_files_shown=files_read,
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
        each = max(1, most // len(files))
        by_task: dict[str, list[RecordedTrajectory]] = {}
        for file in files:
            for record in self._records(file, each):
                by_task.setdefault(record.task, []).append(record)
        return [Group(None, task, tuple(runs)) for task, runs in by_task.items()]

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
            drawn = last if is_last else self._groups(*files[at])
            first = sorted(range(len(drawn)), key=lambda n: not drawn[n].spread)[:own]
            groups += [drawn[n] for n in sorted(first)]
        while len(groups) > 1 and sum(len(g.members) for g in groups) > most:
            groups.pop()
        return groups, len({group.step for group in groups})

    def _groups(self, step: int, file: pathlib.Path) -> list[Group]:
        records = self._records(file, None)
        return [
            Group(step, task, tuple(members))
            for task, members in itertools.groupby(records, key=lambda r: r.task)
        ]

    def _records(
        self, file: pathlib.Path, most: int | None
    ) -> list[RecordedTrajectory]:
        lines, read, wrong = Lines(file), [], 0
        for value in lines:
            record = read_record(file.stem, value)
            if record is None:
                wrong += 1
            else:
                read.append(record)
            if most is not None and len(read) >= most:
                break
        else:
            self._read[file] = len(read)
        self.unreadable += lines.unreadable + wrong
        return read


def _falling_reward(record: RecordedTrajectory) -> tuple[float, int]:
    return -(float("-inf") if record.total is None else record.total), record.sample


def _spread(number: int, places: int) -> list[int]:
    """``places`` of ``number`` positions, at equal distances, both ends among them."""
    if places == 1:
        return [number - 1]
    return [round(n * (number - 1) / (places - 1)) for n in range(places)]


def _count(file: pathlib.Path) -> int:
    """Lines that look whole; a long run has more than a page should wait for."""
    with file.open("rb") as lines:
        stripped = map(bytes.strip, lines)
        return sum(s.startswith(b"{") and s.endswith(b"}") for s in stripped)
