"""Group-relative advantages, no critic.

A group is the S trajectories sampled for one task. Rewards are normalised per
trajectory inside the group *before* they are spread over segments and tokens, so a
trajectory with more turns counts once.
"""

from __future__ import annotations

import warnings

import jax.numpy as jnp
from jax import lax

from mempo_jax.core.masking import as_float, keep, masked_max, masked_mean, masked_min
from mempo_jax.types import Array

NOISE_ULPS = 8  # a reward is a short sum: its rounding error is a few last places
NOISE_FLOOR = 1e-9  # in units of reward: what is left of components that cancel
HUGE = 1e9  # rewards above it are scaled before squaring: float32 ends at 3e38


def degenerate(reward: Array, valid: Array | None = None) -> Array:
    """Finds groups without a signal: all valid rewards equal, or no valid member.

    The test is max == min up to float noise, never a standard deviation of 0: in
    float32 that of equal rewards need not be 0.

    Args:
      reward: [G, S].
      valid: bool [G, S]; None counts every member.

    Returns:
      bool [G].
    """
    reward, valid = _group_arrays(reward, valid)
    return ~valid.any(axis=-1) | _all_equal(reward, valid)


def group_normalise(
    reward: Array,
    valid: Array | None = None,
    *,
    eps: float = 1e-4,
    ddof: int = 0,
    divide_by_std: bool = True,
) -> Array:
    """Advantage of each trajectory inside its group: (r - mean) / (std + eps).

    Invalid members enter neither mean nor std and get 0; a group whose valid rewards
    are all equal gets exactly 0. Source: GRPO, Shao et al. 2024 (arXiv:2402.03300),
    section 4.1.2; ``divide_by_std=False`` is Dr. GRPO's, Liu et al. 2025
    (arXiv:2503.20783).

    Args:
      reward: [G, S]; may hold anything where not valid, even NaN.
      valid: bool [G, S]; None counts every member.
      eps: added to the standard deviation, in units of reward.
      ddof: 0 divides the variance by n, 1 by n - 1 (unbiased; scales every advantage
        down by sqrt((n - 1) / n), so retune the learning rate).
      divide_by_std: False gives r - mean.

    Returns:
      [G, S] float, at least 32 bits.

    Raises:
      ValueError: reward is not [G, S], valid has another shape, ddof is not 0 or 1.
    """
    reward, valid = _group_arrays(reward, valid)
    deviation, std, scale = _moments(reward, valid, ddof)
    # eps is in units of reward, deviation and std are in units of scale.
    advantage = deviation / (std + eps / scale) if divide_by_std else deviation * scale
    # Exactly 0 for equal rewards: the group must add no gradient at all.
    counted = valid & ~degenerate(reward, valid)[:, None]
    return keep(advantage, counted)


def gated_normalise(
    reward: Array,
    task_score: Array,
    valid: Array | None = None,
    *,
    eps: float = 1e-4,
    ddof: int = 0,
    divide_by_std: bool = True,
) -> Array:
    """``group_normalise``, but shaping terms alone never make a full-size advantage.

    If all valid task scores of a group are equal, rewards differ by penalties and
    efficiency terms only. Dividing those by their own tiny std would blow them up; the
    divisor of such a group is max(std + eps, 1), so they keep at most their own scale.

    Args:
      reward: [G, S], total rewards.
      task_score: [G, S], the task's part, before any shaping.
      valid: bool [G, S]; None counts every member.
      eps, ddof, divide_by_std: as in ``group_normalise``.

    Returns:
      [G, S] advantages.

    Raises:
      ValueError: as ``group_normalise``, or task_score has not the shape of reward.
    """
    if jnp.shape(task_score) != jnp.shape(reward):
        raise ValueError(
            f"task_score must have reward's shape {jnp.shape(reward)}, "
            f"got {jnp.shape(task_score)}: pass one score a trajectory"
        )
    options = {"eps": eps, "ddof": ddof, "divide_by_std": divide_by_std}
    full = group_normalise(reward, valid, **options)
    if not divide_by_std:
        return full
    reward, valid = _group_arrays(reward, valid)
    deviation, std, scale = _moments(reward, valid, ddof)
    # Back in units of reward, in which the divisor's bound of 1 is meant.
    gated = deviation * scale / jnp.maximum(std * scale + eps, 1)
    no_outcome = degenerate(task_score, valid)[:, None]
    counted = valid & ~degenerate(reward, valid)[:, None]
    # Chosen per group; a divisor of at least 1 keeps the unused side finite.
    return jnp.where(no_outcome, keep(gated, counted), full)


def group_advantage(
    reward: Array,
    task_score: Array,
    valid: Array,
    *,
    eps: float,
    ddof: int,
    divide_by_std: bool,
    outcome_gate: bool,
) -> Array:
    """The advantage of training: one of the two above, by ``outcome_gate``.

    Args:
      reward, task_score: [G, S].
      valid: bool [G, S].
      eps, ddof, divide_by_std: as in ``group_normalise``.
      outcome_gate: True: ``gated_normalise``; False: ``group_normalise``.

    Returns:
      [G, S] float, at least 32 bits.
    """
    options = {"eps": eps, "ddof": ddof, "divide_by_std": divide_by_std}
    if outcome_gate:
        return gated_normalise(reward, task_score, valid, **options)
    return group_normalise(reward, valid, **options)


def _group_arrays(reward: Array, valid: Array | None) -> tuple[Array, Array]:
    reward = as_float(reward)
    if reward.ndim != 2:
        raise ValueError(
            f"reward must be [G, S], groups by samples; got shape {reward.shape}: "
            "reshape a flat array with reward.reshape(groups, samples)"
        )
    valid = jnp.ones(reward.shape, bool) if valid is None else jnp.asarray(valid, bool)
    if valid.shape != reward.shape:
        raise ValueError(
            f"valid must have reward's shape {reward.shape}, got {valid.shape}: "
            "pass one flag a trajectory"
        )
    return reward, valid


def _all_equal(reward: Array, valid: Array) -> Array:
    spread = masked_max(reward, valid, -1) - masked_min(reward, valid, -1)
    magnitude = masked_max(jnp.abs(reward), valid, -1)
    # The rounding error of a sum grows with the size of its terms.
    noise = NOISE_ULPS * jnp.finfo(reward.dtype).eps * magnitude
    # A group with an infinite reward is not "equal": the error must show, not become 0.
    return jnp.isfinite(spread) & (spread <= jnp.maximum(noise, NOISE_FLOOR))


def _moments(reward: Array, valid: Array, ddof: int) -> tuple[Array, Array, Array]:
    """Deviation [G, S] and std [G, 1], both in units of ``scale`` [G, 1].

    The scale keeps squares of huge rewards finite.
    """
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 (population) or 1 (unbiased), got {ddof}")
    if ddof == 1:
        warnings.warn(
            "ddof=1 shrinks every advantage by sqrt((n - 1) / n) against ddof=0: "
            "retune the learning rate",
            stacklevel=3,
        )
    magnitude = masked_max(jnp.abs(reward), valid, -1, keepdims=True)
    huge = jnp.isfinite(magnitude) & (magnitude > HUGE)
    # Not the magnitude itself: its reciprocal may be too small for a float. It is only
    # a unit that cancels again, so no gradient may flow through it.
    scale = lax.stop_gradient(jnp.where(huge, magnitude**0.75, 1))
    scaled = keep(reward, valid) / scale
    deviation = keep(scaled - masked_mean(scaled, valid, -1, keepdims=True), valid)
    count = valid.sum(axis=-1, keepdims=True)
    square = jnp.sum(deviation**2, -1, keepdims=True) / jnp.maximum(count - ddof, 1)
    equal = degenerate(reward, valid)[:, None]
    # The inner where gives sqrt a safe argument: at 0 its gradient is infinite, and
    # the outer where alone would turn that into NaN.
    std = jnp.where(equal, 0, jnp.sqrt(jnp.where(equal, 1, square)))
    return deviation, std, scale
