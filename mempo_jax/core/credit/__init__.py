"""Credit assignment: from the table of memory ops to a weight and a bonus per token.

    token advantage = weight x group advantage + bonus

Modes are listed by name and combine: weights multiply, bonuses add. A turn that ends
without any op is a decision too: its row has kind SKIP, counts as a memory op for the
weights, and never earns a bonus. Letters as in ``mempo_jax.types``.
"""

from mempo_jax.core.credit.assign import assign, bonus_scale, to_tokens
from mempo_jax.core.credit.attribution import contributions
from mempo_jax.core.credit.base import Facts, Mode, OpCredit, is_memory_op
from mempo_jax.core.credit.modes import MODES
from mempo_jax.core.credit.settings import CreditSettings

__all__ = [
    "MODES",
    "CreditSettings",
    "Facts",
    "Mode",
    "OpCredit",
    "assign",
    "bonus_scale",
    "contributions",
    "is_memory_op",
    "to_tokens",
]
