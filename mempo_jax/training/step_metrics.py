"""Metrics of one training step, as dicts of scalars by name; none enters the loss.

The training loop merges them into the step's row of ``metrics.jsonl``. Also counts what
XLA compiles, so that a run can show that no step compiles anything again.
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

# JAX reports this event once per compiled program, also if a persistent cache had it.
_EVENT = "/jax/core/compile/backend_compile_duration"


def mean_metrics(updates: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merges the metrics of a step's updates: means, and sums of what is counted.

    Args:
      updates: metrics of each optimiser update, in order; empty if the step had
        nothing to train on.
    """
    if not updates:
        return {"empty_steps": 1, "skipped_updates": 0, "trained_tokens": 0}
    means = {name: _mean([f[name] for f in updates]) for name in updates[0]}
    for name in ("skipped", "empty", "count", "tokens"):  # a mean of these says nothing
        means.pop(name)
    means["kl_first_update"] = _mean([updates[0]["kl"]])  # before the policy moved
    means["skipped_updates"] = int(sum(bool(f["skipped"]) for f in updates))
    means["trained_tokens"] = int(sum(f["tokens"] for f in updates))
    means["empty_steps"] = 0
    return means


def scored_metrics(
    scored: Sequence[tuple[tuple[Rows, Array, Array | None], Array]], ops: OpTable
) -> dict[str, float | None]:
    """Measures padding, entropy and KL by kind of token, before the first update.

    Args:
      scored: (rows, old and reference log-probs), and the entropy at each counted
        token (0 elsewhere).
      ops: [N, K], numpy.
    """
    return {
        "padding_share": padding_share(item[0] for item, _ in scored),
        "entropy": mean_entropy((item[0], entropy) for item, entropy in scored),
    } | kl_by_tokens((item for item, _ in scored), ops)


def group_metrics(
    rounds: Sequence[Trajectories],
    objective: ObjectiveConfig,
    *,
    outcome_gate: bool,
) -> dict[str, float | None]:
    """Describes the groups of a step, before any is dropped.

    Args:
      rounds: facts of each round of sampling, the groups of other rounds invalid.
      objective: decides how the advantage is normalised.
      outcome_gate: see ``core.advantages.gated_normalise``.

    Returns:
      reward_std_in_group, degenerate_groups (share whose rewards are all equal),
      no_outcome_groups (share whose task scores are), group_abs_advantage,
      write_only_rate (share of the trajectories that wrote and never recalled) and
      recalls_per_write; None if there is nothing to average over.
    """
    measured = [
        jax.device_get(_measure_groups(arrays, objective, outcome_gate))
        for arrays in rounds
    ]
    # A round's mean weighs as much as the groups or trajectories that it is over.
    groups = [int(arrays.valid.any(axis=1).sum()) for arrays in rounds]
    members = [int(arrays.valid.sum()) for arrays in rounds]
    metrics = {
        name: _weighted_mean([float(m[key]) for m, _ in measured], weights)
        for name, key, weights in (
            ("reward_std_in_group", "reward_std", groups),
            ("degenerate_groups", "degenerate_share", groups),
            ("no_outcome_groups", "no_outcome_share", groups),
            ("group_abs_advantage", "advantage_abs_mean", members),
        )
    }
    # Summed, then divided once: a mean of the rounds' shares would let a small round
    # weigh as much as a large one.
    sums = {key: sum(float(s[key]) for _, s in measured) for key in measured[0][1]}
    metrics["write_only_rate"] = _share(sums["write_only"], sum(members))
    metrics["recalls_per_write"] = _share(sums["recalls"], sums["writes"])
    return metrics


# One program for all rounds: their arrays have the same shapes. The settings are
# static, since they choose what is traced.
@functools.partial(jax.jit, static_argnames=("objective", "outcome_gate"))
def _measure_groups(
    arrays: Trajectories, objective: ObjectiveConfig, outcome_gate: bool
):
    rewards = arrays.reward, arrays.task_score, arrays.valid
    advantage = advantages_of(arrays, objective, outcome_gate)
    metrics = group_reward_metrics(*rewards, advantage)
    return metrics, memory_sums(arrays.ops, arrays.valid.reshape(-1))


def group_reward_metrics(
    reward: Array, task_score: Array, valid: Array, advantage: Array
) -> dict[str, Array]:
    """Measures how far rewards differ within groups; can be traced.

    Args:
      reward: f32 [G, S].
      task_score: f32 [G, S], the outcome's part of the reward.
      valid: bool [G, S]; other trajectories do not count.
      advantage: f32 [G, S].

    Returns:
      reward_std, the mean over groups of the population std inside a group;
      degenerate_share, the share of groups whose rewards are all equal, and
      no_outcome_share, of those whose task scores are (both: of the groups that have a
      valid member); advantage_abs_mean over valid members.
    """
    valid = jnp.asarray(valid, bool)
    # A group without a valid member would pass as one whose rewards are all equal.
    live = valid.any(axis=-1)
    centred = jnp.asarray(reward) - masked_mean(reward, valid, -1, keepdims=True)
    # An invalid member may hold NaN: it is dropped before it is squared.
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
        # No mask: an invalid trajectory has no write that counts.
        "write_only": jnp.sum((writes > 0) & (recalls == 0)),
    }


def mean_entropy(scored: Iterable[tuple[Rows, Array]]) -> float | None:
    """Mean entropy, in nats, of what the action tokens of these rows were drawn from.

    Args:
      scored: rows, and the entropy f32 [B, T] at each counted token.

    Returns:
      None if no token counts.
    """
    total, count = 0.0, 0
    for rows, entropy in scored:
        mask = counted(rows)
        # float64: a float32 sum over a step's many tokens would lose digits.
        total += float(np.sum(to_host(entropy), where=mask, dtype=np.float64))
        count += int(mask.sum())
    return total / count if count else None


def kl_by_tokens(
    scored: Iterable[tuple[Rows, Array, Array | None]], ops: OpTable
) -> dict[str, float | None]:
    """KL to the reference on tokens that spell memory ops, and on all other actions.

    With ``kl_scope`` "ops" the second is not part of the loss.

    Args:
      scored: rows, old and reference log-probs f32 [B, T]; without the latter they
        do not count.
      ops: [N, K], numpy.

    Returns:
      kl_ops and kl_outside_ops, means of k3 in nats per token before the step's
      updates; None if there is no such token.
    """
    sums, counts = np.zeros(2), np.zeros(2, np.int64)
    for rows, old, ref in scored:
        if ref is None:
            continue
        ratio = to_host(ref).astype(np.float64) - to_host(old)
        # The loss bounds it alike, so these are the KL that the loss pays for.
        ratio = np.clip(ratio, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        # expm1, since exp(x) - 1 of a small x loses most digits.
        kl = np.expm1(ratio) - ratio
        # A token of no op has op_id -1: it reads op 0, and ``on_ops`` drops that.
        kind = ops.kind[rows.trajectory_index[:, None], np.maximum(rows.op_id, 0)]
        on_ops = (rows.op_id >= 0) & np.isin(kind, MEMORY_KINDS)
        mask = counted(rows)
        for at, where in enumerate((mask & on_ops, mask & ~on_ops)):
            sums[at] += kl.sum(where=where)
            counts[at] += where.sum()
    names = "kl_ops", "kl_outside_ops"
    return {n: _share(s, c) for n, s, c in zip(names, sums, counts, strict=True)}


def padding_share(batches: Iterable[Rows]) -> float | None:
    """The share of all places in the rows that hold no token; None without rows.

    Args:
      batches: the rows, numpy; padding rows count as places.
    """
    masks = [rows.token_mask for rows in batches]
    if not masks:
        return None
    # Totals, since micro-batches of different buckets have different sizes.
    return 1 - sum(int(m.sum()) for m in masks) / sum(m.size for m in masks)


def device_bytes() -> int | None:
    """Bytes in use on this process's first device; None on those that do not count."""
    # CPU devices give None in place of a dict.
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_in_use")


def _mean(values: Sequence[float | None]) -> float | None:
    """None if one of them was not measured."""
    return None if None in values else float(np.mean(values))


def _weighted_mean(values: Sequence[float], weights: Sequence[int]) -> float | None:
    pairs = zip(values, weights, strict=True)
    return _share(sum(value * weight for value, weight in pairs), sum(weights))


def _share(part: float, total: float) -> float | None:
    return part / total if total else None


class CompilationCounter:
    """Programs compiled in this process, and the seconds it took, since it was made.

    Programs read from a persistent compilation cache count too: they are new to the
    process. Close it when done, or use it in a ``with`` block.

    Attributes:
      count: programs so far.
      seconds: compilation time so far.
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
