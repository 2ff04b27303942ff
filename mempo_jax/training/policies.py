"""The policy of a run: read from a directory, or the built-in `nano`, made here."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax
import numpy as np

from mempo_jax.envs import TaskSuite
from mempo_jax.memory import OpError, error_message
from mempo_jax.models import hf
from mempo_jax.models.decoder import DecoderConfig, LanguageModel
from mempo_jax.models.nano import build_nano, nano_config
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.settings import ConfigError
from mempo_jax.training import advisors
from mempo_jax.training.run_settings import RunSettings


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
