"""Checks that stop a run before it trains on something wrong, or warn of it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from mempo_jax.distributed.hosts import RunStopped
from mempo_jax.distributed.placement import to_host
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.types import Rows

# In nats per token. Equal weights run through equal programs differ by rounding alone,
# and k3 squares that difference.
MAX_INITIAL_KL = 1e-6
EMPTY_STEPS = 5  # steps in a row between two warnings, so that one step alone is quiet


def failed_share(trajectories: Sequence[Trajectory], limit: float) -> None:
    """Stops the run if too many trajectories failed.

    Args:
      trajectories: all that a round sampled, failed ones included.
      limit: the largest share that may fail, from 0 to 1.

    Raises:
      RunStopped: more failed; the message quotes the first failure.
    """
    failures = [t.failure for t in trajectories if t.failure is not None]
    share = len(failures) / max(1, len(trajectories))
    if share > limit:
        raise RunStopped(
            f"{len(failures)} of {len(trajectories)} trajectories failed; at most "
            f"{limit:.0%} may (config.sampling.max_failed_share). The first: "
            f"{failures[0]}"
        )


def log_prob_gap(scored: Sequence[tuple[Rows, Any, Any]], limit: float) -> float | None:
    """Compares the sampler's log-probabilities with the trainer's.

    A gap means that the two saw different contexts, positions, temperatures or weights,
    and then the importance ratio of the loss is wrong.

    Args:
      scored: batches of (rows, old and reference log-probs [B, T]); "old" is what the
        trainer computes for the policy that sampled.
      limit: the largest gap allowed, in nats.

    Returns:
      The largest absolute gap over action tokens; None if there are no rows.

    Raises:
      RunStopped: a gap is above ``limit`` or NaN; names its row, turn and token.
    """
    worst = None
    # On the host: compiled code cannot stop with the row, turn and token at fault.
    for rows, old, _ in scored:
        gap = np.abs(to_host(old) - rows.behaviour_log_probs)
        # Only sampled tokens have a behaviour log-prob, and padding rows hold none.
        gap = np.where(rows.action_mask & rows.valid[:, None], gap, 0.0)
        largest = float(gap.max())
        if not largest <= limit:  # written so that NaN stops too
            at = np.argmax(np.nan_to_num(gap, nan=np.inf))  # a NaN counts as the worst
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
    """Checks that the frozen reference equals the policy before the first update.

    Args:
      scored: batches of (rows, old and reference log-probs [B, T]); those without the
        latter pass.

    Raises:
      RunStopped: the mean k3 divergence is above ``MAX_INITIAL_KL``, or NaN.
    """
    total, count = 0.0, 0
    for rows, old, ref in scored:
        if ref is None:
            continue
        mask = rows.action_mask & rows.valid[:, None]
        # float64, since expm1(x) - x of a small x cancels most digits.
        ratio = (to_host(ref) - to_host(old))[mask].astype(np.float64)
        total += float(np.sum(np.expm1(ratio) - ratio))
        count += int(mask.sum())
    # Without a reference nothing was counted; such a run passes with a mean of 0.
    mean = total / max(1, count)
    if not mean <= MAX_INITIAL_KL:  # NaN stops too
        raise RunStopped(
            f"mean KL {mean:.3g} before the first update, expected below "
            f"{MAX_INITIAL_KL:g}: policy and reference differ; see config.policy.path "
            "and config.policy.ref_path"
        )


def skipped_in_a_row(count: int, limit: int) -> None:
    """Stops the run if too many updates in a row were skipped.

    Args:
      count: skipped updates in a row; an update is skipped if its loss or gradient is
        not finite.
      limit: the largest number allowed.

    Raises:
      RunStopped: ``count`` is above ``limit``.
    """
    if count > limit:
        raise RunStopped(
            f"{count} updates in a row had a loss or gradient that is not finite, at "
            f"most {limit} may (config.train.max_skipped_updates); their batches lie "
            "in skipped/; lower config.train.learning_rate"
        )


def empty_in_a_row(count: int, sampled: Sequence[Trajectory]) -> None:
    """Warns at every ``EMPTY_STEPS``-th step in a row that had nothing to train on.

    Args:
      count: such steps in a row so far.
      sampled: all trajectories of the last of these steps.
    """
    if count == 0 or count % EMPTY_STEPS:
        return
    why = (
        "all rewards of a group were equal, in every group that was sampled. If "
        "success is near 0 or 1, make the tasks (config.env) easier or harder; else "
        "raise config.sampling.max_resample_rounds, group_size or temperature"
    )
    # Advice on equal rewards would mislead where there was nothing to compare.
    if sampled and not any(t.valid for t in sampled):
        reasons = (t.failure for t in sampled if t.failure is not None)
        first = next(reasons, "the policy never acted; see config.context")
        why = (
            f"in the last one none of {len(sampled)} trajectories counted, since they "
            f"failed or never acted. The first: {first}"
        )
    warnings.warn(f"{count} steps in a row trained on nothing: {why}", stacklevel=2)
