"""What a step's number changes, and that the update is given it."""

from types import SimpleNamespace

import numpy as np
import pytest

from mempo_jax.config import from_config
from mempo_jax.training import loop
from mempo_jax.training import state as state_module
from tests.experiments import tiny
from tests.training.step_case import make_trajectories


def settings(decay=0):
    c = tiny.get_config()
    c.objective.kl_coef, c.objective.kl_warmup_steps = 0.03, 10
    c.credit.bonus_decay_steps = decay
    return from_config(c.to_dict())


@pytest.mark.parametrize(
    ("step", "decay", "kl", "scale"),
    [
        *((0, 0, 0, 1), (5, 0, 0.015, 1), (99, 0, 0.03, 1)),
        *((0, 8, 0, 1), (2, 8, 0.006, 0.75), (8, 8, 0.024, 0), (99, 8, 0.03, 0)),
        (9, 3_000_000_000, 0.027, 1),
    ],
)
def test_the_scalars_of_a_step(step, decay, kl, scale):
    now = state_module.scheduled_values(step, settings(decay))
    assert now.kl_coef == pytest.approx(kl)
    assert now.bonus_scale == pytest.approx(scale)


def test_an_update_is_given_them_and_they_are_reported():
    seen, noted = [], {}

    def loss_inputs(arrays, token_count, bonus_scale):
        seen.append(bonus_scale)

    programs = SimpleNamespace(
        loss_inputs=loss_inputs,
        zeros=lambda: None,
        apply=lambda state, sums: (state, {"skipped": np.array(False)}),
    )
    trainer = SimpleNamespace(
        settings=settings(4), programs=programs, state=None, in_a_row=noted
    )
    sums, _ = loop.Trainer._gradient(trainer, 3, 0, [], make_trajectories())
    batch = [loop.ScoredRows(None, None, np.zeros(1))]
    figures = loop.Trainer._apply(trainer, 3, 0, sums, batch)
    assert seen == [pytest.approx(0.25)]
    assert figures["bonus_scale"] == pytest.approx(0.25)
    assert figures["kl_coef"] == pytest.approx(0.009)
