"""Op tables written by hand, and their credit, for the tests of the modes."""

import dataclasses

import jax
import numpy as np

from mempo_jax.core import CreditConfig
from mempo_jax.core import credit as module
from mempo_jax.types import Evidence, Kind, OpTable, Outcome

jitted = jax.jit(module.assign, static_argnames="settings")

SETTINGS = CreditConfig(
    modes=("uniform",),
    gamma=0.5,
    other_weight=0.1,
    attribution_form="bonus",
    attribution_probe="turn_reward",
    attribution_floor=0.25,
    attribution_weight=2.0,
    answer_probability_weight=3.0,
    counterfactual_weight=4.0,
    counterfactual_evictions=True,
    bonus_decay_steps=0,
)


def table(*trajectories, width=4):
    """Rows (kind, turn, last_use, outcome) of each trajectory, as an OpTable."""
    ops = np.full((5, len(trajectories), width), -1, np.int32)
    for n, rows in enumerate(trajectories):
        for k, (kind, turn, last_use, outcome) in enumerate(rows):
            ops[:, n, k] = kind, turn, last_use, last_use, outcome
    return OpTable(*ops)


def write(turn, last_use=-1, outcome=Outcome.NEW):
    return (Kind.WRITE, turn, last_use, outcome)


def evidence(ops, turns=4, **fields):
    """Evidence with these fields, 0 elsewhere."""
    count = ops.kind.shape[0]
    blank = Evidence(np.zeros(ops.kind.shape), np.zeros(ops.kind.shape), None)
    blank = blank._replace(turn_potential=np.zeros((count, turns)))
    given = {name: np.asarray(value, float) for name, value in fields.items()}
    return blank._replace(**given)


def assign(ops, modes, reward=None, turns=4, valid=None, probed=None, **changes):
    count = ops.kind.shape[0]
    reward = np.zeros((count, turns)) if reward is None else np.asarray(reward)
    valid = np.ones((1, count), bool) if valid is None else valid
    settings = dataclasses.replace(SETTINGS, modes=modes, **changes)
    turns = np.full(count, turns)
    return jitted(ops, reward, turns, valid, settings=settings, evidence=probed)
