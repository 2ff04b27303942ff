"""The optimiser, its schedules, and the state that an optimiser step changes.

What is trained is kept in float32 (the *masters*), whatever the passes compute with. An
update at a learning rate of 1e-6 is smaller than the distance between neighbouring
bfloat16 numbers: added to bfloat16 weights, nearly all of it would be rounded away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from mempo_jax.config import RunConfig, TrainConfig
from mempo_jax.core import bonus_scale, kl_coefficient
from mempo_jax.distributed import placement
from mempo_jax.distributed.placement import place_params
from mempo_jax.types import Array, TrainState


class ScheduledValues(NamedTuple):
    """Scalars of the loss that follow a schedule.

    Attributes:
      kl_coef: coefficient of the KL to the reference.
      bonus_scale: factor of all credit bonuses.
    """

    kl_coef: Array
    bonus_scale: Array


def scheduled_values(step: int, settings: RunConfig) -> ScheduledValues:
    """The scheduled scalars of a step; the learning rate is the optimiser's own.

    Args:
      step: from 0.
      settings: gives sections ``objective`` and ``credit``.
    """
    objective = settings.objective
    return ScheduledValues(
        kl_coefficient(
            step,
            target=objective.kl_coef,
            warmup_steps=objective.kl_warmup_steps,
        ),
        bonus_scale(step, decay_steps=settings.credit.bonus_decay_steps),
    )


def policy_optimiser(train: TrainConfig) -> optax.GradientTransformation:
    """The optimiser of reinforcement learning.

    Args:
      train: section ``train``, whose warm-up and decay count steps.
    """
    # A schedule counts updates, and each step makes ``minibatches`` of them.
    schedule = learning_rate(
        train.learning_rate,
        warmup_updates=train.warmup_steps * train.minibatches,
        decay_updates=train.decay_steps * train.minibatches,
    )
    return make_optimiser(schedule, train)


def cold_start_optimiser(train: TrainConfig) -> optax.GradientTransformation:
    """The same AdamW with a cosine decay to 0 over the cold start.

    Args:
      train: section ``train``.
    """
    # A short rise suffices: 20 updates, or a tenth of a shorter cold start.
    schedule = learning_rate(
        train.cold_start_learning_rate,
        warmup_updates=min(20, train.cold_start_steps // 10),
        decay_updates=train.cold_start_steps,
    )
    return make_optimiser(schedule, train)


def learning_rate(
    peak: float, *, warmup_updates: int, decay_updates: int
) -> optax.Schedule:
    """A schedule: linear rise to ``peak``, then constant, or a cosine fall to 0.

    Args:
      peak: the highest rate.
      warmup_updates: length of the rise; 0 for none.
      decay_updates: update at which the cosine reaches 0, warm-up included; 0 for a
        constant rate.

    Returns:
      Update number (from 0) -> learning rate.

    Raises:
      ValueError: the decay would end within the warm-up.
    """
    # A rate of 0 would waste the first update: the rise starts one update in.
    rise = optax.linear_schedule(
        peak / (warmup_updates + 1), peak, max(warmup_updates, 1)
    )
    if decay_updates:
        if decay_updates <= warmup_updates:
            raise ValueError(
                "decay_steps must be 0 (constant) or above warmup_steps="
                f"{warmup_updates}, got {decay_updates}: change either in config.train"
            )
        after = optax.cosine_decay_schedule(peak, decay_updates - warmup_updates)
    else:
        after = optax.constant_schedule(peak)
    return (
        optax.join_schedules([rise, after], [warmup_updates])
        if warmup_updates
        else after
    )


def make_optimiser(
    schedule: optax.Schedule, train: TrainConfig
) -> optax.GradientTransformation:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101), for float32 masters.

    The norm of the whole gradient is clipped first.

    Args:
      schedule: update number -> learning rate.
      train: gives ``adam_*``, ``weight_decay`` and ``grad_clip``.
    """
    return optax.chain(
        # Before Adam: one huge gradient would stay in its moments for many updates.
        optax.clip_by_global_norm(train.grad_clip),
        optax.adamw(
            schedule,
            b1=train.adam_b1,
            b2=train.adam_b2,
            eps=train.adam_eps,
            weight_decay=train.weight_decay,
        ),
    )


def init_state(
    init: Callable[[Array], Any],
    key: Array,
    optimiser: optax.GradientTransformation,
    mesh: Mesh,
    partition_rules: placement.PartitionRules = placement.DECODER_PARTITION_RULES,
) -> TrainState:
    """A fresh state, made on the mesh: each device only makes the parts that it holds.

    Args:
      init: key -> parameters, such as ``LanguageModel.init``.
      key: PRNG key.
      optimiser: makes its own state.
      mesh: devices to make it on.
      partition_rules: how parameters are split over them.
    """

    def make(key: Array) -> TrainState:
        return fresh_state(init(key), optimiser)

    shardings = placement.shardings(jax.eval_shape(make, key), mesh, partition_rules)
    # Compiled as one, so that each device only computes its own part.
    return jax.jit(make, out_shardings=shardings)(key)


def state_from_params(
    params: Any,
    optimiser: optax.GradientTransformation,
    mesh: Mesh,
    partition_rules: placement.PartitionRules = placement.DECODER_PARTITION_RULES,
) -> TrainState:
    """A fresh optimiser over float32 copies of existing parameters.

    Args:
      params: tree of numpy or jax arrays of any dtype; the caller may keep them.
      optimiser: makes its own state.
      mesh: devices to place it on.
      partition_rules: how parameters are split over them.
    """
    params = place_params(params, mesh, partition_rules)
    # Shapes alone, to find the sharding of moments before any is made.
    shapes = jax.eval_shape(lambda p: fresh_state(p, optimiser), params)
    shardings = placement.shardings(shapes, mesh, partition_rules)

    def copy(params: Any) -> TrainState:
        # Copies: updates donate the state, and the caller may keep these parameters.
        return fresh_state(jax.tree.map(jnp.copy, params), optimiser)

    return jax.jit(copy, out_shardings=shardings)(params)


def fresh_state(params: Any, optimiser: optax.GradientTransformation) -> TrainState:
    """The state at step 0.

    Args:
      params: what is trained, in any dtype.
      optimiser: makes its own state.
    """
    masters = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    return TrainState(masters, optimiser.init(masters), jnp.zeros((), jnp.int32))
