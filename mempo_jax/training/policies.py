"""The policy of a run: read from a directory, or the built-in `nano`, made here."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from mempo_jax.envs import TaskSuite
from mempo_jax.memory import OpError, error_message
from mempo_jax.models import hf, stream
from mempo_jax.models.decoder import DecoderConfig, LanguageModel
from mempo_jax.models.nano import build_nano, nano_config
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.settings import ConfigError
from mempo_jax.training import advisors, processes
from mempo_jax.training.placing import fetch, on_mesh
from mempo_jax.training.policy_config import write_config
from mempo_jax.training.run_settings import RunSettings


@dataclasses.dataclass(frozen=True)
class Policy:
    """A model with its tokenizer and parameters (nested dict, numpy or jax; None where
    they lie elsewhere)."""

    config: DecoderConfig
    model: LanguageModel
    tokenizer: Tokenizer
    params: Any

    def save(
        self,
        directory: pathlib.Path,
        params: Any,
        config: Mapping[str, Any] | None = None,
        *,
        repeat_tied: bool = False,
    ) -> None:
        """Writes a Hugging Face directory with these parameters, adapters merged.

        config: of the run, kept beside them; see ``policy_config``. repeat_tied: as for
        ``hf.save``. Where several processes run each must call it; one writes.
        """
        write = processes.primary()
        hf.save(
            *(directory, self.config, params, self.tokenizer),
            adapters=self.model.lora,
            repeat_tied=repeat_tied,
            fetch=fetch,
            write=write,
        )
        if config is not None and write:
            write_config(directory, config)


def load_policy(path: str, settings: RunSettings, mesh: Mesh | None = None) -> Policy:
    """Reads a Hugging Face directory or a GGUF file.

    path: also "package:name/file", in an installed package. mesh: where the parameters
    are streamed to; None: numpy, whole.

    Raises:
      ConfigError: nothing there, or config, weights and tokenizer do not fit together.
    """
    place = stream.whole if mesh is None else on_mesh(mesh)
    try:
        config, params, tokenizer = hf.load(
            path,
            place,
            settings.policy.param_dtype,
            settings.policy.chat_template_kwargs,
        )
    except (ValueError, OSError) as error:
        raise ConfigError(f"policy {path!r}: {error}") from error
    _check_positions(config, settings)
    return Policy(config, _model(config, settings), tokenizer, params)


def initial_policy(
    suite: TaskSuite, settings: RunSettings, mesh: Mesh | None = None
) -> Policy:
    """The policy before any training: that of ``policy.path``, else a new `nano`."""
    path = settings.policy.path
    return load_policy(path, settings, mesh) if path else make_nano(suite, settings)


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
    params = jax.jit(model.init)(key)
    stored = jax.tree.map(lambda p: p.astype(settings.policy.param_dtype), params)
    return Policy(config, model, tokenizer, stored)


def _model(config: DecoderConfig, settings: RunSettings) -> LanguageModel:
    policy = settings.policy
    backend = jax.default_backend()
    if policy.attention == "cudnn" and backend != "gpu":
        raise ConfigError(
            f"config.policy.attention: expected 'auto' or 'xla' on {backend}, got "
            f"{policy.attention!r}, which needs an NVIDIA GPU"
        )
    return LanguageModel(
        config,
        policy.compute_dtype,
        remat=policy.remat,
        attention=policy.attention,
    )


def _check_positions(config: DecoderConfig, settings: RunSettings) -> None:
    longest = settings.train.length_buckets[-1]
    if config.max_positions < longest:
        raise ConfigError(
            "config.train.length_buckets: expected at most the policy's "
            f"{config.max_positions} positions, got {longest}"
        )
