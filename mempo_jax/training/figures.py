"""Figures of one step that the run loop puts together from its parts."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from mempo_jax.core.advantages import AdvantageSettings, group_advantage
from mempo_jax.core.diagnostics import group_figures
from mempo_jax.training.loss import counted
from mempo_jax.types import Array, Rows, Trajectories


def mean_entropy(scored: Iterable[tuple[Rows, Array]]) -> float | None:
    """Mean entropy, in nats, of what the action tokens of these rows were drawn from.

    Args:
      scored: rows, and the entropy f32 [B, T] at each of their tokens.
    """
    total, count = 0.0, 0
    for rows, entropy in scored:
        mask = counted(rows)
        total += float(np.sum(jax.device_get(entropy), where=mask, dtype=np.float64))
        count += int(mask.sum())
    return total / count if count else None


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
    arrays: Trajectories, settings: AdvantageSettings
) -> dict[str, float | None]:
    """What the groups of a step look like, before any is dropped.

    reward_std_in_group, degenerate_groups (share whose rewards are all equal) and
    no_outcome_groups (share whose task scores are); None where nobody counts.
    """
    made = jax.device_get(_group_figures(arrays, settings))
    some = bool(arrays.valid.any())
    return {
        name: float(made[key]) if some else None
        for name, key in (
            ("reward_std_in_group", "reward_std"),
            ("degenerate_groups", "degenerate_share"),
            ("no_outcome_groups", "no_outcome_share"),
            ("group_abs_advantage", "advantage_abs_mean"),
        )
    }


@functools.partial(jax.jit, static_argnames="settings")
def _group_figures(arrays: Trajectories, settings: AdvantageSettings):
    facts = arrays.reward, arrays.task_score, arrays.valid
    return group_figures(*facts, group_advantage(*facts, settings))


def padding_share(batches: Iterable[Rows]) -> float | None:
    masks = [rows.token_mask for rows in batches]
    if not masks:
        return None
    return 1 - sum(int(m.sum()) for m in masks) / sum(m.size for m in masks)


def device_bytes() -> int | None:
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_in_use")
