"""What a run left behind, read with patience: it may still be running, or half dead.

Only ``metrics.jsonl`` is read as a whole; of trajectories those of one step. Nothing is
written, and no lock is taken.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mempo_jax.doctor.columns import Columns
from mempo_jax.doctor.complaints import Complaints, read_complaints
from mempo_jax.doctor.table import Table
from mempo_jax.settings import ConfigError, flatten

METRICS, SUMMARY = "metrics.jsonl", "summary.json"


@dataclasses.dataclass(frozen=True)
class Record:
    """One run.

    Attributes:
      table: the metrics.
      config: fields by dotted name; empty where there is no config.json.
      summary: summary.json, empty before a run's end.
      cold_start: evaluation_cold_start.json, empty before it was made.
      machine: versions and devices that it was last started on, from machines.json;
        empty for older runs.
      broken_lines: lines of the metrics that are no JSON object with a step, a last one
        that is cut off left out.
      cut_off: whether the last line is.
      repeated_steps: rows that a later row of the same step replaced, or that stood
        out of order.
      idle_s: seconds since the metrics were last written, None without any.
      complaints: errors in the newest trajectories.
      starting: whether a cold start is under way or was left there.
      unread: files beside the metrics that are there and could not be read, each with
        what is wrong with it; their fields are empty.
    """

    table: Table
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    cold_start: Mapping[str, Any]
    machine: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    complaints: Complaints = dataclasses.field(default_factory=Complaints)
    broken_lines: int = 0
    cut_off: bool = False
    repeated_steps: int = 0
    idle_s: float | None = None
    starting: bool = False
    unread: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def field(self, name: str) -> Any:
        """A field of the config by dotted name; None where it is not known."""
        return self.config.get(name)

    def number(self, name: str) -> float | None:
        """The same where it is a number."""
        value = self.config.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number else None


def sampled_success(evaluation: Any) -> tuple[float, float, float] | None:
    """Mean of the sampled success of an evaluation, and the ends of its interval, which
    are the mean where it has none; None where it has no mean."""
    found = _mapping(_mapping(evaluation).get("success_sampled"))
    interval = found.get("ci95")
    ends = interval if isinstance(interval, list) and len(interval) == 2 else [None] * 2
    mean, low, high = (
        value if type(value) in (int, float) and abs(value) < math.inf else None
        for value in (found.get("mean"), *ends)
    )
    if mean is None:
        return None
    return mean, mean if low is None else low, mean if high is None else high


def read(workdir: str | pathlib.Path, option: str = "--workdir") -> Record:
    """Reads the directory of a run, without those files beside the metrics that cannot
    be read.

    Args:
      workdir: the directory.
      option: what named it, for errors.

    Raises:
      ConfigError: it is none, or its metrics cannot be read; says which.
    """
    place = pathlib.Path(workdir)
    metrics = place / METRICS
    config = place / "config.json"
    if not metrics.is_file() and not config.is_file():
        raise ConfigError(
            f"{option}={place}: expected the directory of a run, found neither "
            f"config.json nor {METRICS} there; see experiments.train"
        )
    parts: dict[str, Any] = {"table": Table(np.zeros(0, np.int64), {})}
    if metrics.is_file():
        parts |= _read_metrics(metrics)
        parts["idle_s"] = max(0.0, time.time() - metrics.stat().st_mtime)
    unread: dict[str, str] = {}
    return Record(
        config=_read_object(config, unread, flatten),
        summary=_read_object(place / SUMMARY, unread),
        cold_start=_read_object(place / "evaluation_cold_start.json", unread),
        machine=_read_object(place / "machines.json", unread, _last_machine),
        complaints=read_complaints(place / "trajectories"),
        starting=not (place / "cold_start" / "config.json").is_file(),
        unread=unread,
        **parts,
    )


def _read_object(
    file: pathlib.Path,
    unread: dict[str, str],
    take: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> dict[str, Any]:
    """What ``take`` makes of the object in a file; empty where there is none.

    A file that is there and holds none is noted in ``unread``: the metrics say most of
    what is to be said, and the run may have died while it wrote this one.
    """
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(value, dict):
            return take(value)
        unread[file.name] = f"expected a JSON object, got {json.dumps(value):.40}"
    except (OSError, ValueError) as error:
        unread[file.name] = f"expected a JSON object: {error}"
    except RecursionError:
        unread[file.name] = "expected a JSON object, found too many levels of nesting"
    return {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _last_machine(noted: Mapping[str, Any]) -> dict[str, Any]:
    machines = noted.get("machines")
    last = machines[-1] if isinstance(machines, list) and machines else {}
    return last if isinstance(last, dict) else {}


def _read_metrics(file: pathlib.Path) -> dict[str, Any]:
    """Columns from lines, one line at a time: the file may be larger than memory."""
    columns, broken, cut_off = Columns(), 0, False
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                row = _row(line)
                cut_off = row is None and not line.endswith("\n")
                if row is None:
                    broken += bool(line.strip()) and not cut_off
                    continue
                columns.add(row)
    except OSError as error:
        raise ConfigError(f"{file}: {error}") from error
    number, table = len(columns), columns.table()
    return {
        "table": table,
        "broken_lines": broken,
        "cut_off": cut_off,
        "repeated_steps": number - len(table),
    }


def _row(line: str) -> dict[str, Any] | None:
    """The object in a line, None where there is none that has a step."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = row.get("step") if isinstance(row, dict) else None
    fits = isinstance(step, int) and abs(step) < 2**62
    return row if fits else None
