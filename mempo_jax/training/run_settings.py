"""The settings of a whole run: all sections, what they must agree on, and advice.

Impossible values raise when a section is built; values outside the ranges that the
field recommends come back as warnings from ``advice``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from mempo_jax.core.credit import CreditSettings
from mempo_jax.envs.context import ContextSettings
from mempo_jax.envs.episode import EpisodeSettings
from mempo_jax.settings import ConfigError, build
from mempo_jax.training.engine_section import EngineSection, check_stale
from mempo_jax.training.learning_sections import (
    ObjectiveSection,
    SamplingSection,
    TrainSection,
)
from mempo_jax.training.sections import (
    EnvSection,
    LogSection,
    MemorySection,
    MeshSection,
    PolicySection,
    RewardSection,
    require,
)

BFLOAT16_GAP = 0.1  # sampler against trainer, both in bfloat16


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """All sections of a config."""

    seed: int
    env: EnvSection
    context: ContextSettings
    memory: MemorySection
    reward: RewardSection
    policy: PolicySection
    sampling: SamplingSection
    engine: EngineSection
    credit: CreditSettings
    objective: ObjectiveSection
    train: TrainSection
    mesh: MeshSection
    log: LogSection

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**31, "seed", "0 to 2^31 - 1", self.seed)
        longest = self.max_segment_tokens
        got = self.train.length_buckets[-1]
        expected = (
            f"a last bucket of at least {longest} (context.max_context_tokens + "
            "sampling.max_new_tokens)"
        )
        require(got >= longest, "train.length_buckets", expected, got)
        weight, capacity = self.reward.efficiency_size, self.memory.capacity
        expected = "0 where memory.capacity is 0: no bound to measure the size against"
        ok = weight == 0 or capacity > 0
        require(ok, "reward.efficiency_size", expected, weight)
        cap, gap = self.objective.importance_cap, self.train.max_log_prob_gap
        check_stale(self.engine, cap, gap, self.train.eval_tasks)

    @property
    def max_segment_tokens(self) -> int:
        return self.context.max_context_tokens + self.sampling.max_new_tokens

    def episode(self) -> EpisodeSettings:
        return EpisodeSettings(
            max_turns=self.sampling.max_turns,
            max_ops_per_turn=self.memory.max_ops_per_turn,
            max_entry_chars=self.memory.max_entry_chars,
            retrieval_top_k=self.memory.retrieval_top_k,
        )


def from_config(config: Mapping[str, Any]) -> RunSettings:
    """Checks a whole config (a plain nested mapping) and types it.

    Raises:
      ConfigError: in one line, what does not fit.
    """
    try:
        return build(RunSettings, config, "config")
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error


def advice(s: RunSettings) -> list[str]:
    """One warning for each value outside the recommended range, with the remedy."""
    return list(_ranges(s))


def _ranges(s: RunSettings) -> Iterator[str]:
    turns = s.sampling.max_turns
    for field, value, low, high, why in (
        (
            "sampling.group_size",
            s.sampling.group_size,
            8,
            16,
            "small groups make noisy baselines" if s.sampling.group_size < 8 else "",
        ),
        ("sampling.temperature", s.sampling.temperature, 0.8, 1.0, "diversity"),
        ("memory.retrieval_top_k", s.memory.retrieval_top_k, 4, 8, ""),
        ("memory.merge_threshold", s.memory.merge_threshold, 0.85, 0.9, ""),
        ("objective.kl_coef", s.objective.kl_coef, 0.01, 0.05, ""),
        ("objective.clip_low", s.objective.clip_low, 0.1, 0.3, ""),
        ("objective.clip_high", s.objective.clip_high, 0.1, 0.3, ""),
        ("sampling.max_turns", turns, 20, 40, ""),
    ):
        if not low <= value <= high:
            because = f" ({why})" if why else ""
            yield f"config.{field} = {value}: {low} to {high} is recommended{because}"
    if len(s.reward.weights().active()) > 4:
        yield (
            f"config.reward: {s.reward.weights().active()} are active; more than four "
            "components are hard to balance, set one to 0"
        )
    if 0 < s.train.decay_steps < s.train.steps:
        yield (
            f"config.train.steps = {s.train.steps}: from step {s.train.decay_steps} "
            "(train.decay_steps) on the learning rate is 0; raise train.decay_steps"
        )
    gap = s.train.max_log_prob_gap
    if s.policy.compute_dtype == "bfloat16" and gap < BFLOAT16_GAP:
        yield (
            f"config.train.max_log_prob_gap = {gap}: in bfloat16 (config.policy."
            "compute_dtype) rounding alone exceeds it and stops the run; "
            f"{BFLOAT16_GAP} leaves room"
        )
    if s.objective.advantage_ddof == 1:
        yield "config.objective.advantage_ddof = 1: retune train.learning_rate"
    if s.policy.ref_path:
        yield (
            "config.policy.ref_path is set: the KL pulls towards that model, which may "
            "differ from the initial policy; it is not checked to start at 0"
        )
