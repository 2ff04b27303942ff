"""Metrics of a run: one JSON object per step, and the same numbers in TensorBoard.

The JSON lines are the record that tests, reports and the doctor read; TensorBoard and
Weights & Biases are views of it.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from tensorboardX import SummaryWriter

from mempo_jax.runs.atomic import write_text
from mempo_jax.settings import ConfigError

TENSORBOARD = "tensorboard"  # the directory of events


class MetricsWriter:
    """Appends to ``DIR/NAME.jsonl`` and to the views that are turned on.

    Attributes:
      path: of the JSON lines.
    """

    def __init__(
        self,
        directory: str | pathlib.Path,
        *,
        resume_step: int | None,
        tensorboard: bool,
        wandb_project: str,
        config: Mapping[str, Any],
        name: str = "metrics",
    ):
        """Opens the record; lines after the resumed step are cut off.

        Args:
          directory: the run's directory.
          resume_step: the last step whose line is kept, None for a new run (the file
            starts empty).
          tensorboard: whether to write events to ``DIR/tensorboard``.
          wandb_project: Weights & Biases project, "" for none.
          config: the run's config, for Weights & Biases.
          name: the record's file name without ``.jsonl``.

        Raises:
          ConfigError: ``wandb_project`` is given and wandb is not installed.
        """
        directory = pathlib.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{name}.jsonl"
        self._last_step = -1 if resume_step is None else resume_step
        _truncate(self.path, self._last_step)
        self._wandb = _start_wandb(wandb_project, directory, config)
        self._events = None
        if tensorboard:
            # TensorBoard then hides what an earlier process wrote of later steps.
            self._events = SummaryWriter(
                str(directory / TENSORBOARD), purge_step=self._last_step + 1
            )
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Records one step: its numbers, by name.

        Args:
          step: the optimiser step, larger than any recorded one.
          values: scalars (Python, numpy or jax; None for "not measured"). A value
            that is not finite is recorded as null and left out of the views.

        Raises:
          ValueError: the step was recorded before.
          TypeError: a value is no scalar number.
        """
        if step <= self._last_step:
            raise ValueError(
                f"{self.path}: step {step} comes after step {self._last_step}; each"
                " step is written once, in order"
            )
        row = {name: _number(name, value) for name, value in values.items()}
        row.pop("step", None)  # the argument counts
        self._file.write(json.dumps({"step": step} | row, allow_nan=False) + "\n")
        self._file.flush()  # a kill then costs no finished step
        self._last_step = step
        measured = {name: value for name, value in row.items() if value is not None}
        if self._events is not None:
            for name, value in measured.items():
                self._events.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(measured, step=step)

    def close(self) -> None:
        """Flushes and closes the record and its views; safe to call twice."""
        self._file.close()
        if self._events is not None:
            self._events.close()
            self._events = None
        if self._wandb is not None:
            self._wandb.finish()
            self._wandb = None

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metric_rows(path: str | pathlib.Path) -> list[dict[str, Any]]:
    """The record's rows in order; a last line cut off by a kill is left out.

    Args:
      path: of the JSON lines.
    """
    rows = []
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def check_wandb(project: str) -> None:
    """Checks that a Weights & Biases run could be started; starts none.

    Their server is not contacted if the run is not to be sent there
    (``WANDB_MODE=offline`` or ``disabled``).

    Args:
      project: of the config, "" for none.

    Raises:
      ConfigError: wandb is not installed, or nobody is logged in.
    """
    if not project:
        return
    wandb = _import_wandb(project)
    if wandb.setup().settings.mode in ("offline", "dryrun", "disabled"):
        return
    try:
        logged_in = wandb.login(verify=True)
        why = "no key is known"
    except Exception as error:  # no key, a refused one, no network: wandb's and others'
        logged_in, why = False, " ".join(str(error).split()) or type(error).__name__
    if not logged_in:
        raise ConfigError(
            f"config.log.wandb_project = {project!r}: expected a login at Weights & "
            f"Biases: {why}; run `wandb login`, set WANDB_API_KEY, or set "
            "WANDB_MODE=offline"
        )


def _truncate(path: pathlib.Path, last_step: int) -> None:
    """Keeps the rows up to ``last_step``; a kill leaves the old file or the new one."""
    if not path.exists():
        return
    rows = [row for row in read_metric_rows(path) if row["step"] <= last_step]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def _number(name: str, value: Any) -> int | float | None:
    """The value as a Python number; None for what JSON has no number for."""
    if value is None:
        return None
    array = np.asarray(value)
    # Text, objects, times and complex numbers; bfloat16's kind "V" is left to float().
    if array.size != 1 or array.dtype.kind in "SUOMmc":
        raise TypeError(f"metric {name}: expected one real number, got {value!r}")
    if array.dtype.kind in "biu":
        return int(array.item())
    number = float(array.item())
    return number if math.isfinite(number) else None


def _start_wandb(project: str, directory: pathlib.Path, config: Mapping[str, Any]):
    """A Weights & Biases run, None without a project."""
    if not project:
        return None
    wandb = _import_wandb(project)
    return wandb.init(project=project, dir=str(directory), config=dict(config))


def _import_wandb(project: str) -> Any:
    """The package, imported on use only, since it is not required."""
    try:
        import wandb
    except ImportError:
        raise ConfigError(
            f"a Weights & Biases project ({project!r}) is set but the package wandb is"
            " not installed: pip install 'mempo_jax[wandb]', or set it to ''"
        ) from None
    return wandb
