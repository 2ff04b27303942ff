"""The clipped policy objective with a KL penalty, from log-probs alone.

The objective knows no model. It returns (sum, count), so that micro-batches add up to
exactly the whole batch: loss = (sum of loss_sum) / max(sum of count, 1).
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from mempo_jax.core.divergences import ESTIMATORS, bounded_log_ratio, kl_k3
from mempo_jax.core.masking import as_float, keep, masked_sum
from mempo_jax.types import Array

AGGREGATIONS = ("token_mean", "trajectory_mean", "constant")
# Names of the sums in ``aux``: an accumulator is made before the first batch fills it.
AUX_KEYS = (
    *("tokens", "kl", "old_kl", "ratio", "clip_fraction"),
    *("abs_advantage", "weighted_token_share"),
)
IMPORTANCE_KEYS = ("importance_weight", "importance_capped")  # only if there is a cap


def policy_objective(
    log_probs: Array,
    old_log_probs: Array | None,
    ref_log_probs: Array | None,
    advantage: Array,
    mask: Array,
    *,
    clip_low: float,
    clip_high: float,
    kl_coef: Array | float,
    kl_estimator: str = "k3",
    kl_mask: Array | None = None,
    aggregation: str = "token_mean",
    trajectory_index: Array | None = None,
    dual_clip: float | None = None,
    constant_length: int | None = None,
    trajectory_token_count: Array | None = None,
    entropy: Array | None = None,
    behaviour_log_probs: Array | None = None,
    importance_cap: float | None = None,
) -> tuple[Array, Array, dict[str, Array]]:
    """Sum of -surrogate + kl_coef * KL over counted tokens, and what to divide it by.

    ``token_mean`` divides by all counted tokens (DAPO, arXiv:2503.14476, section 3.3);
    ``trajectory_mean`` averages inside each trajectory, then over trajectories that
    have counted tokens (GRPO, arXiv:2402.03300, equation 3); ``constant`` divides by
    trajectories x a fixed length (Dr. GRPO, arXiv:2503.20783).

    Args:
      log_probs, old_log_probs, ref_log_probs, advantage: [B, T]; may hold anything
        where not counted. Gradients flow through ``log_probs`` alone. ``old_log_probs``
        None: the policy has not moved since it sampled, so these are ``log_probs``.
        ``ref_log_probs`` None: there is no KL, and ``aux["kl"]`` is 0.
      mask: bool [B, T], the counted tokens.
      clip_low, clip_high, dual_clip: see ``clipped_surrogate``.
      kl_coef: scalar.
      kl_estimator: "k1", "k2" or "k3".
      kl_mask: bool [B, T], counted tokens that pay KL; None: all. The divisor does not
        depend on it.
      aggregation: one of ``AGGREGATIONS``.
      trajectory_index: int [B]; None makes every row its own trajectory.
      constant_length: tokens, for "constant"; None takes T.
      trajectory_token_count: [N], counted tokens of each trajectory in the whole
        optimiser batch. Needed if the rows of a trajectory can be spread over several
        micro-batches; None counts inside this call.
      entropy: [B, T], only summed into ``aux``.
      behaviour_log_probs: [B, T], the sampler's, for ``importance_cap``.
      importance_cap: each token's surrogate is multiplied by ``importance_weights``
        with this cap; KL and divisor are not. None: no weights.

    Returns:
      loss_sum and count, scalars, and ``aux``: sums over counted tokens (divide each by
      ``aux["tokens"]``): kl (to the reference), old_kl (to the old policy), ratio,
      clip_fraction, abs_advantage, weighted_token_share (advantage not 0), entropy if
      given; with a cap importance_weight and importance_capped (those above it).

    Raises:
      ValueError: unknown estimator or aggregation, or a cap that is not above 0 or
        comes without ``behaviour_log_probs``.
    """
    _check_choice("kl_estimator", kl_estimator, tuple(ESTIMATORS))
    _check_choice("aggregation", aggregation, AGGREGATIONS)
    mask = jnp.asarray(mask, bool)
    # Masked before any exp: garbage in padding would become NaN in the gradient.
    current = keep(log_probs, mask)
    # Before the first update of a step the policy is the old one. Its ratio is 1, but
    # only one side of it is differentiated: that makes it the policy gradient.
    old_log_probs = log_probs if old_log_probs is None else old_log_probs
    # Fixed targets of this update: only the current log-probs are differentiated.
    old, fixed_advantage = (
        lax.stop_gradient(keep(values, mask)) for values in (old_log_probs, advantage)
    )
    surrogate = clipped_surrogate(
        current,
        old,
        fixed_advantage,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
    importance_sums = {}
    if importance_cap is not None:
        behaviour = _behaviour(behaviour_log_probs, mask)
        weight, capped = importance_weights(old, behaviour, importance_cap)
        surrogate = weight * surrogate
        importance_sums["importance_weight"] = masked_sum(weight, mask)
        importance_sums["importance_capped"] = masked_sum(capped, mask)
    kl = jnp.zeros_like(current)
    if ref_log_probs is not None:
        ref = lax.stop_gradient(keep(ref_log_probs, mask))  # a fixed target, as above
        kl = ESTIMATORS[kl_estimator](current, ref)
    # The divisor stays that of all counted tokens, so a narrower scope weakens the KL.
    pays_kl = mask if kl_mask is None else mask & jnp.asarray(kl_mask, bool)
    # Not masked yet: what does not count is dropped once, in the sum below.
    loss = -surrogate + as_float(kl_coef) * keep(kl, pays_kl)
    weight, count = aggregation_weights(
        mask, aggregation, trajectory_index, constant_length, trajectory_token_count
    )
    aux = _sums(current, old, fixed_advantage, kl, mask, clip_low, clip_high)
    aux |= importance_sums
    if entropy is not None:
        aux["entropy"] = masked_sum(lax.stop_gradient(entropy), mask)
    return jnp.sum(keep(loss, mask) * weight), count, aux


def clipped_surrogate(
    log_probs: Array,
    old_log_probs: Array,
    advantage: Array,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Array:
    """min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A), to be maximised.

    Source: PPO, Schulman et al. 2017 (arXiv:1707.06347), equation 7; two bounds as in
    DAPO's Clip-Higher, Yu et al. 2025 (arXiv:2503.14476), section 3.1; the lower bound
    of dual clipping from Ye et al. 2020 (arXiv:1912.09729).

    Args:
      log_probs, old_log_probs, advantage: [B, T].
      clip_low, clip_high: distances of the bounds from a ratio of 1.
      dual_clip: c > 1 bounds the surrogate below by c A if A < 0; None: no bound.

    Returns:
      [B, T].

    Raises:
      ValueError: dual_clip is not above 1.
    """
    advantage = as_float(advantage)
    # Bounded before exp: one absurd log-prob must not become infinite.
    ratio = jnp.exp(bounded_log_ratio(log_probs, old_log_probs))
    # Two bounds: a higher upper one lets unlikely tokens of good actions grow.
    bounded = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
    # minimum, not fmin, which would swallow a NaN.
    surrogate = jnp.minimum(ratio * advantage, bounded * advantage)
    if dual_clip is None:
        return surrogate
    if dual_clip <= 1:
        raise ValueError(f"dual_clip must be above 1, or None for off; got {dual_clip}")
    # With A < 0 the minimum above has no floor: one huge ratio could rule the batch.
    floor = jnp.maximum(surrogate, dual_clip * advantage)
    return jnp.where(advantage < 0, floor, surrogate)


def importance_weights(
    old_log_probs: Array, behaviour_log_probs: Array, cap: float
) -> tuple[Array, Array]:
    """Truncated importance weight of each token: min(old / behaviour, cap).

    The clipped ratio of the surrogate compares the policy with the old one. Tokens of a
    sampler that differs from it (another engine, older weights, other rounding) are off
    by this further ratio. Truncation bounds its variance, at the price of a bias away
    from tokens that the sampler found unlikely. No gradient flows through the weights.
    Source: Ionides 2008, "Truncated importance sampling" (JCGS 17(2)), section 2.

    Args:
      old_log_probs, behaviour_log_probs: [B, T], trainer's and sampler's; their
        difference is bounded to +-20.
      cap: > 0, the largest weight.

    Returns:
      Weights [B, T], and bool [B, T]: which were truncated.

    Raises:
      ValueError: cap is not above 0.
    """
    if not cap > 0:
        raise ValueError(f"importance_cap must be above 0, or None for off; got {cap}")
    ratio = jnp.exp(bounded_log_ratio(old_log_probs, behaviour_log_probs))
    # A weight corrects the sampling distribution; it is no part of what is optimised.
    ratio = lax.stop_gradient(ratio)
    return jnp.minimum(ratio, cap), ratio > cap


def aggregation_weights(
    mask: Array,
    aggregation: str,
    trajectory_index: Array | None = None,
    constant_length: int | None = None,
    trajectory_token_count: Array | None = None,
) -> tuple[Array, Array]:
    """Weight of each token's loss in the sum, and the count that the sum is divided by.

    With ``trajectory_token_count``, a micro-batch counts a trajectory by the share of
    its tokens that it holds: the counts of all micro-batches add to whole trajectories.

    Args:
      mask: bool [B, T], the counted tokens.
      aggregation: one of ``AGGREGATIONS``.
      trajectory_index, constant_length, trajectory_token_count: see
        ``policy_objective``.

    Returns:
      Weights [B, T], 0 where not counted, and a scalar.
    """
    # As floats: they become divisors and shares below.
    ones = keep(jnp.ones(mask.shape), mask)
    if aggregation == "token_mean":
        return ones, jnp.sum(ones)
    per_row = jnp.sum(ones, axis=1)
    index = jnp.arange(mask.shape[0]) if trajectory_index is None else trajectory_index
    index = jnp.asarray(index)
    if trajectory_token_count is None:
        # Rows compared in pairs, [B, B]: the number of trajectories need not be static.
        same = index[:, None] == index[None, :]
        total = jnp.sum(jnp.where(same, per_row[None, :], 0), axis=1)
        # A trajectory counts once, at its first row that has counted tokens.
        earlier = same & (per_row > 0)[None, :] & jnp.tri(len(index), k=-1, dtype=bool)
        count = jnp.sum((per_row > 0) & ~earlier.any(axis=1)).astype(ones.dtype)
    else:
        total = as_float(trajectory_token_count)[index]
        # The shares of one trajectory in all micro-batches add up to 1.
        count = jnp.sum(per_row / jnp.maximum(total, 1))
    if aggregation == "constant":
        length = mask.shape[1] if constant_length is None else constant_length
        return ones, count * length
    # At least 1, since a row without counted tokens would divide 0 by 0.
    return ones / jnp.maximum(total, 1)[:, None], count


def _sums(current, old, advantage, kl, mask, clip_low, clip_high) -> dict[str, Array]:
    """Sums over counted tokens, for reporting; see ``AUX_KEYS``."""
    # Reported only: no gradient may reach the parameters through these sums.
    current, kl = lax.stop_gradient(current), lax.stop_gradient(kl)
    ratio = jnp.exp(bounded_log_ratio(current, old))
    # The bound only cuts the gradient on the side to which the advantage pushes.
    clipped = ((advantage > 0) & (ratio > 1 + clip_high)) | (
        (advantage < 0) & (ratio < 1 - clip_low)
    )
    per_token = {
        "tokens": jnp.ones_like(ratio),
        "kl": kl,
        # k3 is never negative, so a sum near 0 does mean an unchanged policy.
        "old_kl": kl_k3(current, old),
        "ratio": ratio,
        "clip_fraction": clipped,
        "abs_advantage": jnp.abs(advantage),
        # Degenerate groups have advantage 0: this is the share that trains at all.
        "weighted_token_share": advantage != 0,
    }
    return {name: masked_sum(values, mask) for name, values in per_token.items()}


def _behaviour(behaviour_log_probs: Array | None, mask: Array) -> Array:
    if behaviour_log_probs is None:
        raise ValueError(
            "importance_cap needs behaviour_log_probs, what the sampler gave each "
            "token; got None: pass them, or importance_cap=None"
        )
    # Recorded when the tokens were sampled: a constant of the update.
    return lax.stop_gradient(keep(behaviour_log_probs, mask))


def _check_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{field} must be one of {', '.join(choices)}; got {value!r}")
