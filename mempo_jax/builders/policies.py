"""The policy of a run: read from a directory, or the built-in `nano`, made here.

A policy is of use with the settings it learnt under: instructions, context rule, bank.
So the directory of an exported policy holds them too, as ``mempo_config.json``, and
the directory alone is enough to run it.

An adapted policy, which trains adapters in place of all weights, is a ``Policy`` whose
model computes with adapters and whose parameters hold them, float32, beside the base.
The base is placed once, in ``policy.param_dtype``, and never copied: sampling, scoring
and the reference, which is the same policy with adapters that do nothing yet, share it.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from mempo_jax.builders import memory_models
from mempo_jax.builders.suites import guarded, play_expert, task_faults
from mempo_jax.config import POLICY_CONFIG, RunConfig, complete_saved
from mempo_jax.distributed import hosts, placement
from mempo_jax.distributed.placement import fetch, on_mesh, place_params
from mempo_jax.envs import TaskSuite, derived_seed
from mempo_jax.envs.base import described
from mempo_jax.envs.own_environments import OwnSuite
from mempo_jax.memory import OpError, error_message
from mempo_jax.models import hf, lora, stream
from mempo_jax.models.attention import refusal
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.models.nano import build_nano, nano_config
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.settings import ConfigError, with_version

FILE = POLICY_CONFIG
EXPERT_TASKS = 16  # played for the words that an environment's own expert says


@dataclasses.dataclass(frozen=True)
class Policy:
    """A model with its tokenizer and parameters.

    Attributes:
      config: shape of the model.
      model: computes with parameters that it is given.
      tokenizer: of the model.
      params: nested dict of numpy or jax arrays; None if the caller holds them.
    """

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
        """Writes a Hugging Face directory, adapters merged into the weights.

        If several processes run, each must call it; the first one writes.

        Args:
          directory: to write into.
          params: to write, in place of the policy's own.
          config: of the run, written beside them; see ``write_config``.
          repeat_tied: also write an output matrix that is tied to the embedding.
        """
        write = hosts.primary()
        hf.save(
            *(directory, self.config, params, self.tokenizer),
            adapters=self.model.lora,
            repeat_tied=repeat_tied,
            fetch=fetch,
            write=write,
        )
        if config is not None and write:
            write_config(directory, config)


def load_policy(path: str, settings: RunConfig, mesh: Mesh | None = None) -> Policy:
    """Reads a Hugging Face directory or a GGUF file.

    Args:
      path: of either; also "package:name/file", in an installed package.
      settings: of the run.
      mesh: where the parameters are streamed to; None: numpy, whole.

    Raises:
      ConfigError: nothing is there, or config, weights and tokenizer do not fit
        together.
    """
    place = stream.as_numpy if mesh is None else on_mesh(mesh)
    try:
        config, params, tokenizer = hf.load(
            path,
            place,
            settings.policy.param_dtype,
            settings.policy.chat_template_kwargs,
        )
    except (ValueError, OSError) as error:
        of_policy = settings.policy
        other = path == of_policy.ref_path and path != of_policy.path
        field = "policy.ref_path" if other else "policy.path"
        why = hf.how_to_download(path, field) or error
        raise ConfigError(f"policy {path!r}: {why}") from error
    _check_positions(config, settings)
    return Policy(config, _model(config, settings), tokenizer, params)


def initial_policy(
    suite: TaskSuite, settings: RunConfig, mesh: Mesh | None = None
) -> Policy:
    """The policy before any training: that of ``policy.path``, else a new `nano`.

    Args:
      suite: whose words `nano` must know.
      settings: of the run.
      mesh: where parameters that are read are streamed to; None: numpy, whole.
    """
    path = settings.policy.path
    return load_policy(path, settings, mesh) if path else make_nano(suite, settings)


def make_nano(suite: TaskSuite, settings: RunConfig) -> Policy:
    """The built-in small policy, untrained, with a vocabulary for this suite.

    Args:
      suite: whose goals and words it must know.
      settings: of the run.
    """
    shape = settings.policy.nano
    context = settings.context
    texts = [
        *_goals(suite, settings),
        *(context.instructions, *context.instruction_variants),
        context.reminder,
        f" {context.reminder}",
        "turn 0/0 memory 0 (a, b): \nerror: \nrecalled nothing\n0: text",
        *(error_message(error) for error in OpError),
    ]
    numbers = [str(n) for n in range(settings.sampling.max_turns + 1)]
    prompts, answers = memory_models.vocabulary(settings)
    words = [*suite.vocabulary(), *numbers, *answers, *_expert_words(suite, settings)]
    tokenizer = build_nano([*texts, *prompts], words)
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
    params = jax.jit(model.init)(key)  # one program, not one for each draw
    stored = jax.tree.map(lambda p: p.astype(settings.policy.param_dtype), params)
    return Policy(config, model, tokenizer, stored)


def _goals(suite: TaskSuite, settings: RunConfig) -> list[str]:
    """Goals of the first tasks: they differ, and their words must be known."""
    goals, faults = [], task_faults(suite, settings, "the goals of tasks were read")
    for index in range(64):
        task = suite.task("train", index)
        env = guarded(suite).make(task)
        faults.tried += 1
        try:
            env.reset(task.seed)
            goals.append(env.goal)
        except Exception as error:
            if not isinstance(suite, OwnSuite):
                raise
            faults.add(f"reset({task.seed}) raised {described(error)}")
    return goals


def _expert_words(suite: TaskSuite, settings: RunConfig) -> list[str]:
    """Words that an environment's own expert says, and those of the replies.

    Its suite cannot know them: it only sees tasks in which nobody acts.
    """
    if not (isinstance(suite, OwnSuite) and suite.has_expert):
        return []
    texts: list[str] = []
    for episode in play_expert(suite, settings, EXPERT_TASKS, write_rate=1.0):
        texts += [*episode.actions, *episode.observations]
    return sorted({word for text in texts for word in re.findall(r"\w+", text)})


def _model(config: DecoderConfig, settings: RunConfig) -> LanguageModel:
    policy = settings.policy
    why = refusal(policy.attention, policy.compute_dtype, config.head_dim)
    if why:
        raise ConfigError(f"config.policy.attention: {why}")
    return LanguageModel(
        config,
        policy.compute_dtype,
        remat=policy.remat,
        attention=policy.attention,
    )


def _check_positions(config: DecoderConfig, settings: RunConfig) -> None:
    longest = settings.train.length_buckets[-1]
    if config.max_positions < longest:
        raise ConfigError(
            "config.train.length_buckets: expected at most the policy's "
            f"{config.max_positions} positions, got {longest}"
        )


def adapt(policy: Policy, settings: RunConfig, mesh: Mesh, purpose: str) -> Policy:
    """The policy with fresh adapters, or the policy itself if ``policy.lora`` is off.

    Args:
      policy: the base.
      settings: of the run.
      mesh: where base and adapters are placed.
      purpose: what they are for; with the run's seed it decides how they start.
    """
    adapters_config = settings.policy.lora
    if not adapters_config.rank:
        return policy
    base = place_params(policy.params, mesh)
    key = jax.random.key(derived_seed("adapters", purpose, settings.seed) % 2**31)

    def fresh(key: Any) -> Any:
        return lora.new_adapters(base, adapters_config, key)

    # Made in place: no device holds more than its own part of the adapters.
    shardings = placement.shardings(jax.eval_shape(fresh, key), mesh)
    adapters = jax.jit(fresh, out_shardings=shardings)(key)
    return dataclasses.replace(
        policy,
        model=policy.model.with_lora(adapters_config),
        params=lora.join(adapters, base),
    )


def write_config(directory: pathlib.Path, config: Mapping[str, Any]) -> None:
    """Writes the config beside the weights of a policy.

    Args:
      directory: of the policy; it must exist.
      config: of the run, nested sections.
    """
    text = json.dumps(with_version(config), indent=1, sort_keys=True)
    (directory / FILE).write_text(text + "\n", encoding="utf-8")


def read_config(directory: str) -> dict[str, Any]:
    """The config of a policy: its own, else that of the run it is in (RUN/policy).

    Args:
      directory: of the policy.

    Raises:
      ConfigError: there is none, or it is damaged.
    """
    path = pathlib.Path(directory)
    for file in (path / FILE, path.parent / "config.json"):
        if file.is_file():
            return read_json(file)
    raise ConfigError(
        f"{directory}: expected {FILE} in it, or the config.json of its run beside it, "
        "found neither; give the config that it was trained with"
    )


def read_json(file: pathlib.Path) -> dict[str, Any]:
    """The config of a run as this version reads it; see ``config.complete_saved``.

    Args:
      file: JSON.

    Raises:
      ConfigError: it cannot be read, is not a config, or is of a newer version.
    """
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: expected a config as JSON: {error}") from error
    if not isinstance(config, dict) or "context" not in config:
        raise ConfigError(
            f"{file}: expected the config of a run, a JSON object of its sections; "
            "copy it again from the run, or give a config"
        )
    return complete_saved(config, str(file))
