"""Does a long run stay as it began: memory, handles, threads, speed, what it stores?

    python -m benchmarks.soak --folder=DIR [--what=train,agent] [--count=2000]
        [--plot=FILE.svg]

* train: so many steps of the ledger with dynamic sampling, by the whole product:
  metrics, trajectories and checkpoints are written as in any run. The learning rate
  falls to 0 in the first 200 steps, so that the work of a step does not depend on its
  number: a policy that goes on learning would write more or less, and hide or feign a
  slow leak.
* agent: so many tasks of one Agent with one bank, which is saved after each.

Each writes a row a step to DIR/NAME.jsonl: seconds by the clock and of the processor,
resident bytes, open handles, threads, programs compiled, and bytes on the disk. Then
it prints the first window after step 200 beside the last one. --plot draws the rows
that DIR holds.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks._tables import aligned

SETTLED = 200  # steps after which nothing may grow any more
WINDOW = 200  # steps of the two windows that are compared
DISK_EVERY = 50  # steps: to add up the sizes of thousands of files takes its time
Row = dict[str, Any]


def train(folder: pathlib.Path, count: int, **overrides: Any) -> list[Row]:
    """Trains for ``count`` steps.

    Args:
      folder: for the run and its rows; new or empty.
      count: steps.
      **overrides: fields of the config by dotted name, for a shorter form.
    """
    from mempo_jax.config import from_config
    from mempo_jax.configs import base
    from mempo_jax.training.run import run

    config = base.get_config()
    fields = {
        "train.steps": count,
        "train.decay_steps": SETTLED,
        "train.eval_tasks": 32,
        "credit.bonus_decay_steps": SETTLED,
        "sampling.tasks_per_step": 2,
        "sampling.slots": 16,
        "sampling.max_resample_rounds": 2,
    }
    config.update_from_flattened_dict(fields | overrides)
    plain = config.to_dict()
    rows = Rows(folder / "train.jsonl", folder / "run")

    def progress(stage: str, done: int, total: int, metrics: Mapping[str, Any]) -> None:
        if stage == "training":
            rows.note() if done else rows.begin()

    run(from_config(plain), plain, str(folder / "run"), progress)
    steps = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    for row, step in zip(rows.all, map(json.loads, steps), strict=True):
        row |= {name: step[name] for name in ("compilations", "seconds")}
        row["work"] = step["tokens_generated_per_s"] * step["seconds_sampling"]
    rows.write()
    return rows.all


def agent(folder: pathlib.Path, count: int, policy: pathlib.Path) -> list[Row]:
    """Runs ``count`` tasks of one Agent.

    Args:
      folder: for the bank and the rows; new or empty.
      count: tasks.
      policy: directory of the policy.
    """
    from mempo_jax import Agent
    from mempo_jax.training.step_metrics import CompilationCounter

    one = Agent.from_pretrained(policy, bank=folder / "bank")
    rows, counter = Rows(folder / "agent.jsonl", folder / "bank"), CompilationCounter()
    rows.begin()
    before = counter.count
    for index in range(count):
        trajectory = one.run(one.suite.task("train", index))
        entries = len(one.bank.entries)
        rows.note(
            compilations=counter.count - before,
            work=len(trajectory.turn_reward),
            entries=entries,
            tombstones=entries - len(one.bank),
            ops=len(one.bank.log),
        )
        before = counter.count
    rows.write()
    return rows.all


class Rows:
    """What is measured of each step."""

    def __init__(self, file: pathlib.Path, stored: pathlib.Path) -> None:
        """Measures nothing yet.

        Args:
          file: to write the rows to.
          stored: whose bytes on the disk are added up.
        """
        self.all: list[Row] = []
        self._file, self._stored = file, stored
        self._clock = self._processor = 0.0

    def begin(self) -> None:
        """Starts the clocks of the first step."""
        self._clock, self._processor = time.perf_counter(), time.process_time()

    def note(self, **more: Any) -> None:
        """Adds the row of a step that has just ended; the clocks start anew.

        Args:
          **more: fields that the caller knows.
        """
        clock, processor = time.perf_counter(), time.process_time()
        row = {
            "step": len(self.all),
            "clock_s": round(clock - self._clock, 5),
            "processor_s": round(processor - self._processor, 5),
            "resident": resident_bytes(),
            "handles": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
            "load": os.getloadavg()[0],
        } | more
        if len(self.all) % DISK_EVERY == DISK_EVERY - 1:
            row["disk"] = stored_bytes(self._stored)
        self.all.append(row)
        if len(self.all) % 50 == 0:  # to be looked at while it runs
            self.write()
            print(json.dumps(row), flush=True)
        self.begin()

    def write(self) -> None:
        """Writes all rows."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text("".join(json.dumps(row) + "\n" for row in self.all))


def resident_bytes() -> int:
    """Memory of this process that is not paged out."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def stored_bytes(folder: pathlib.Path) -> int:
    """Bytes of all files below a folder, but checkpoints and policies.

    They are kept in a fixed number, and one may be half written just now.
    """
    total = 0
    for root, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f not in ("checkpoints", "policy")]
        for name in files:
            try:
                total += os.path.getsize(os.path.join(root, name))
            except FileNotFoundError:  # replaced meanwhile
                continue
    return total


def growth(rows: Sequence[Row], settled: int = SETTLED, window: int = WINDOW) -> Row:
    """Compares the first window after ``settled`` with the last one.

    Args:
      rows: of one soak, in order.
      settled: steps that are left out.
      window: steps of a window; both must fit.

    Returns:
      By name: (first, last, last / first - 1); counts as they are. ``disk`` is bytes
      written a step, before and after the middle.
    """
    if len(rows) < settled + 2 * window:
        raise ValueError(
            f"growth: expected at least {settled + 2 * window} rows, got {len(rows)}"
        )
    first, last = rows[settled : settled + window], rows[-window:]
    changes: Row = {}
    for name in ("resident", "clock_s", "processor_s", "handles", "threads"):
        changes[name] = _change(*(median(rows, name) for rows in (first, last)))
    per_work = [
        sum(row["processor_s"] for row in part) / sum(row["work"] for row in part)
        for part in (first, last)
    ]
    changes["processor_s_per_work"] = _change(*per_work)
    changes["compilations"] = sum(row["compilations"] for row in rows[settled:])
    for name in ("disk", "entries", "tombstones", "ops"):
        known = [(row["step"], row[name]) for row in rows[settled:] if name in row]
        if len(known) > 2:
            middle = len(known) // 2
            changes[name] = _change(_slope(known[: middle + 1]), _slope(known[middle:]))
    return changes


def median(rows: Sequence[Row], name: str) -> float:
    """Middle value of a field."""
    return statistics.median(row[name] for row in rows)


def _slope(points: Sequence[tuple[int, float]]) -> float:
    (begin, low), (end, high) = points[0], points[-1]
    return (high - low) / (end - begin)


def _change(first: float, last: float) -> tuple[float, float, float]:
    return first, last, (last / first - 1 if first else last)


def table(name: str, changes: Row) -> str:
    """The growth as a text."""
    lines = [(name, "first window", "last window", "change")]
    for field, change in changes.items():
        if isinstance(change, tuple):
            first, last, share = change
            lines.append((field, f"{first:.6g}", f"{last:.6g}", f"{share:+.2%}"))
        else:
            lines.append((field, "", str(change), ""))
    return aligned(lines)


def plot(folder: pathlib.Path, file: pathlib.Path) -> None:
    """Draws the rows that a folder holds, one row of panels for each soak."""
    from mempo_jax.report.curves import Series, panel  # noqa: F401

    raise NotImplementedError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True, type=pathlib.Path)
    parser.add_argument("--what", default="train,agent")
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--policy", type=pathlib.Path, help="of the agent")
    parser.add_argument("--plot", type=pathlib.Path, help="an .svg file")
    args = parser.parse_args()
    names = [name for name in args.what.split(",") if name]
    if len(names) > 1:  # each in a process of its own: what one leaves is not counted
        for name in names:
            words = [*sys.argv[1:], f"--what={name}"]
            command = [sys.executable, "-m", "benchmarks.soak", *words]
            subprocess.run(command, check=True)
    elif names == ["train"]:
        train(args.folder, args.count)
    elif names == ["agent"]:
        agent(args.folder, args.count, args.policy or args.folder / "run" / "policy")
    for name in names if len(names) == 1 else ():
        rows = (args.folder / f"{name}.jsonl").read_text().splitlines()
        print(table(name, growth([json.loads(row) for row in rows])))
    if args.plot and len(names) != 1:
        plot(args.folder, args.plot)


if __name__ == "__main__":
    main()
