"""Attribution: a write is worth the reward that came while it was in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

from mempo_jax.core.credit.base import (
    Facts,
    Mode,
    OpCredit,
    among_peers,
    ones,
    stored_writes,
)
from mempo_jax.core.masking import as_float, keep
from mempo_jax.types import Array, Kind, OpTable

if TYPE_CHECKING:
    from mempo_jax.core.credit.settings import CreditSettings

REWARD_EPS = 1e-4  # in units of reward
LOG_PROB_EPS = 0.5  # nats: below it the answers of one policy differ by noise


def attribution(ops: OpTable, facts: Facts, settings: CreditSettings) -> OpCredit:
    """Writes earn, or pay, by the change of reward over their interval.

    contribution = reward of the turns after the write, up to its last use in context; 0
    for a write that was never used or stored nothing. With ``attribution_probe``
    "answer_log_prob" the reward of a turn is what it added to the log-probability of
    the gold answer, so that the contribution is potential(last use) - potential(write);
    see ``types.Evidence.turn_potential``.

    As a "bonus" contributions are normalised over all writes of the group's valid
    trajectories (population std; equal ones give 0), so that beside a useful write one
    that was never used pays; added on the write's tokens. As a "weight" on the group
    advantage a write that made an entry weighs |contribution| over the largest of its
    group, at least ``attribution_floor``; all else weighs 1.

    Known bias: entries recalled together earn the same, whichever held the answer, and
    a long interval earns rewards of other questions too. A recall of few entries
    (``k="1"``) keeps the first small. Entries that never came into use earn nothing,
    however useful they would have been.
    """
    by_reward = settings.attribution_probe == "turn_reward"
    reward = facts.turn_reward
    if not by_reward:
        potential = jnp.asarray(facts.evidence.turn_potential)
        reward = jnp.diff(potential, axis=1, prepend=0)
    earned = contributions(ops, reward, facts.turn_count)
    kind = jnp.asarray(ops.kind)
    if settings.attribution_form == "weight":
        weight = _share_of_largest(earned, ops, facts)
        weight = jnp.maximum(weight, settings.attribution_floor)
        weight = jnp.where(stored_writes(ops), weight, 1.0)
        return OpCredit(weight, jnp.zeros(kind.shape))
    eps = REWARD_EPS if by_reward else LOG_PROB_EPS
    bonus = among_peers(earned, kind == Kind.WRITE, facts, eps)
    return OpCredit(jnp.ones(kind.shape), settings.attribution_weight * bonus)


def contributions(ops: OpTable, turn_reward: Array, turn_count: Array) -> Array:
    """Reward of turns in (write, last use], [N, K]; 0 for what stored nothing."""
    turn_reward = as_float(turn_reward)
    turn = jnp.arange(turn_reward.shape[1])
    inside = (turn > jnp.asarray(ops.turn)[..., None]) & (
        turn <= jnp.asarray(ops.last_use)[..., None]
    )
    inside &= turn < jnp.asarray(turn_count)[:, None, None]
    inside &= stored_writes(ops)[..., None]
    return jnp.sum(keep(turn_reward[:, None, :], inside), axis=-1)


def _share_of_largest(earned: Array, ops: OpTable, facts: Facts) -> Array:
    """|earned| over the largest among the writes of the group, in [0, 1]; [N, K]."""
    groups = facts.group_valid.shape[0]
    valid = jnp.asarray(facts.group_valid, bool).reshape(-1, 1)
    size = keep(jnp.abs(earned), stored_writes(ops) & valid).reshape(groups, -1)
    largest = jnp.max(size, axis=-1, keepdims=True)
    share = size / jnp.where(largest > 0, largest, 1)
    return share.reshape(earned.shape)


def _needs(settings: CreditSettings) -> tuple[str, ...]:
    probed = settings.attribution_probe == "answer_log_prob"
    return ("turn_potential",) if probed else ()


ATTRIBUTION = Mode(attribution, ones, _needs)
