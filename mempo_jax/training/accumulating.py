"""Sums of one optimiser batch: how a micro-batch adds its gradient to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mempo_jax.models import lora
from mempo_jax.types import Array

# Of a pass on one CPU: what so many tokens make is written to memory that the pass
# before has used, and is read again while it is near. Fewer make products slower.
CPU_PASS = 1_024


class Accumulator(NamedTuple):
    """Sums over the micro-batches so far: float32 gradients, loss, count, figures."""

    grads: Any
    loss_sum: Array
    count: Array
    aux: dict[str, Array]


def add(sums: Accumulator, loss: Callable, params: Any) -> Accumulator:
    """Adds value of ``loss(params) -> (sum, count, aux)``, and the gradient by what is
    trained of ``params``."""
    trained, frozen = lora.split(params)

    def with_aux(trained):
        loss_sum, count, aux = loss(lora.join(trained, frozen))
        return loss_sum, (count, aux)

    value, grads = jax.value_and_grad(with_aux, has_aux=True)(trained)
    loss_sum, (count, aux) = value
    return jax.tree.map(jnp.add, sums, Accumulator(grads, loss_sum, count, aux))


def in_passes(one: Callable, sums: Accumulator, batch: Any, tokens: int) -> Accumulator:
    """``one(sums, part)`` over equal parts of the rows of ``batch``, in turn.

    batch: a tree of arrays [B, ...], the first of them [B, T]. tokens: of a part, at
    least, where B can be divided so; 0 for all at once.
    """
    rows, length = jax.tree.leaves(batch)[0].shape
    most = rows * length // tokens if tokens else 1
    parts = next(n for n in range(max(1, min(most, rows)), 0, -1) if rows % n == 0)
    if parts == 1:
        return one(sums, batch)
    split = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), batch)
    return jax.lax.scan(lambda sums, part: (one(sums, part), None), sums, split)[0]
