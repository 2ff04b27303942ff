"""Combines the modes, and lays what they say on the tokens."""

from __future__ import annotations

import jax.numpy as jnp

from mempo_jax.core.credit.base import Facts, OpCredit
from mempo_jax.core.credit.modes import MODES
from mempo_jax.core.credit.settings import CreditSettings
from mempo_jax.core.masking import as_float, keep
from mempo_jax.types import Array, Evidence, Kind, OpTable, Outcome


def assign(
    ops: OpTable,
    turn_reward: Array,
    turn_count: Array,
    group_valid: Array,
    settings: CreditSettings,
    evidence: Evidence | None = None,
) -> OpCredit:
    """Credit of every op under ``settings.modes``.

    A malformed or failed op, or a write that repeats, keeps its weight but never gets a
    positive bonus: having done no harm among writes that did is no merit.

    Args:
      ops: OpTable [N, K], N = G * S, groups contiguous.
      turn_reward: f32 [N, M], task reward earned by each turn.
      turn_count: int [N].
      group_valid: bool [G, S]; a trajectory left out gets no bonus and gives none.
      evidence: of probes; None where no listed mode reads any.

    Returns:
      OpCredit [N, K].
    """
    if jnp.size(group_valid) != jnp.shape(ops.kind)[0]:
        raise ValueError(
            f"group_valid {jnp.shape(group_valid)} must have one flag for each of the "
            f"{jnp.shape(ops.kind)[0]} trajectories of the op table"
        )
    kind = jnp.asarray(ops.kind)
    if evidence is None:
        zeros = jnp.zeros(kind.shape)
        evidence = Evidence(zeros, zeros, jnp.zeros(jnp.shape(turn_reward)))
    turn_count, group_valid = jnp.asarray(turn_count), jnp.asarray(group_valid)
    facts = Facts(turn_reward, turn_count, group_valid, evidence)
    weight, bonus = jnp.ones(kind.shape), jnp.zeros(kind.shape)
    for mode in settings.modes:
        credit = MODES[mode].ops(ops, facts, settings)
        weight, bonus = weight * credit.weight, bonus + credit.bonus
    outcome = jnp.asarray(ops.outcome)
    failed = (kind == Kind.MALFORMED) | (outcome == Outcome.ERROR)
    failed |= outcome == Outcome.DUPLICATE
    bonus = jnp.where(failed, jnp.minimum(bonus, 0), bonus)
    padding = kind == Kind.NONE
    return OpCredit(keep(weight, ~padding, 1.0), keep(bonus, ~padding))


def bonus_scale(step: Array, *, decay_steps: int) -> Array:
    """Linear decay of all bonuses: 1 at step 0, 0 from ``decay_steps`` on; a scalar.

    A bonus is normalised over the ops of its kind, so what is right but not always of
    use earns less than nothing beside what was used: a great help in finding out, and
    a bias once it is found. With ``decay_steps`` 0 it is 1 throughout.
    """
    if decay_steps <= 0:
        return as_float(1.0)
    return 1.0 - jnp.clip(as_float(step) / float(decay_steps), 0.0, 1.0)


def to_tokens(
    credit: OpCredit,
    ops: OpTable,
    op_id: Array,
    turn_id: Array,
    action_mask: Array,
    trajectory_index: Array,
    turn_count: Array,
    settings: CreditSettings,
) -> tuple[Array, Array]:
    """Lays the credit of ops on the tokens that spelled them.

    Args:
      credit, ops: [N, K].
      op_id: int [B, T], row of the trajectory's table, -1 for tokens of no op.
      turn_id: int [B, T].
      action_mask: bool [B, T].
      trajectory_index: int [B].
      turn_count: int [N].

    Returns:
      weight and bonus, f32 [B, T]; both 0 where not an action.
    """
    op_id, action_mask = jnp.asarray(op_id), jnp.asarray(action_mask, bool)
    row = jnp.asarray(trajectory_index)[:, None]
    column = jnp.clip(op_id, 0, jnp.shape(ops.kind)[1] - 1)
    turns = jnp.asarray(turn_count)[jnp.asarray(trajectory_index)]
    others = jnp.ones(op_id.shape)
    for mode in settings.modes:
        others = others * MODES[mode].others(jnp.asarray(turn_id), turns, settings)
    in_op = op_id >= 0
    weight = jnp.where(in_op, credit.weight[row, column], others)
    bonus = keep(credit.bonus[row, column], in_op)
    return keep(weight, action_mask), keep(bonus, action_mask)
