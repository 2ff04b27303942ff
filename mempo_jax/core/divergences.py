"""KL(policy || reference) estimated from samples of the policy, and its coefficient.

With d = log pi(token) - log ref(token), for tokens drawn from pi. Source: Schulman
2020, "Approximating KL Divergence" (joschu.net/blog/kl-approx.html); k3 is also
equation 4 of Shao et al. 2024 (arXiv:2402.03300). All estimators take and return
[B, T], with log-ratios bounded to +-``LOG_RATIO_BOUND``.
"""

from __future__ import annotations

import jax.numpy as jnp

from mempo_jax.core.masking import as_float
from mempo_jax.types import Array

LOG_RATIO_BOUND = 20.0  # nats: exp(20) is 5e8, far from overflow in float32
_SERIES_BELOW = 1e-2  # below it expm1(x) - x cancels, and four terms are exact enough


def bounded_log_ratio(log_probs: Array, other_log_probs: Array) -> Array:
    """log pi - log other, within +-``LOG_RATIO_BOUND``, so that its exp stays finite.

    Args:
      log_probs: [B, T], by the policy.
      other_log_probs: [B, T], of the same tokens by another policy.
    """
    ratio = as_float(log_probs) - as_float(other_log_probs)
    return jnp.clip(ratio, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def kl_k1(log_probs: Array, ref_log_probs: Array) -> Array:
    """d. Unbiased, high variance, may be negative; its own gradient is no KL's.

    Args:
      log_probs, ref_log_probs: [B, T], by policy and reference.
    """
    return bounded_log_ratio(log_probs, ref_log_probs)


def kl_k2(log_probs: Array, ref_log_probs: Array) -> Array:
    """d^2 / 2. Biased, low variance; its gradient is that of the KL.

    Args:
      log_probs, ref_log_probs: [B, T], by policy and reference.
    """
    return 0.5 * bounded_log_ratio(log_probs, ref_log_probs) ** 2


def kl_k3(log_probs: Array, ref_log_probs: Array) -> Array:
    """exp(-d) - 1 + d. Unbiased, low variance, never negative.

    Args:
      log_probs, ref_log_probs: [B, T], by policy and reference.
    """
    x = -bounded_log_ratio(log_probs, ref_log_probs)
    # Taylor series of exp(x) - 1 - x: the difference below would be rounding error.
    near_zero = x * x * (0.5 + x * (1 / 6 + x * (1 / 24 + x / 120)))
    return jnp.where(jnp.abs(x) < _SERIES_BELOW, near_zero, jnp.expm1(x) - x)


ESTIMATORS = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}


def kl_coefficient(step: Array, *, target: float, warmup_steps: int) -> Array:
    """Linear warm-up: 0 at step 0, ``target`` from ``warmup_steps`` on.

    Args:
      step: scalar, the training step.
      target: coefficient after the warm-up.
      warmup_steps: length of the rise; 0 gives ``target`` at once.

    Returns:
      A scalar.
    """
    # A Python number, so this is decided before anything is traced.
    if warmup_steps <= 0:
        return as_float(target)
    share = jnp.clip(as_float(step) / float(warmup_steps), 0.0, 1.0)
    return as_float(target) * share
