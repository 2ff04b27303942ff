"""Checkpoints of a cold start: a state, and where its draws stand."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from mempo_jax.rollout.segments import Segment
from mempo_jax.settings import ConfigError
from mempo_jax.training.checkpoint import Checkpoints
from mempo_jax.types import TrainState


class Draws(Protocol):
    """Random draws that can be gone on with; ``position`` is what JSON can hold."""

    position: dict[str, Any]


class Kept:
    """The checkpoints of one cold start.

    every: steps from one to the next. fixed: by name, what must be the same where it is
    gone on with.
    """

    def __init__(
        self, directory: pathlib.Path, keep: int, every: int, fixed: Mapping[str, str]
    ) -> None:
        self._saved = Checkpoints(directory, keep=keep)
        self._every, self._fixed = every, dict(fixed)

    def restore(self, fresh: TrainState, draws: Draws) -> tuple[TrainState, int]:
        """The newest state and its step, with ``draws`` set to what follows; ``fresh``
        and 0 where there is none.

        Raises:
          ConfigError: it was trained on other demonstrations, or other weights.
          CheckpointError: none can be read.
        """
        target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), fresh
        )
        found = self._saved.restore(target)
        if found is None:
            return fresh, 0
        for what, own in self._fixed.items():
            if found.metadata.get(what) != own:
                raise ConfigError(
                    f"{self._saved.directory}: the cold start began with other weights "
                    f"or demonstrations ({what}), see config.policy.path and config."
                    "train.demonstrations_path; put them back, or use another --workdir"
                )
        draws.position = found.metadata["position"]
        return found.state, int(found.metadata["step"])

    def save_if_due(self, done: int, last: int, state: TrainState, draws: Draws):
        """Starts to save behind every ``every``-th step, and behind the ``last``."""
        if done % self._every == 0 or done == last:
            self._save(done, state, draws.position)

    def save_now(self, done: int, state: TrainState, position: dict[str, Any]) -> None:
        """Returns when the state behind ``done`` steps is on disk."""
        self._save(done, state, position)
        self.wait()

    def wait(self) -> None:
        """Returns when the save in progress is on disk."""
        self._saved.wait()

    def close(self) -> None:
        """Finishes the save in progress."""
        self._saved.close()

    def _save(self, done: int, state: TrainState, position: dict[str, Any]) -> None:
        if done:
            record = {"step": done, "position": position} | self._fixed
            self._saved.save(state, record)


def digest(segments: Sequence[Segment]) -> str:
    """SHA-256 over the tokens of demonstrations, and which of them are trained on."""
    made = hashlib.sha256()
    for segment in segments:
        made.update(np.asarray(segment.tokens, np.int64).tobytes())
        made.update(np.asarray(segment.is_action, bool).tobytes())
    return made.hexdigest()
