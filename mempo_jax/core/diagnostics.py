"""Small figures about a batch, as dicts of scalars; nothing here enters the loss."""

from __future__ import annotations

import jax.numpy as jnp

from mempo_jax.core.advantages import degenerate
from mempo_jax.core.masking import masked_mean, masked_sum
from mempo_jax.types import Array, Kind, OpTable, Outcome


def group_figures(
    reward: Array, task_score: Array, valid: Array, advantage: Array
) -> dict[str, Array]:
    """What the groups look like; all arrays [G, S].

    reward_std is the mean over groups of the population std inside a group;
    degenerate_share counts groups whose rewards are all equal, no_outcome_share those
    whose task scores are (both: of the groups that have a valid member);
    advantage_abs_mean is over valid members.
    """
    valid = jnp.asarray(valid, bool)
    live = valid.any(axis=-1)
    centred = jnp.asarray(reward) - masked_mean(reward, valid, -1, keepdims=True)
    variance = masked_mean(jnp.where(valid, centred, 0) ** 2, valid, -1)
    return {
        "reward_std": masked_mean(jnp.sqrt(variance), live),
        "degenerate_share": masked_mean(degenerate(reward, valid), live),
        "no_outcome_share": masked_mean(degenerate(task_score, valid), live),
        "advantage_abs_mean": masked_mean(jnp.abs(advantage), valid),
    }


def memory_sums(ops: OpTable, valid: Array) -> dict[str, Array]:
    """Sums over trajectories that show a memory which is filled and never read.

    In a write-only collapse writes go on, ``write_only`` (trajectories with a write and
    without a recall) nears their number, and recalls per write near 0.

    Args:
      ops: [N, K]; ops that had an error do not count.
      valid: bool [N], the trajectories that count.
    """
    done = valid[:, None] & (ops.outcome != Outcome.ERROR)
    writes = jnp.sum(done & (ops.kind == Kind.WRITE), axis=1)
    recalls = jnp.sum(done & (ops.kind == Kind.RECALL), axis=1)
    return {
        "writes": masked_sum(writes, valid),
        "recalls": masked_sum(recalls, valid),
        "write_only": jnp.sum((writes > 0) & (recalls == 0)),
    }
