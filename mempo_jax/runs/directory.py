"""The directory of a run, read without locks: the run may go on, or have been killed.

Only ``metrics.jsonl`` must be readable. What is wrong with other files is noted.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Mapping
from typing import Any

from mempo_jax.runs.metrics import read_metrics
from mempo_jax.runs.records import ErrorCounts, count_errors
from mempo_jax.runs.table import Table
from mempo_jax.settings import ConfigError, flatten, migrated

CONFIG, METRICS, SUMMARY = "config.json", "metrics.jsonl", "summary.json"
MACHINES, TRAJECTORIES = "machines.json", "trajectories"
COLD_START, COLD_START_EVALUATION = "cold_start", "evaluation_cold_start.json"


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """One run, as far as its directory can be read.

    Attributes:
      table: the metrics.
      config: fields by dotted name; empty if there is no config.json.
      summary: summary.json; empty before the run has ended.
      cold_start: evaluation_cold_start.json; empty before that evaluation.
      machine: versions and devices of the last start, from machines.json; empty for
        older runs.
      errors: error messages in the newest trajectories.
      broken_lines: lines of the metrics that hold no JSON object with a step, without a
        last line that is cut off.
      cut_off: whether the last line is cut off.
      repeated_steps: rows that a later row of the same step replaced.
      idle_s: seconds since the metrics were last written; None without any.
      starting: whether a cold start is under way, or was left in the middle.
      unread: files beside the metrics that are there and cannot be read, with what is
        wrong with each; their fields are empty.
    """

    table: Table
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    cold_start: Mapping[str, Any]
    machine: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    errors: ErrorCounts = dataclasses.field(default_factory=ErrorCounts)
    broken_lines: int = 0
    cut_off: bool = False
    repeated_steps: int = 0
    idle_s: float | None = None
    starting: bool = False
    unread: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def field(self, name: str) -> Any:
        """Value of a field of the config.

        Args:
          name: dotted, as ``train.steps``.

        Returns:
          The value; None if it is not known.
        """
        return self.config.get(name)

    def number(self, name: str) -> float | None:
        """Value of a field of the config that should be a number.

        Args:
          name: dotted, as ``train.steps``.

        Returns:
          The number; None if the value is none or is not known.
        """
        value = self.config.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number else None


def read_run(workdir: str | pathlib.Path, option: str = "--workdir") -> RunRecord:
    """Reads the directory of a run, without the files that cannot be read.

    Args:
      workdir: the directory.
      option: the command line option that named it, for errors.

    Returns:
      What was found there.

    Raises:
      ConfigError: it is not the directory of a run, its metrics cannot be read, or a
        newer version of mempo_jax wrote it.
    """
    place = pathlib.Path(workdir)
    file = place / METRICS
    if not file.is_file() and not (place / CONFIG).is_file():
        raise ConfigError(
            f"{option}={place}: expected the directory of a run, found neither "
            f"{CONFIG} nor {METRICS} there; see experiments.train"
        )
    try:
        metrics = read_metrics(file)
        written = file.stat().st_mtime if file.is_file() else None
    except OSError as error:
        raise ConfigError(f"{file}: {error}") from error
    unread: dict[str, str] = {}
    return RunRecord(
        **metrics._asdict(),
        config=read_config(place, unread),
        summary=read_object(place / SUMMARY, unread) or {},
        cold_start=read_object(place / COLD_START_EVALUATION, unread) or {},
        machine=_last_machine(read_object(place / MACHINES, unread) or {}),
        errors=count_errors(place / TRAJECTORIES),
        idle_s=None if written is None else max(0.0, time.time() - written),
        starting=not (place / COLD_START / CONFIG).is_file(),
        unread=unread,
    )


def read_config(
    place: pathlib.Path, unread: dict[str, str] | None = None
) -> dict[str, Any]:
    """Reads the config of a run.

    Args:
      place: the run's directory.
      unread: gets an entry if config.json is there and cannot be read.

    Returns:
      Fields by dotted name; empty if there is no config that can be read.

    Raises:
      ConfigError: a newer version of mempo_jax saved it.
    """
    try:
        saved = read_object(place / CONFIG, unread) or {}
        return flatten(migrated(saved, place / CONFIG))
    except RecursionError:
        _note(unread, CONFIG, ", found too many levels of nesting")
        return {}


def read_object(
    file: pathlib.Path, unread: dict[str, str] | None = None
) -> dict[str, Any] | None:
    """Reads a file that holds one JSON object.

    Args:
      file: the file.
      unread: gets the file's name and what is wrong with it, if the file is there and
        holds no object: the run may have been killed while it wrote this file.

    Returns:
      The object; None if there is none.
    """
    if not file.is_file():
        return None
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        _note(unread, file.name, f": {error}")
        return None
    except RecursionError:
        _note(unread, file.name, ", found too many levels of nesting")
        return None
    if isinstance(value, dict):
        return value
    _note(unread, file.name, f", got {json.dumps(value):.40}")
    return None


def sampled_success(evaluation: Any) -> tuple[float, float, float] | None:
    """Sampled success of an evaluation.

    Args:
      evaluation: what an evaluation file or a half of summary.json holds.

    Returns:
      Mean, lower and upper end of its interval, which are the mean if there is no
      interval; None if there is no mean.
    """
    success = evaluation.get("success_sampled") if _is_object(evaluation) else None
    if not _is_object(success):
        return None
    interval = success.get("ci95")
    ends = interval if isinstance(interval, list) and len(interval) == 2 else [None] * 2
    mean, low, high = (
        value if type(value) in (int, float) and abs(value) < math.inf else None
        for value in (success.get("mean"), *ends)
    )
    if mean is None:
        return None
    return mean, mean if low is None else low, mean if high is None else high


def _note(unread: dict[str, str] | None, name: str, problem: str) -> None:
    if unread is not None:
        unread[name] = f"expected a JSON object{problem}"


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _last_machine(noted: Mapping[str, Any]) -> dict[str, Any]:
    machines = noted.get("machines")
    last = machines[-1] if isinstance(machines, list) and machines else {}
    return last if isinstance(last, dict) else {}
