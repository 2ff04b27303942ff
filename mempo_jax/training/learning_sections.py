"""Config sections of sampling, objective and training; see ``sections``."""

from __future__ import annotations

import dataclasses
import math

from mempo_jax.training.sections import check_ascending, require


@dataclasses.dataclass(frozen=True)
class SamplingSection:
    group_size: int
    tasks_per_step: int
    temperature: float
    top_p: float
    top_k: int
    max_turns: int
    max_new_tokens: int
    slots: int
    decode_chunk: int
    prefill_buckets: tuple[int, ...]
    drop_degenerate: bool
    max_resample_rounds: int
    max_failed_share: float

    def __post_init__(self) -> None:
        def check(ok: bool, field: str, expected: str) -> None:
            require(ok, f"sampling.{field}", expected, getattr(self, field))

        size = "at least 2 (a group of 1 has no baseline); 8 to 16 is usual"
        check(self.group_size >= 2, "group_size", size)
        for field in ("tasks_per_step", "max_turns", "max_new_tokens", "slots"):
            check(getattr(self, field) >= 1, field, "at least 1")
        check(self.decode_chunk >= 1, "decode_chunk", "at least 1")
        check(self.temperature > 0, "temperature", "> 0 in training")
        check(self.top_p == 1.0, "top_p", "1.0: scoring uses the full distribution")
        check(self.top_k == 0, "top_k", "0: scoring uses the full distribution")
        check_ascending(self.prefill_buckets, "sampling.prefill_buckets")
        rounds = self.max_resample_rounds
        check(rounds >= 0, "max_resample_rounds", "at least 0")
        kept = "0 where drop_degenerate is False: then no group is replaced"
        ok = rounds == 0 or self.drop_degenerate
        check(ok, "max_resample_rounds", kept)
        check(0 <= self.max_failed_share <= 1, "max_failed_share", "0 to 1")


@dataclasses.dataclass(frozen=True)
class ObjectiveSection:
    clip_low: float
    clip_high: float
    dual_clip: float
    aggregation: str
    constant_length: int
    kl_coef: float
    kl_warmup_steps: int
    kl_estimator: str
    kl_scope: str
    importance_cap: float
    advantage_eps: float
    advantage_ddof: int
    divide_by_std: bool

    def __post_init__(self) -> None:
        def check(ok: bool, field: str, expected: str) -> None:
            require(ok, f"objective.{field}", expected, getattr(self, field))

        check(0 < self.clip_low < 1, "clip_low", "above 0, below 1")
        check(self.clip_high > 0, "clip_high", "> 0")
        check(self.dual_clip == 0 or self.dual_clip > 1, "dual_clip", "0 or > 1")
        rules = ("token_mean", "trajectory_mean", "constant")
        check(self.aggregation in rules, "aggregation", f"one of {rules}")
        check(self.constant_length >= 1, "constant_length", "at least 1")
        check(self.kl_coef >= 0, "kl_coef", "at least 0")
        check(self.kl_warmup_steps >= 0, "kl_warmup_steps", "at least 0")
        estimators = ("k1", "k2", "k3")
        check(self.kl_estimator in estimators, "kl_estimator", f"one of {estimators}")
        scopes = ("all", "ops")
        check(self.kl_scope in scopes, "kl_scope", f"one of {scopes}")
        ok = 0 <= self.importance_cap < math.inf
        check(ok, "importance_cap", "0 (off), or a finite cap > 0")
        check(self.advantage_eps > 0, "advantage_eps", "> 0")
        check(self.advantage_ddof in (0, 1), "advantage_ddof", "0 or 1")


@dataclasses.dataclass(frozen=True)
class TrainSection:
    steps: int
    learning_rate: float
    warmup_steps: int
    decay_steps: int
    weight_decay: float
    adam_b2: float
    grad_clip: float
    minibatches: int
    micro_batch_tokens: int
    length_buckets: tuple[int, ...]
    max_log_prob_gap: float
    max_skipped_updates: int
    cold_start_steps: int
    cold_start_rows: int
    cold_start_learning_rate: float
    cold_start_checkpoint_every: int
    demonstrations: int
    demonstrations_path: str
    checkpoint_every: int
    checkpoints_kept: int
    checkpoint_best: str
    eval_tasks: int

    def __post_init__(self) -> None:
        def check(ok: bool, field: str, expected: str) -> None:
            require(ok, f"train.{field}", expected, getattr(self, field))

        for field in (
            *("steps", "warmup_steps", "decay_steps", "cold_start_steps"),
            "eval_tasks",
        ):
            check(getattr(self, field) >= 0, field, "at least 0")
        for field in ("learning_rate", "weight_decay", "cold_start_learning_rate"):
            check(getattr(self, field) >= 0, field, "at least 0")
        for field in (
            *("minibatches", "micro_batch_tokens", "cold_start_rows"),
            *("demonstrations", "checkpoint_every", "checkpoints_kept"),
            *("max_skipped_updates", "cold_start_checkpoint_every"),
        ):
            check(getattr(self, field) >= 1, field, "at least 1")
        check(0 < self.adam_b2 < 1, "adam_b2", "between 0 and 1")
        ok = self.decay_steps == 0 or self.decay_steps > self.warmup_steps
        check(ok, "decay_steps", f"0 or above warmup_steps = {self.warmup_steps}")
        check(self.grad_clip > 0, "grad_clip", "> 0")
        check(self.max_log_prob_gap > 0, "max_log_prob_gap", "> 0")
        check_ascending(self.length_buckets, "train.length_buckets")
