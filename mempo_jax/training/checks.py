"""Checks that stop a run before it trains on something wrong."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from mempo_jax.distributed.hosts import RunStopped
from mempo_jax.distributed.placement import to_host
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.types import Rows

MAX_INITIAL_KL = 1e-6
EMPTY_STEPS = 5  # in a row, between two messages about them


def failed_share(trajectories: Sequence[Trajectory], limit: float) -> None:
    """Raises RunStopped where more than ``limit`` of the trajectories failed."""
    failures = [t.failure for t in trajectories if t.failure is not None]
    share = len(failures) / max(1, len(trajectories))
    if share > limit:
        raise RunStopped(
            f"{len(failures)} of {len(trajectories)} trajectories failed; at most "
            f"{limit:.0%} may (config.sampling.max_failed_share). The first: "
            f"{failures[0]}"
        )


def log_prob_gap(scored: Sequence[tuple[Rows, Any, Any]], limit: float) -> float | None:
    """Largest |sampler's - trainer's| log-prob over action tokens; None of no rows.

    Raises:
      RunStopped: it is above ``limit``; names row, turn and token.
    """
    worst = None
    for rows, old, _ in scored:
        gap = np.abs(to_host(old) - rows.behaviour_log_probs)
        gap = np.where(rows.action_mask & rows.valid[:, None], gap, 0.0)
        largest = float(gap.max())
        if not largest <= limit:
            at = np.argmax(np.nan_to_num(gap, nan=np.inf))
            b, t = np.unravel_index(at, gap.shape)
            raise RunStopped(
                f"log-prob gap {largest:.3g} between sampler and trainer, at most "
                f"{limit:g} (config.train.max_log_prob_gap): trajectory "
                f"{rows.trajectory_index[b]}, row {b}, turn {rows.turn_id[b, t]}, "
                f"token {t} (id {rows.tokens[b, t]}); the two do not see the same "
                "context, positions, temperature or weights"
            )
        worst = largest if worst is None else max(worst, largest)
    return worst


def reference_is_policy(scored: Sequence[tuple[Rows, Any, Any]]) -> None:
    """Before the first update the frozen reference must be the policy.

    Raises:
      RunStopped: the mean k3 divergence is above 1e-6.
    """
    total, count = 0.0, 0
    for rows, old, ref in scored:
        mask = rows.action_mask & rows.valid[:, None]
        ratio = (to_host(ref) - to_host(old))[mask].astype(np.float64)
        total += float(np.sum(np.expm1(ratio) - ratio))
        count += int(mask.sum())
    mean = total / max(1, count)
    if not mean <= MAX_INITIAL_KL:  # NaN stops too
        raise RunStopped(
            f"mean KL {mean:.3g} before the first update, expected below "
            f"{MAX_INITIAL_KL:g}: policy and reference differ; see config.policy.path "
            "and config.policy.ref_path"
        )


def skipped_in_a_row(count: int, limit: int) -> None:
    """Raises RunStopped once more than ``limit`` updates in a row were not finite."""
    if count > limit:
        raise RunStopped(
            f"{count} updates in a row had a loss or gradient that is not finite, at "
            f"most {limit} may (config.train.max_skipped_updates); their batches lie "
            "in skipped/; lower config.train.learning_rate"
        )


def empty_in_a_row(count: int, sampled: Sequence[Trajectory]) -> None:
    """Warns at every ``EMPTY_STEPS``-th step in a row that had nothing to train on.

    Args:
      sampled: all trajectories of the last of these steps.
    """
    if count == 0 or count % EMPTY_STEPS:
        return
    why = (
        "all rewards of a group were equal, in every group that was sampled. If "
        "success is near 0 or 1, make the tasks (config.env) easier or harder; else "
        "raise config.sampling.max_resample_rounds, group_size or temperature"
    )
    if sampled and not any(t.valid for t in sampled):
        reasons = (t.failure for t in sampled if t.failure is not None)
        first = next(reasons, "the policy never acted; see config.context")
        why = (
            f"in the last one none of {len(sampled)} trajectories counted, since they "
            f"failed or never acted. The first: {first}"
        )
    warnings.warn(f"{count} steps in a row trained on nothing: {why}", stacklevel=2)
