"""All modes by name. A new mode is a file beside this one, and an entry here."""

from __future__ import annotations

from mempo_jax.core.credit.answer_probability import ANSWER_PROBABILITY
from mempo_jax.core.credit.attribution import ATTRIBUTION
from mempo_jax.core.credit.base import Mode
from mempo_jax.core.credit.counterfactual import COUNTERFACTUAL
from mempo_jax.core.credit.weights import DISCOUNTED, OPS_ONLY, UNIFORM

MODES: dict[str, Mode] = {
    "uniform": UNIFORM,
    "ops_only": OPS_ONLY,
    "discounted": DISCOUNTED,
    "attribution": ATTRIBUTION,
    "answer_probability": ANSWER_PROBABILITY,
    "counterfactual": COUNTERFACTUAL,
}
