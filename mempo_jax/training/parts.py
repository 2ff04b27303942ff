"""Puts a run's parts together from its settings, and refuses what cannot work."""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mempo_jax.core.advantages import AdvantageSettings
from mempo_jax.envs import Episode, Task, TaskSuite, check_repeatable
from mempo_jax.envs.babi import BabiSuite
from mempo_jax.envs.ledger import LedgerSuite
from mempo_jax.memory import (
    Bank,
    OpError,
    closing_tags,
    error_message,
)
from mempo_jax.models import hf
from mempo_jax.models.decoder import DecoderConfig, LanguageModel
from mempo_jax.models.nano import build_nano, nano_config
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.assemble import Shapes
from mempo_jax.rollout.collect import Collector, Decoding, Job
from mempo_jax.rollout.engine import Engine
from mempo_jax.settings import ConfigError
from mempo_jax.training import advisors
from mempo_jax.training.advisors import Advisors
from mempo_jax.training.loss import ObjectiveSettings
from mempo_jax.training.run_settings import RunSettings
from mempo_jax.training.sharding import make_mesh, row_multiple, row_sharding
from mempo_jax.training.state import OptimiserSettings

LOGIT_CHUNK = 2_048  # tokens whose logits exist at one time in scoring
ADAM_B1, ADAM_EPS = 0.9, 1e-8


@dataclasses.dataclass(frozen=True)
class Policy:
    """A model with its tokenizer and parameters (nested dict, numpy or jax)."""

    config: DecoderConfig
    model: LanguageModel
    tokenizer: Tokenizer
    params: Any

    def save(self, directory: pathlib.Path, params: Any) -> None:
        """Writes a Hugging Face directory with these parameters."""
        host = jax.tree.map(np.asarray, params)
        hf.save(directory, self.config, host, self.tokenizer)


def make_suite(settings: RunSettings) -> TaskSuite:
    """The task suite of the config; the first tasks are checked to be repeatable."""
    env = settings.env
    if env.name == "ledger":
        suite: TaskSuite = LedgerSuite(env.ledger, settings.seed)
        most = env.ledger.max_turns
        if most + 1 > settings.sampling.max_turns:
            raise ConfigError(
                f"config.sampling.max_turns: expected at least {most + 1} (env.ledger."
                f"max_turns + 1), got {settings.sampling.max_turns}"
            )
    else:
        suite = BabiSuite(env.babi, env.data_dir, settings.seed)
    check_repeatable(suite, [suite.task("train", i) for i in range(2)])
    return suite


def load_policy(directory: str, settings: RunSettings) -> Policy:
    """Reads a Hugging Face directory.

    Raises:
      ConfigError: no such directory, or one without config, weights or tokenizer.
    """
    try:
        config, params, tokenizer = hf.load(directory)
    except (ValueError, OSError) as error:
        raise ConfigError(f"policy directory {directory!r}: {error}") from error
    _check_positions(config, settings)
    return Policy(config, _model(config, settings), tokenizer, params)


def initial_policy(suite: TaskSuite, settings: RunSettings) -> Policy:
    """The policy before any training: that of ``policy.path``, else a new `nano`."""
    path = settings.policy.path
    return load_policy(path, settings) if path else make_nano(suite, settings)


def make_nano(suite: TaskSuite, settings: RunSettings) -> Policy:
    """The built-in small policy, untrained, with a vocabulary for this suite."""
    shape = settings.policy.nano
    context = settings.context
    goals = []
    for index in range(64):
        env = suite.make(suite.task("train", index))
        env.reset(suite.task("train", index).seed)
        goals.append(env.goal)
    texts = [
        *goals,
        *(context.instructions, *context.instruction_variants),
        context.reminder,
        f" {context.reminder}",
        "turn 0/0 memory 0 (a, b): \nerror: \nrecalled nothing\n0: text",
        *(error_message(error) for error in OpError),
    ]
    numbers = [str(n) for n in range(settings.sampling.max_turns + 1)]
    asked, answers = advisors.vocabulary(settings)
    words = [*suite.vocabulary(), *numbers, *answers]
    tokenizer = build_nano([*texts, *asked], words)
    config = nano_config(
        tokenizer,
        width=shape.width,
        layers=shape.layers,
        heads=shape.heads,
        mlp_width=shape.mlp_width,
        max_positions=settings.train.length_buckets[-1],
    )
    model = _model(config, settings)
    key = jax.random.key(settings.seed)
    return Policy(config, model, tokenizer, jax.jit(model.init)(key))


def make_episodes(
    suite: TaskSuite,
    settings: RunSettings,
    advised: Advisors | None = None,
) -> Callable[..., Episode]:
    """(task, trajectory id, variant = 0) -> an episode with an empty bank of its own.

    variant: of the instructions; see ``ContextSettings.variant``.
    advised: the policy as adviser of the banks; see ``advisors.without_policy``.
    """
    advised = advised or advisors.without_policy(settings)
    embedder = settings.memory.make_embedder()
    bank_config = settings.memory.bank()
    limits, weights = settings.episode(), settings.reward.weights()

    def make(task: Task, trajectory_id: str, variant: int = 0) -> Episode:
        context = settings.context.variant(variant)
        bank = Bank(bank_config, embedder, trajectory_id, **advised.callables)
        return Episode(suite.make(task), task, bank, limits, context, weights)

    return make


def make_collector(
    policy: Policy, suite: TaskSuite, settings: RunSettings, mesh: Any
) -> tuple[Engine, Collector]:
    """An engine for the policy's model, and the collector that drives it."""
    sampling = settings.sampling
    engine = Engine(
        policy.model,
        policy.tokenizer,
        slots=sampling.slots,
        max_length=settings.max_segment_tokens,
        prefill_buckets=sampling.prefill_buckets,
        decode_chunk=sampling.decode_chunk,
        closing_tags=closing_tags(),
        row_sharding=row_sharding(mesh),
    )
    advised = advisors.make_advisors(policy, settings, mesh)
    for follower in advised.followers:
        engine.lead(follower)
    episodes = make_episodes(suite, settings, advised)

    def make(job: Job) -> Episode:
        name = f"{job.purpose}-{job.step}-{job.task.id}-{job.sample}"
        varied = job.purpose == "train"  # others see the instructions as they are
        return episodes(job.task, name, job.sample if varied else 0)

    limit = settings.env.step_timeout_s
    collector = Collector(engine, policy.tokenizer, make, limit, advised.foresee)
    return engine, collector


def make_run_mesh(settings: RunSettings) -> Any:
    """The device mesh; rows of every compiled program must divide over it."""
    axes = settings.mesh
    try:
        mesh = make_mesh(axes.data, axes.fsdp, axes.tensor)
    except ValueError as error:
        raise ConfigError(f"config.mesh: {error}") from error
    multiple = row_multiple(mesh)
    if settings.sampling.slots % multiple:
        raise ConfigError(
            f"config.sampling.slots: expected a multiple of data x fsdp = {multiple}, "
            f"got {settings.sampling.slots}"
        )
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


def _model(config: DecoderConfig, settings: RunSettings) -> LanguageModel:
    return LanguageModel(
        config, settings.policy.compute_dtype, remat=settings.policy.remat
    )


def _check_positions(config: DecoderConfig, settings: RunSettings) -> None:
    longest = settings.train.length_buckets[-1]
    if config.max_positions < longest:
        raise ConfigError(
            "config.train.length_buckets: expected at most the policy's "
            f"{config.max_positions} positions, got {longest}"
        )
