"""Truncated importance weights: for tokens that were not drawn by the old policy."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from mempo_jax.core.divergences import bounded_log_ratio
from mempo_jax.types import Array


def importance_weights(
    old_log_probs: Array, behaviour_log_probs: Array, cap: float
) -> tuple[Array, Array]:
    """min(old / behaviour, cap): what a token counts for.

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
      ValueError: cap not above 0.
    """
    if not cap > 0:
        raise ValueError(f"importance_cap must be above 0, or None for off; got {cap}")
    ratio = jnp.exp(bounded_log_ratio(old_log_probs, behaviour_log_probs))
    ratio = lax.stop_gradient(ratio)
    return jnp.minimum(ratio, cap), ratio > cap
