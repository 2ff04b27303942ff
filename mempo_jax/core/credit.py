"""Credit assignment: from the table of memory ops to a weight and a bonus per token.

    token advantage = weight x group advantage + bonus

Modes are listed by name and combine: weights multiply, bonuses add. A turn that ends
without any op is a decision too: its row has kind SKIP, counts as a memory op for the
weights, and never earns a bonus. Letters as in ``mempo_jax.types``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from mempo_jax.core.advantages import group_normalise
from mempo_jax.core.masking import as_float, keep
from mempo_jax.types import MEMORY_KINDS, Array, Kind, OpTable, Outcome


@dataclasses.dataclass(frozen=True)
class CreditSettings:
    """Which modes, in the words of ``MODES``, and their constants.

    gamma in (0, 1] discounts per turn; other_weight in [0, 1] is what ``ops_only``
    leaves to tokens that spell no memory op; attribution_weight scales that bonus.
    """

    modes: tuple[str, ...]
    gamma: float
    other_weight: float
    attribution_weight: float

    def __post_init__(self) -> None:
        known = set(self.modes) <= set(MODES)
        if not known or not self.modes or len(set(self.modes)) < len(self.modes):
            raise ValueError(
                f"credit.modes: expected one or more of {', '.join(MODES)}, each once; "
                f"got {list(self.modes)}"
            )
        if not 0 < self.gamma <= 1:
            raise ValueError(f"credit.gamma: expected in (0, 1], got {self.gamma}")
        if not 0 <= self.other_weight <= 1:
            raise ValueError(
                f"credit.other_weight: expected 0 to 1, got {self.other_weight}"
            )
        if not 0 <= self.attribution_weight < float("inf"):
            raise ValueError(
                "credit.attribution_weight: expected at least 0 and finite, got "
                f"{self.attribution_weight}"
            )


class OpCredit(NamedTuple):
    """What each op is worth; both f32 [N, K], weight 1 and bonus 0 in padding."""

    weight: Array
    bonus: Array


class Facts(NamedTuple):
    """turn_reward f32 [N, M], turn_count int32 [N], group_valid bool [G, S]."""

    turn_reward: Array
    turn_count: Array
    group_valid: Array


class Mode(NamedTuple):
    """One way of assigning credit.

    ops: (OpTable, Facts, settings) -> OpCredit [N, K].
    others: (turn_id [B, T], turn_count [B], settings) -> weight of action tokens [B, T]
    that belong to no op.
    """

    ops: Callable[[OpTable, Facts, CreditSettings], OpCredit]
    others: Callable[[Array, Array, CreditSettings], Array]


def uniform(ops: OpTable, facts: Facts, settings: CreditSettings) -> OpCredit:
    """Every op weighs 1: plain GRPO."""
    return _weighted(jnp.ones(jnp.shape(ops.kind)))


def ops_only(ops: OpTable, facts: Facts, settings: CreditSettings) -> OpCredit:
    """Memory ops (skipped and malformed ones too) weigh 1, others ``other_weight``."""
    return _weighted(jnp.where(is_memory_op(ops.kind), 1.0, settings.other_weight))


def discounted(ops: OpTable, facts: Facts, settings: CreditSettings) -> OpCredit:
    """An op at turn t of T weighs gamma^(T - 1 - t)."""
    return _weighted(_discount(ops.turn, facts.turn_count, settings))


def attribution(ops: OpTable, facts: Facts, settings: CreditSettings) -> OpCredit:
    """Writes earn, or pay, by the reward that came while they were still in use.

    contribution = reward of the turns after the write, up to its last use in context; 0
    for a write that was never used or stored nothing. Contributions are normalised over
    all writes of the group's valid trajectories (population std; equal ones give 0), so
    that beside a useful write one that was never used pays. Bonus on the write alone.

    Known bias: entries recalled together earn the same, whichever held the answer, and
    a long interval earns rewards of other questions too. A recall of few entries
    (``k="1"``) keeps the first small.
    """
    kind = jnp.asarray(ops.kind)
    groups = facts.group_valid.shape[0]
    valid = jnp.asarray(facts.group_valid, bool).reshape(-1, 1)
    counted = (kind == Kind.WRITE) & valid
    earned = contributions(ops, facts.turn_reward, facts.turn_count)
    bonus = group_normalise(earned.reshape(groups, -1), counted.reshape(groups, -1))
    bonus = keep(bonus.reshape(kind.shape), counted)
    return OpCredit(jnp.ones(kind.shape), settings.attribution_weight * bonus)


def contributions(ops: OpTable, turn_reward: Array, turn_count: Array) -> Array:
    """Reward of turns in (write, last use], [N, K]; 0 for what stored nothing."""
    turn_reward = as_float(turn_reward)
    turn = jnp.arange(turn_reward.shape[1])
    inside = (turn > jnp.asarray(ops.turn)[..., None]) & (
        turn <= jnp.asarray(ops.last_use)[..., None]
    )
    inside &= turn < jnp.asarray(turn_count)[:, None, None]
    outcome = jnp.asarray(ops.outcome)
    stored = (outcome == Outcome.NEW) | (outcome == Outcome.MERGED)
    inside &= (stored & (jnp.asarray(ops.kind) == Kind.WRITE))[..., None]
    return jnp.sum(keep(turn_reward[:, None, :], inside), axis=-1)


def is_memory_op(kind: Array) -> Array:
    """Whether each kind is a memory decision; bool, the shape of ``kind``."""
    return jnp.isin(jnp.asarray(kind), jnp.array(MEMORY_KINDS))


def assign(
    ops: OpTable,
    turn_reward: Array,
    turn_count: Array,
    group_valid: Array,
    settings: CreditSettings,
) -> OpCredit:
    """Credit of every op under ``settings.modes``.

    A malformed or failed op keeps its weight but never gets a positive bonus.

    Args:
      ops: OpTable [N, K], N = G * S, groups contiguous.
      turn_reward: f32 [N, M], task reward earned by each turn.
      turn_count: int [N].
      group_valid: bool [G, S]; a trajectory left out gets no bonus and gives none.

    Returns:
      OpCredit [N, K].
    """
    if jnp.size(group_valid) != jnp.shape(ops.kind)[0]:
        raise ValueError(
            f"group_valid {jnp.shape(group_valid)} must have one flag for each of the "
            f"{jnp.shape(ops.kind)[0]} trajectories of the op table"
        )
    facts = Facts(turn_reward, jnp.asarray(turn_count), jnp.asarray(group_valid))
    kind = jnp.asarray(ops.kind)
    weight, bonus = jnp.ones(kind.shape), jnp.zeros(kind.shape)
    for mode in settings.modes:
        credit = MODES[mode].ops(ops, facts, settings)
        weight, bonus = weight * credit.weight, bonus + credit.bonus
    failed = (kind == Kind.MALFORMED) | (jnp.asarray(ops.outcome) == Outcome.ERROR)
    bonus = jnp.where(failed, jnp.minimum(bonus, 0), bonus)
    padding = kind == Kind.NONE
    return OpCredit(keep(weight, ~padding, 1.0), keep(bonus, ~padding))


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


def _weighted(weight: Array) -> OpCredit:
    return OpCredit(weight, jnp.zeros(weight.shape))


def _discount(turn: Array, turn_count: Array, settings: CreditSettings) -> Array:
    left = jnp.asarray(turn_count)[:, None] - 1 - jnp.asarray(turn)
    return as_float(settings.gamma) ** jnp.maximum(left, 0)


def _ones(turn_id: Array, turn_count: Array, settings: CreditSettings) -> Array:
    return jnp.ones(turn_id.shape)


def _other_weight(turn_id: Array, turn_count: Array, settings: CreditSettings) -> Array:
    return jnp.full(turn_id.shape, settings.other_weight)


MODES: dict[str, Mode] = {
    "uniform": Mode(uniform, _ones),
    "ops_only": Mode(ops_only, _other_weight),
    "discounted": Mode(discounted, _discount),
    "attribution": Mode(attribution, _ones),
}
