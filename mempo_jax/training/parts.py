"""Puts a run's parts together from its settings, and refuses what cannot work.

Policies, task suites and engines have files of their own; callers find them all here.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from mempo_jax.core.advantages import AdvantageSettings
from mempo_jax.rollout.assemble import Shapes
from mempo_jax.rollout.collect import Decoding
from mempo_jax.settings import ConfigError
from mempo_jax.training import processes
from mempo_jax.training.loss import ObjectiveSettings
from mempo_jax.training.placing import connect, slots_multiple
from mempo_jax.training.policies import (
    Policy,
    initial_policy,
    load_policy,
    make_nano,
)
from mempo_jax.training.rollouts import make_collector
from mempo_jax.training.run_settings import RunSettings
from mempo_jax.training.sharding import make_mesh, row_multiple
from mempo_jax.training.state import OptimiserSettings
from mempo_jax.training.suites import make_episodes, make_expert, make_suite

__all__ = [
    "ConfigError",
    "Policy",
    "advantage",
    "cold_start_optimiser",
    "decoding",
    "initial_policy",
    "load_policy",
    "make_collector",
    "make_episodes",
    "make_expert",
    "make_mesh",
    "make_nano",
    "make_run_mesh",
    "make_suite",
    "objective",
    "optimiser",
    "reward_function",
    "shapes",
]

LOGIT_CHUNK = 2_048  # tokens whose logits a device holds at one time
ADAM_B1, ADAM_EPS = 0.9, 1e-8


def make_run_mesh(settings: RunSettings) -> Any:
    """The device mesh; rows of every compiled program must divide over it."""
    axes = settings.mesh
    try:
        mesh = make_mesh(axes.data, axes.fsdp, axes.tensor)
    except ValueError as error:
        raise ConfigError(f"config.mesh: {error}") from error
    if processes.count() > 1 and settings.engine.kind != "local":
        raise ConfigError(
            "config.engine.kind: expected 'local' with several processes, got "
            f"{settings.engine.kind!r}; run one process"
        )
    connect(mesh)
    multiple = slots_multiple(mesh)
    if settings.sampling.slots % multiple:
        raise ConfigError(
            f"config.sampling.slots: expected a multiple of {multiple}, the devices "
            f"that rows are split over, got {settings.sampling.slots}"
        )
    if settings.engine.kind == "local":
        slots = settings.sampling.slots // processes.count()
        settings.engine.check_fits(slots, len(mesh.local_devices))
    return mesh


def shapes(settings: RunSettings, mesh: Any) -> Shapes:
    """Fixed shapes of training arrays."""
    turns = settings.sampling.max_turns
    return Shapes(
        length_buckets=settings.train.length_buckets,
        micro_batch_tokens=settings.train.micro_batch_tokens,
        row_multiple=row_multiple(mesh),
        max_turns=turns,
        max_ops=turns * (settings.memory.max_ops_per_turn + 1),
    )


def objective(settings: RunSettings) -> ObjectiveSettings:
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


def advantage(settings: RunSettings) -> AdvantageSettings:
    o = settings.objective
    return AdvantageSettings(
        eps=o.advantage_eps,
        ddof=o.advantage_ddof,
        divide_by_std=o.divide_by_std,
        outcome_gate=settings.reward.outcome_gate,
    )


def optimiser(settings: RunSettings) -> OptimiserSettings:
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


def cold_start_optimiser(settings: RunSettings) -> OptimiserSettings:
    """The same AdamW with a cosine decay to 0 over the cold start."""
    t = settings.train
    return dataclasses.replace(
        optimiser(settings),
        learning_rate=t.cold_start_learning_rate,
        warmup_steps=min(20, t.cold_start_steps // 10),
        decay_steps=t.cold_start_steps,
    )


def decoding(settings: RunSettings, *, greedy: bool = False) -> Decoding:
    s = settings.sampling
    temperature = 0.0 if greedy else s.temperature
    return Decoding(temperature, s.top_p, s.top_k, s.max_new_tokens)


def reward_function(settings: RunSettings) -> Callable[[Any], Any] | None:
    """The user's reward function, imported; None for the task score.

    Raises:
      ConfigError: the module or the function does not exist, or is not callable.
    """
    name = settings.reward.function
    if not name:
        return None
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"config.reward.function = {name!r}: {error}") from error
    if not callable(function):
        raise ConfigError(
            f"config.reward.function = {name!r}: expected a function, got "
            f"{type(function).__name__}"
        )
    return function
