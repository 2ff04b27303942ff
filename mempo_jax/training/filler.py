"""Arrays of nothing, in the shapes of a run: what its programs are compiled on."""

from __future__ import annotations

import jax
import numpy as np

from mempo_jax.rollout.assemble import Shapes, assemble_trajectories
from mempo_jax.training.run_settings import RunSettings
from mempo_jax.types import Rows, Trajectories


def filler_facts(settings: RunSettings, shapes: Shapes) -> Trajectories:
    """The facts of a step's trajectories, none of them valid."""
    size = settings.sampling.group_size
    count = size * settings.sampling.tasks_per_step
    empty = assemble_trajectories([], 1, shapes)

    def grow(leaf: np.ndarray) -> np.ndarray:
        if leaf.shape[:1] == (1,):
            return np.zeros((count // size, size), leaf.dtype)
        return np.zeros((count, *leaf.shape[1:]), leaf.dtype)

    return jax.tree.map(grow, empty)


def filler_rows(count: int, length: int) -> Rows:
    """One micro-batch [count, length] without a token."""
    shape = (count, length)
    whole = np.zeros(shape, np.int32)
    no = np.zeros(shape, bool)
    return Rows(
        tokens=whole,
        token_mask=no,
        action_mask=no,
        behaviour_log_probs=np.zeros(shape, np.float32),
        turn_id=whole,
        op_id=whole - 1,
        trajectory_index=np.zeros(count, np.int32),
        valid=np.zeros(count, bool),
    )
