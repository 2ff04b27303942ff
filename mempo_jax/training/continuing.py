"""What a run in training keeps, to be continued from: its checkpoints.

A checkpoint holds the state behind a whole step: parameters, optimiser, the number of
the step, which keys all that comes (tasks, samples, order of minibatches), counters,
the config, and which other weights belong to it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from mempo_jax.settings import ConfigError
from mempo_jax.training.checkpoint import Checkpoints
from mempo_jax.training.loop import Trainer
from mempo_jax.training.metrics import read_metrics
from mempo_jax.training.rundir import RunDir, identity


class Kept:
    """The checkpoints of a run: the last ones, and the best by one of its metrics.

    A checkpoint's score is the mean of the metric ``train.checkpoint_best`` over the
    ``train.checkpoint_every`` steps before it. One that a stop left between has none,
    so that a continued run finds the same best as an uninterrupted one.
    """

    def __init__(self, trainer: Trainer, config: Mapping[str, Any], place: RunDir):
        self._trainer, self._config, self._place = trainer, dict(config), place
        train = trainer.settings.train
        self._every, self._last = train.checkpoint_every, train.steps
        self._metric = train.checkpoint_best
        self._values: dict[int, float] = {}
        self._fixed = _identities(trainer)
        self._saved = Checkpoints(place.checkpoints, keep=train.checkpoints_kept)

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Finishes the save in progress at the end."""
        with contextlib.closing(self._saved):
            yield

    def restore(self) -> int:
        """Puts the newest checkpoint into the trainer; returns its step, 0 without one.

        Raises:
          ConfigError: it belongs to other weights, or lies behind the run's end.
          CheckpointError: none can be read.
        """
        found = self._saved.restore(self._target())
        if found is None:
            return 0
        for what, own in self._fixed.items():
            if found.metadata.get(what) != own:
                raise ConfigError(
                    f"{self._saved.directory}: its checkpoints were trained with "
                    f"another {what} policy; cold_start/ or config.policy.ref_path has "
                    "changed"
                )
        first = int(found.metadata["step"])
        if first > self._last:
            raise ConfigError(
                f"config.train.steps: expected at least {first}, the step that "
                f"--workdir={self._place.path} stands at, got {self._last}; use "
                "another --workdir"
            )
        self._trainer.state = found.state
        self._trainer.in_a_row |= found.metadata.get("in_a_row", {})
        self._remember(first)
        return first

    def note(self, step: int, figures: Mapping[str, Any]) -> None:
        """Takes in the figures of a step.

        Raises:
          ConfigError: ``train.checkpoint_best`` is none of them.
        """
        if not self._metric:
            return
        if self._metric not in figures:
            raise ConfigError(
                "config.train.checkpoint_best: expected a metric of this run, such as "
                f"'success' or 'reward', got {self._metric!r}; metrics.jsonl has all"
            )
        value = figures[self._metric]
        if value is not None and math.isfinite(value):
            self._values[step] = float(value)

    def save_if_due(self, done: int) -> None:
        """Starts to save behind every ``checkpoint_every``-th step, and the last."""
        if done % self._every == 0 or done == self._last:
            self._save(done, self._score(done))

    def save_now(self, done: int) -> None:
        """Returns when the state behind ``done`` steps is on disk.

        Raises:
          CheckpointError: it cannot be written.
        """
        self._save(done, None)
        self._saved.wait()

    def put_back_best(self) -> int | None:
        """Puts the best checkpoint into the trainer; its step, None without one.

        Raises:
          CheckpointError: it is damaged.
        """
        best = self._saved.best() if self._metric else None
        if best is not None:
            target = self._target()
            self._trainer.state = None  # or two states would lie in memory
            self._trainer.state = self._saved.read(best, target).state
        return best

    def _save(self, done: int, score: float | None) -> None:
        record = {"step": done, "config": self._config, "score": score}
        record["in_a_row"] = dict(self._trainer.in_a_row)
        self._saved.save(self._trainer.state, record | self._fixed)

    def _score(self, done: int) -> float | None:
        begin = (done - 1) // self._every * self._every
        values = [self._values[n] for n in range(begin, done) if n in self._values]
        return sum(values) / len(values) if values else None

    def _remember(self, first: int) -> None:
        """Reads the metric of steps since the last regular checkpoint again."""
        file = self._place.path / "metrics.jsonl"
        begin = first // self._every * self._every
        if not self._metric or begin == first or not file.is_file():
            return
        for row in read_metrics(file):
            if begin <= row["step"] < first:
                self.note(row["step"], row)

    def _target(self) -> Any:
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
            self._trainer.state,
        )


def _identities(trainer: Trainer) -> dict[str, str]:
    """What a checkpoint must be continued with: reference policy, and base weights
    where they are frozen and not the reference."""
    fixed = {"reference": identity(trainer.reference)}
    policy = trainer.settings.policy
    if policy.lora.rank and policy.ref_path:
        fixed["base"] = identity(trainer.frozen)
    return fixed
