"""Pure functions of arrays, the mathematics of training.

They take and return numpy or JAX arrays and know neither models nor trajectories:
advantages within a group, credit of memory ops, KL estimates, the clipped objective and
log-probs of tokens.
"""

from mempo_jax.core.advantages import (
    degenerate,
    gated_normalise,
    group_advantage,
    group_normalise,
)
from mempo_jax.core.credit import CreditConfig, OpCredit, assign, bonus_scale, to_tokens
from mempo_jax.core.divergences import kl_coefficient, kl_k1, kl_k2, kl_k3
from mempo_jax.core.log_probs import (
    shifted_log_probs,
    shifted_log_probs_and_entropy,
    token_log_probs,
    token_log_probs_and_entropy,
)
from mempo_jax.core.objective import clipped_surrogate, policy_objective

__all__ = [
    "CreditConfig",
    "OpCredit",
    "assign",
    "bonus_scale",
    "clipped_surrogate",
    "degenerate",
    "gated_normalise",
    "group_advantage",
    "group_normalise",
    "kl_coefficient",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "policy_objective",
    "shifted_log_probs",
    "shifted_log_probs_and_entropy",
    "to_tokens",
    "token_log_probs",
    "token_log_probs_and_entropy",
]
