"""The optimiser and the state that an optimiser step changes.

What changes from step to step by a schedule alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from mempo_jax.config import RunConfig
from mempo_jax.core import bonus_scale, kl_coefficient
from mempo_jax.core.advantages import AdvantageSettings
from mempo_jax.distributed import placement
from mempo_jax.distributed.placement import place_params
from mempo_jax.training.loss import ObjectiveSettings
from mempo_jax.types import Array, TrainState

LOGIT_CHUNK = 2_048  # tokens whose logits a device holds at one time
ADAM_B1, ADAM_EPS = 0.9, 1e-8


class ScheduledValues(NamedTuple):
    """kl_coef: of the KL to the reference · bonus_scale: of all credit bonuses."""

    kl_coef: Array
    bonus_scale: Array


def scheduled_values(step: int, settings: RunConfig) -> ScheduledValues:
    """The scalars of ``step``; the learning rate is the optimiser's own schedule."""
    objective = settings.objective
    return ScheduledValues(
        kl_coefficient(
            step,
            target=objective.kl_coef,
            warmup_steps=objective.kl_warmup_steps,
        ),
        bonus_scale(step, decay_steps=settings.credit.bonus_decay_steps),
    )


@dataclasses.dataclass(frozen=True)
class OptimiserSettings:
    """AdamW after a global-norm clip.

    The rate rises linearly over warmup_steps updates to learning_rate, then stays, or
    with decay_steps > 0 falls as a cosine to 0 at that update (warm-up included).
    max_grad_norm clips the norm of the whole gradient; 0 turns that off.
    """

    learning_rate: float
    warmup_steps: int
    decay_steps: int
    b1: float
    b2: float
    eps: float
    weight_decay: float
    max_grad_norm: float


def learning_rate(settings: OptimiserSettings) -> optax.Schedule:
    """Update number (from 0) -> learning rate."""
    peak, warmup = settings.learning_rate, settings.warmup_steps
    # The first update would be lost at a rate of 0: the rise starts one step in.
    rise = optax.linear_schedule(peak / (warmup + 1), peak, max(warmup, 1))
    if settings.decay_steps:
        if settings.decay_steps <= warmup:
            raise ValueError(
                f"decay_steps must be 0 (constant) or above warmup_steps={warmup}, got "
                f"{settings.decay_steps}: change either in the optimiser's section"
            )
        after = optax.cosine_decay_schedule(peak, settings.decay_steps - warmup)
    else:
        after = optax.constant_schedule(peak)
    return optax.join_schedules([rise, after], [warmup]) if warmup else after


def make_optimiser(settings: OptimiserSettings) -> optax.GradientTransformation:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101) in float32 throughout.

    Moments and updates are float32 whatever the parameters are stored in; add them
    with ``add_updates``.
    """
    steps = []
    if settings.max_grad_norm:
        steps.append(optax.clip_by_global_norm(settings.max_grad_norm))
    steps.append(
        optax.adamw(
            learning_rate(settings),
            b1=settings.b1,
            b2=settings.b2,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
    )
    return _in_float32(optax.chain(*steps))


def add_updates(params: Any, updates: Any) -> Any:
    """params + updates, summed in float32, in the parameters' own dtype."""
    return jax.tree.map(
        lambda p, u: (p.astype(u.dtype) + u).astype(p.dtype), params, updates
    )


def init_state(
    init: Callable[[Array], Any],
    key: Array,
    optimiser: optax.GradientTransformation,
    mesh: Mesh,
    table: placement.PartitionRules = placement.DECODER_PARTITION_RULES,
) -> TrainState:
    """A fresh state, made in its place: no array is ever whole on one device.

    Args:
      init: key -> parameters, such as ``LanguageModel.init``.
      key: PRNG key.
    """

    def make(key: Array) -> TrainState:
        return fresh_state(init(key), optimiser)

    placed = placement.shardings(jax.eval_shape(make, key), mesh, table)
    return jax.jit(make, out_shardings=placed)(key)


def state_from_params(
    params: Any,
    optimiser: optax.GradientTransformation,
    mesh: Mesh,
    table: placement.PartitionRules = placement.DECODER_PARTITION_RULES,
) -> TrainState:
    """A fresh optimiser over a copy of given parameters (numpy or jax)."""
    params = place_params(params, mesh, table)
    shapes = jax.eval_shape(lambda p: fresh_state(p, optimiser), params)
    placed = placement.shardings(shapes, mesh, table)

    def copy(params: Any) -> TrainState:
        # A copy: updates donate the state, and the caller may keep these parameters.
        return fresh_state(jax.tree.map(jnp.copy, params), optimiser)

    return jax.jit(copy, out_shardings=placed)(params)


def abstract_state(
    init: Callable[[Array], Any],
    optimiser: optax.GradientTransformation,
    mesh: Mesh,
    table: placement.PartitionRules = placement.DECODER_PARTITION_RULES,
) -> TrainState:
    """Shapes, dtypes and shardings of the state: what a checkpoint is read onto."""
    shapes = jax.eval_shape(
        lambda key: fresh_state(init(key), optimiser), jax.random.key(0)
    )
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=where
        ),
        shapes,
        placement.shardings(shapes, mesh, table),
    )


def fresh_state(params: Any, optimiser: optax.GradientTransformation) -> TrainState:
    """Step 0 over ``params``."""
    return TrainState(params, optimiser.init(params), jnp.zeros((), jnp.int32))


def _in_float32(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    def init(params):
        return inner.init(_wide(params))

    def update(updates, state, params=None):
        return inner.update(_wide(updates), state, _wide(params))

    return optax.GradientTransformation(init, update)


def _wide(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)


def objective_settings(settings: RunConfig) -> ObjectiveSettings:
    o = settings.objective
    return ObjectiveSettings(
        clip_low=o.clip_low,
        clip_high=o.clip_high,
        dual_clip=o.dual_clip or None,
        kl_estimator=o.kl_estimator,
        kl_scope=o.kl_scope,
        aggregation=o.aggregation,
        constant_length=o.constant_length,
        importance_cap=o.importance_cap,
        logit_chunk=LOGIT_CHUNK,
    )


def advantage_settings(settings: RunConfig) -> AdvantageSettings:
    o = settings.objective
    return AdvantageSettings(
        eps=o.advantage_eps,
        ddof=o.advantage_ddof,
        divide_by_std=o.divide_by_std,
        outcome_gate=settings.reward.outcome_gate,
    )


def optimiser_settings(settings: RunConfig) -> OptimiserSettings:
    t = settings.train
    return OptimiserSettings(
        learning_rate=t.learning_rate,
        warmup_steps=t.warmup_steps * t.minibatches,
        decay_steps=t.decay_steps * t.minibatches,
        b1=ADAM_B1,
        b2=t.adam_b2,
        eps=ADAM_EPS,
        weight_decay=t.weight_decay,
        max_grad_norm=t.grad_clip,
    )


def cold_start_optimiser_settings(settings: RunConfig) -> OptimiserSettings:
    """The same AdamW with a cosine decay to 0 over the cold start."""
    t = settings.train
    return dataclasses.replace(
        optimiser_settings(settings),
        learning_rate=t.cold_start_learning_rate,
        warmup_steps=min(20, t.cold_start_steps // 10),
        decay_steps=t.cold_start_steps,
    )
