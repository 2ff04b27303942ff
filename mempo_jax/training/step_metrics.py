"""Small figures about a batch, as dicts of scalars; nothing here enters the loss.

Counts what XLA compiles, so that a run can show that nothing recompiles.

Figures of one step that the run loop puts together from its parts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mempo_jax.config import ObjectiveConfig
from mempo_jax.core.advantages import degenerate
from mempo_jax.core.divergences import LOG_RATIO_BOUND
from mempo_jax.core.masking import masked_mean, masked_sum
from mempo_jax.distributed.placement import to_host
from mempo_jax.training.loss import advantages_of, counted
from mempo_jax.types import (
    MEMORY_KINDS,
    Array,
    Kind,
    OpTable,
    Outcome,
    Rows,
    Trajectories,
)


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


_EVENT = "/jax/core/compile/backend_compile_duration"


class CompilationCounter:
    """Programs compiled in this process, and the seconds it took, since it was made.

    Programs read from a persistent compilation cache count too: they are new to the
    process. Close it when done, or use it in a ``with`` block.
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def close(self) -> None:
        """Stops counting."""
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def __enter__(self) -> CompilationCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self, event: str, seconds: float, **_: Any) -> None:
        if event == _EVENT:
            self.count += 1
            self.seconds += seconds


def scored_figures(
    scored: Sequence[tuple[tuple[Rows, Array, Array], Array]], ops: OpTable
) -> dict[str, float | None]:
    """What scoring says before the first update: padding, entropy, KL by tokens.

    Args:
      scored: (rows, old and reference log-probs), and the entropy at each counted
        token (0 elsewhere).
      ops: [N, K], numpy.
    """
    return {
        "padding_share": padding_share(item[0] for item, _ in scored),
        "entropy": mean_entropy((item[0], entropy) for item, entropy in scored),
    } | kl_by_tokens((item for item, _ in scored), ops)


def mean_entropy(scored: Iterable[tuple[Rows, Array]]) -> float | None:
    """Mean entropy, in nats, of what the action tokens of these rows were drawn from.

    Args:
      scored: rows, and the entropy f32 [B, T] at each counted token.
    """
    total, count = 0.0, 0
    for rows, entropy in scored:
        mask = counted(rows)
        total += float(np.sum(to_host(entropy), where=mask, dtype=np.float64))
        count += int(mask.sum())
    return total / count if count else None


def kl_by_tokens(
    scored: Iterable[tuple[Rows, Array, Array]], ops: OpTable
) -> dict[str, float | None]:
    """KL to the reference on tokens that spell memory ops, and on all other actions.

    kl_ops and kl_outside_ops, means of k3 in nats a token before the step's updates;
    None where there is no such token. With ``kl_scope`` "ops" the second is not paid
    for.

    Args:
      scored: rows, old and reference log-probs f32 [B, T].
      ops: [N, K], numpy.
    """
    sums, counts = np.zeros(2), np.zeros(2, np.int64)
    for rows, old, ref in scored:
        ratio = to_host(ref).astype(np.float64) - to_host(old)
        ratio = np.clip(ratio, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        kl = np.expm1(ratio) - ratio
        kind = ops.kind[rows.trajectory_index[:, None], np.maximum(rows.op_id, 0)]
        on_ops = (rows.op_id >= 0) & np.isin(kind, MEMORY_KINDS)
        mask = counted(rows)
        for at, where in enumerate((mask & on_ops, mask & ~on_ops)):
            sums[at] += kl.sum(where=where)
            counts[at] += where.sum()
    names = "kl_ops", "kl_outside_ops"
    return {n: _share(s, c) for n, s, c in zip(names, sums, counts, strict=True)}


def mean_figures(figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over the updates of a step; sums of what is counted."""
    if not figures:
        return {"empty_steps": 1, "skipped_updates": 0, "trained_tokens": 0}
    means = {k: float(np.mean([f[k] for f in figures])) for k in figures[0]}
    for name in ("skipped", "empty", "count", "tokens"):
        means.pop(name)
    means["kl_first_update"] = float(figures[0]["kl"])
    means["skipped_updates"] = int(sum(bool(f["skipped"]) for f in figures))
    means["trained_tokens"] = int(sum(f["tokens"] for f in figures))
    means["empty_steps"] = 0
    return means


def group_metrics(
    rounds: Sequence[Trajectories],
    objective: ObjectiveConfig,
    *,
    outcome_gate: bool,
) -> dict[str, float | None]:
    """What the groups of a step look like, before any is dropped.

    reward_std_in_group, degenerate_groups (share whose rewards are all equal),
    no_outcome_groups (share whose task scores are), write_only_rate (share of the
    trajectories that wrote and never recalled) and recalls_per_write; None where nobody
    counts.

    Args:
      rounds: facts of each round of sampling, the groups of other rounds invalid.
    """
    made = [
        jax.device_get(_group_figures(arrays, objective, outcome_gate))
        for arrays in rounds
    ]
    groups = [int(arrays.valid.any(axis=1).sum()) for arrays in rounds]
    members = [int(arrays.valid.sum()) for arrays in rounds]
    figures = {
        name: _weighted_mean([float(m[key]) for m, _ in made], weights)
        for name, key, weights in (
            ("reward_std_in_group", "reward_std", groups),
            ("degenerate_groups", "degenerate_share", groups),
            ("no_outcome_groups", "no_outcome_share", groups),
            ("group_abs_advantage", "advantage_abs_mean", members),
        )
    }
    sums = {key: sum(float(s[key]) for _, s in made) for key in made[0][1]}
    figures["write_only_rate"] = _share(sums["write_only"], sum(members))
    figures["recalls_per_write"] = _share(sums["recalls"], sums["writes"])
    return figures


def _weighted_mean(values: Sequence[float], weights: Sequence[int]) -> float | None:
    pairs = zip(values, weights, strict=True)
    return _share(sum(value * weight for value, weight in pairs), sum(weights))


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


@functools.partial(jax.jit, static_argnames=("objective", "outcome_gate"))
def _group_figures(
    arrays: Trajectories, objective: ObjectiveConfig, outcome_gate: bool
):
    facts = arrays.reward, arrays.task_score, arrays.valid
    figures = group_figures(*facts, advantages_of(arrays, objective, outcome_gate))
    return figures, memory_sums(arrays.ops, arrays.valid.reshape(-1))


def padding_share(batches: Iterable[Rows]) -> float | None:
    masks = [rows.token_mask for rows in batches]
    if not masks:
        return None
    return 1 - sum(int(m.sum()) for m in masks) / sum(m.size for m in masks)


def device_bytes() -> int | None:
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_in_use")
