"""What changes from step to step by a schedule alone."""

from __future__ import annotations

from typing import NamedTuple

from mempo_jax.core import bonus_scale, kl_coefficient
from mempo_jax.training.run_settings import RunSettings
from mempo_jax.types import Array


class Scheduled(NamedTuple):
    """kl_coef: of the KL to the reference · bonus_scale: of all credit bonuses."""

    kl_coef: Array
    bonus_scale: Array


def scheduled(step: int, settings: RunSettings) -> Scheduled:
    """The scalars of ``step``; the learning rate is the optimiser's own schedule."""
    objective = settings.objective
    return Scheduled(
        kl_coefficient(
            step,
            target=objective.kl_coef,
            warmup_steps=objective.kl_warmup_steps,
        ),
        bonus_scale(step, decay_steps=settings.credit.bonus_decay_steps),
    )
