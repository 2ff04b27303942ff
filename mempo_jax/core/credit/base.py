"""What a credit mode is: facts in, a weight and a bonus for each op out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp

from mempo_jax.core.advantages import group_normalise
from mempo_jax.core.masking import keep
from mempo_jax.types import MEMORY_KINDS, Array, Evidence, Kind, OpTable, Outcome

if TYPE_CHECKING:  # the settings know the modes by name, and so import them
    from mempo_jax.core.credit.settings import CreditSettings


class OpCredit(NamedTuple):
    """What each op is worth; both f32 [N, K], weight 1 and bonus 0 in padding."""

    weight: Array
    bonus: Array


class Facts(NamedTuple):
    """What happened, beside the op table.

    turn_reward f32 [N, M] · turn_count int32 [N] · group_valid bool [G, S] · evidence
    of probes, 0 where nothing was probed.
    """

    turn_reward: Array
    turn_count: Array
    group_valid: Array
    evidence: Evidence


class Mode(NamedTuple):
    """One way of assigning credit.

    ops: (OpTable, Facts, settings) -> OpCredit [N, K].
    others: (turn_id [B, T], turn_count [B], settings) -> weight of action tokens [B, T]
    that belong to no op.
    needs: settings -> what it wants probed, in the words of ``types.NEEDS``.
    """

    ops: Callable[[OpTable, Facts, CreditSettings], OpCredit]
    others: Callable[[Array, Array, CreditSettings], Array]
    needs: Callable[[CreditSettings], tuple[str, ...]]


def ones(turn_id: Array, turn_count: Array, settings: CreditSettings) -> Array:
    """``Mode.others`` of a mode that says nothing about tokens outside of ops."""
    return jnp.ones(turn_id.shape)


def nothing(settings: CreditSettings) -> tuple[str, ...]:
    """``Mode.needs`` of a mode that reads what happened alone."""
    return ()


def is_memory_op(kind: Array) -> Array:
    """Whether each kind is a memory decision; bool, the shape of ``kind``."""
    return jnp.isin(jnp.asarray(kind), jnp.array(MEMORY_KINDS))


def stored_writes(ops: OpTable) -> Array:
    """Writes that made an entry, bool [N, K]."""
    outcome = jnp.asarray(ops.outcome)
    stored = (outcome == Outcome.NEW) | (outcome == Outcome.MERGED)
    return stored & (jnp.asarray(ops.kind) == Kind.WRITE)


def among_peers(worth: Array, counted: Array, facts: Facts, eps: float) -> Array:
    """How each op's worth stands among the counted ops of its group, [N, K].

    (worth - mean) / (population std + eps) over the ops of the group's valid
    trajectories; 0 for all where they are equal, and for what is not counted. ``eps``
    is in units of worth: differences far below it stay small instead of being blown
    up to full size. ``objective.advantage_*`` play no part.

    Args:
      worth: [N, K].
      counted: bool [N, K].
    """
    groups = facts.group_valid.shape[0]
    counted = counted & jnp.asarray(facts.group_valid, bool).reshape(-1, 1)
    flat = group_normalise(
        worth.reshape(groups, -1), counted.reshape(groups, -1), eps=eps
    )
    return keep(flat.reshape(worth.shape), counted)
