"""Modes that only weigh: the group advantage times a number for each op."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

from mempo_jax.core.credit.base import (
    Facts,
    Mode,
    OpCredit,
    is_memory_op,
    nothing,
    ones,
)
from mempo_jax.core.masking import as_float
from mempo_jax.types import Array, OpTable

if TYPE_CHECKING:
    from mempo_jax.core.credit.settings import CreditSettings


def uniform(ops: OpTable, facts: Facts, settings: CreditSettings) -> OpCredit:
    """Every op weighs 1: plain GRPO."""
    return _weighted(jnp.ones(jnp.shape(ops.kind)))


def ops_only(ops: OpTable, facts: Facts, settings: CreditSettings) -> OpCredit:
    """Memory ops (skipped and malformed ones too) weigh 1, others ``other_weight``."""
    return _weighted(jnp.where(is_memory_op(ops.kind), 1.0, settings.other_weight))


def discounted(ops: OpTable, facts: Facts, settings: CreditSettings) -> OpCredit:
    """An op at turn t of T weighs gamma^(T - 1 - t)."""
    return _weighted(_discount(ops.turn, facts.turn_count, settings))


def _weighted(weight: Array) -> OpCredit:
    return OpCredit(weight, jnp.zeros(weight.shape))


def _discount(turn: Array, turn_count: Array, settings: CreditSettings) -> Array:
    left = jnp.asarray(turn_count)[:, None] - 1 - jnp.asarray(turn)
    return as_float(settings.gamma) ** jnp.maximum(left, 0)


def _other_weight(turn_id: Array, turn_count: Array, settings: CreditSettings) -> Array:
    return jnp.full(turn_id.shape, settings.other_weight)


UNIFORM = Mode(uniform, ones, nothing)
OPS_ONLY = Mode(ops_only, _other_weight, nothing)
DISCOUNTED = Mode(discounted, _discount, nothing)
