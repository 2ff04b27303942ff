"""What a run's directory holds, as far as a page shows it."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from mempo_jax.report import curves
from mempo_jax.report.choosing import Chosen, choose
from mempo_jax.report.records import Lines, read_object
from mempo_jax.runs import Table


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run's directory holds, as far as it can be read."""

    name: str
    config: Mapping[str, Any]
    metrics: Table
    unreadable: int
    summary: Mapping[str, Any] | None
    before: Mapping[str, Any] | None
    evaluation: Mapping[str, Any] | None
    chosen: Chosen


def read_run(path: pathlib.Path, most: int) -> Run | None:
    """Reads a run's directory; None where there is no run.

    Args:
      most: trajectories that the page shows.

    Raises:
      OSError: a file is there and cannot be read.
    """
    config, metrics = read_object(path / "config.json"), path / "metrics.jsonl"
    folder = path / "trajectories"
    if config is None and not metrics.is_file() and not folder.is_dir():
        return None
    lines = Lines(metrics)
    table = curves.by_step(lines if metrics.is_file() else ())
    return Run(
        name=path.resolve().name,
        config=config or {},
        metrics=table,
        unreadable=lines.unreadable,
        summary=read_object(path / "summary.json"),
        before=read_object(path / "evaluation_cold_start.json"),
        evaluation=read_object(path / "evaluation.json"),
        chosen=choose(folder, most),
    )


def status(run: Run) -> str:
    """How far the run has come, in one plain line."""
    planned = run.config.get("train", {})
    steps = planned.get("steps") if isinstance(planned, Mapping) else None
    done = int(run.metrics.steps[-1]) + 1 if len(run.metrics) else 0
    of = f" of {steps:,}" if type(steps) is int else ""
    told = f"{done:,}{of} training steps recorded"
    if run.summary is not None:
        return f"Ended: {told}."
    if done or run.before is not None:
        return f"Not ended: {told}. It is running, or was stopped."
    return "Not ended: no training step is recorded yet."
