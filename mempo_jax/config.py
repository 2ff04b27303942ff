"""The sections of a config as frozen dataclasses without defaults.

Each refuses impossible values when it is built. Sections that another package owns
(context, credit, the tasks) are its own dataclasses.

Config section of the engine: where turns are sampled, and how weights get there.

Config sections of sampling, objective and training; see ``sections``.

The settings of a whole run: all sections, what they must agree on, and advice.

Impossible values raise when a section is built; values outside the ranges that the
field recommends come back as warnings from ``advice``.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from mempo_jax.core.credit import CreditConfig
from mempo_jax.envs.adapters import ADAPTERS, AdapterConfig
from mempo_jax.envs.babi import BabiConfig
from mempo_jax.envs.context import ContextConfig
from mempo_jax.envs.dialogue import DialogueConfig
from mempo_jax.envs.episode import EpisodeSettings
from mempo_jax.envs.factbook import FactbookConfig
from mempo_jax.envs.ledger import LedgerConfig
from mempo_jax.envs.multi_qa import MultiQaConfig
from mempo_jax.envs.reward import RewardConfig
from mempo_jax.envs.tools import ToolConfig
from mempo_jax.memory import BankConfig, Embedder, make_embedder
from mempo_jax.models.attention import IMPLEMENTATIONS
from mempo_jax.models.lora import Lora
from mempo_jax.rollout.http_engine import check_directory, read_call
from mempo_jax.settings import ConfigError, build

SUITES = ("ledger", "babi", "dialogue", "multi_qa", "factbook", *ADAPTERS)
DTYPES = ("float32", "bfloat16")
JUDGES = ("lexical", "always", "policy")
SUMMARIES = ("truncate", "policy")
EMBEDDERS = ("static", "hashing", "sentence_transformers")


def require(ok: bool, field: str, expected: str, got: Any) -> None:
    if not ok:
        raise ConfigError(f"config.{field}: expected {expected}, got {got!r}")


def check_ascending(buckets: tuple[int, ...], field: str) -> None:
    ok = bool(buckets) and list(buckets) == sorted(set(buckets)) and buckets[0] >= 1
    require(ok, field, "ascending positive lengths", buckets)


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    name: str
    data_dir: str
    step_timeout_s: float
    tools: ToolConfig
    ledger: LedgerConfig
    babi: BabiConfig
    dialogue: DialogueConfig
    multi_qa: MultiQaConfig
    factbook: FactbookConfig
    adapter: AdapterConfig

    def __post_init__(self) -> None:
        ok = self.name in SUITES or ":" in self.name.strip(":")
        expected = f"one of {SUITES}, or 'package.module:Name' of one's own"
        require(ok, "env.name", expected, self.name)
        ok = self.step_timeout_s > 0
        require(ok, "env.step_timeout_s", "> 0 seconds", self.step_timeout_s)


@dataclasses.dataclass(frozen=True)
class MemoryConfig:
    enabled: bool
    capacity: int
    retrieval_top_k: int
    oversample: int
    mmr_lambda: float
    merge_threshold: float
    judge: str
    embedder: str
    embedder_model: str
    ann_threshold: int
    max_entry_chars: int
    merge_max_chars: int
    max_ops_per_turn: int
    judge_adds_prompt: str
    judge_changes_prompt: str
    judge_yes: str
    judge_no: str
    summarise: str
    summarise_prompt: str
    summarise_tokens: int

    def __post_init__(self) -> None:
        self.bank()
        require(self.judge in JUDGES, "memory.judge", f"one of {JUDGES}", self.judge)
        ok = self.summarise in SUMMARIES
        require(ok, "memory.summarise", f"one of {SUMMARIES}", self.summarise)
        tokens = self.summarise_tokens
        require(tokens >= 1, "memory.summarise_tokens", "at least 1", tokens)
        ok = self.embedder in EMBEDDERS
        require(ok, "memory.embedder", f"one of {EMBEDDERS}", self.embedder)
        by_model = self.embedder == "sentence_transformers"
        expected = "a model directory" if by_model else f"'' with {self.embedder!r}"
        ok = bool(self.embedder_model) == by_model
        require(ok, "memory.embedder_model", expected, self.embedder_model)

    def make_embedder(self) -> Embedder:
        """The embedder of all banks; ConfigError where it cannot be had."""
        chosen = {"model": self.embedder_model} if self.embedder_model else {}
        try:
            return make_embedder(self.embedder, **chosen)
        except (ValueError, OSError, ImportError) as error:
            raise ConfigError(f"config.memory.embedder: {error}") from error

    def bank(self) -> BankConfig:
        """The bank's own settings; every bank field comes from this section."""
        names = [f.name for f in dataclasses.fields(BankConfig)]
        try:
            return BankConfig(**{name: getattr(self, name) for name in names})
        except ValueError as error:
            raise ConfigError(f"config.memory: {error}") from error


@dataclasses.dataclass(frozen=True)
class RewardSection:
    function: str
    task_weight: float
    malformed: float
    duplicate: float
    overflow: float
    write_cost: float
    penalty_floor: float
    efficiency_size: float
    efficiency_hits: float
    outcome_gate: bool

    def __post_init__(self) -> None:
        self.weights()
        module, colon, name = self.function.partition(":")
        ok = not self.function or (module and colon and name and ":" not in name)
        require(ok, "reward.function", "'package.module:function'", self.function)

    def weights(self) -> RewardConfig:
        names = [f.name for f in dataclasses.fields(RewardConfig)]
        return RewardConfig(**{name: getattr(self, name) for name in names})


@dataclasses.dataclass(frozen=True)
class NanoConfig:
    layers: int
    width: int
    heads: int
    mlp_width: int

    def __post_init__(self) -> None:
        for field in ("layers", "width", "heads", "mlp_width"):
            value = getattr(self, field)
            require(value >= 1, f"policy.nano.{field}", "at least 1", value)
        ok = self.width % (2 * self.heads) == 0
        require(ok, "policy.nano.width", "a multiple of 2 x heads", self.width)


@dataclasses.dataclass(frozen=True)
class LoraSection:
    rank: int
    alpha: float
    targets: tuple[str, ...]

    def __post_init__(self) -> None:
        require(self.rank >= 0, "policy.lora.rank", "at least 0 (0: off)", self.rank)
        try:
            Lora(max(self.rank, 1), self.alpha, self.targets)
        except ValueError as error:
            raise ConfigError(f"config.policy.lora: {error}") from error

    def adapters(self) -> Lora | None:
        """None: all weights are trained."""
        return Lora(self.rank, self.alpha, self.targets) if self.rank else None


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    path: str
    ref_path: str
    chat_template_kwargs: tuple[tuple[str, bool | int | float | str], ...]
    param_dtype: str
    compute_dtype: str
    attention: str
    remat: bool
    lora: LoraSection
    nano: NanoConfig

    def __post_init__(self) -> None:
        for field in ("param_dtype", "compute_dtype"):
            got = getattr(self, field)
            require(got in DTYPES, f"policy.{field}", f"one of {DTYPES}", got)
        ok = self.attention in IMPLEMENTATIONS
        expected = f"one of {IMPLEMENTATIONS}"
        require(ok, "policy.attention", expected, self.attention)
        given = self.chat_template_kwargs
        ok = len({name for name, _ in given}) == len(given)
        require(ok, "policy.chat_template_kwargs", "each name once", given)
        expected = "() where policy.path is '': the built-in policy has no such options"
        ok = not given or bool(self.path)
        require(ok, "policy.chat_template_kwargs", expected, given)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    data: int
    fsdp: int
    tensor: int


@dataclasses.dataclass(frozen=True)
class LogConfig:
    tensorboard: bool
    wandb_project: str
    trajectories_every: int

    def __post_init__(self) -> None:
        ok = self.trajectories_every >= 0
        require(ok, "log.trajectories_every", ">= 0", self.trajectories_every)

    def records(self, step: int) -> bool:
        """Whether the trajectories of this step are written down."""
        return bool(self.trajectories_every) and step % self.trajectories_every == 0


KINDS = ("local", "http")
SYNCS = ("directory", "none")
STALE_GAP = 0.1  # nats: a server that never learns soon differs by more


@dataclasses.dataclass(frozen=True)
class HttpConfig:
    url: str
    model: str
    api_key_env: str
    timeout_s: float
    retries: int
    max_concurrent: int
    sync: str
    sync_dir: str
    reload: tuple[str, ...]
    reload_timeout_s: float

    def __post_init__(self) -> None:
        def check(ok: bool, field: str, expected: str) -> None:
            require(ok, f"engine.http.{field}", expected, getattr(self, field))

        for field in ("timeout_s", "reload_timeout_s"):
            check(getattr(self, field) > 0, field, "> 0 seconds")
        check(self.retries >= 0, "retries", "at least 0")
        check(self.max_concurrent >= 1, "max_concurrent", "at least 1")
        check(self.sync in SYNCS, "sync", f"one of {SYNCS}")
        for line in self.reload:
            try:
                read_call(line)
            except ValueError as error:
                raise ConfigError(f"config.engine.http.reload: {error}") from error

    def check_used(self) -> None:
        """Raises ConfigError on what a server cannot be reached or filled with."""
        parts = urllib.parse.urlsplit(self.url)
        ok = parts.scheme in ("http", "https") and bool(parts.hostname)
        require(ok, "engine.http.url", "'http://host:port' or https", self.url)
        # Not shown: what stands there may be a secret.
        plain = not (parts.username or parts.password or parts.query)
        expected = "no user, password or query; a key goes into an environment variable"
        require(plain, "engine.http.url", f"{expected} (api_key_env)", "one with them")
        require(
            bool(self.model),
            "engine.http.model",
            "the name under which the server serves the policy (see its /v1/models)",
            self.model,
        )
        self.api_key()
        if self.sync != "directory":
            return
        require(
            bool(self.sync_dir),
            "engine.http.sync_dir",
            "a directory that this machine and the server share, as sync is "
            "'directory'",
            self.sync_dir,
        )
        require(
            bool(self.reload),
            "engine.http.reload",
            "calls that make the server read its weights again",
            self.reload,
        )
        try:
            check_directory(pathlib.Path(self.sync_dir))
        except ValueError as error:
            raise ConfigError(f"config.engine.http.sync_dir: {error}") from error

    def api_key(self) -> str:
        """The key from the environment; "" where none is named."""
        name = self.api_key_env
        if not name:
            return ""
        key = os.environ.get(name, "")
        if not key or not key.isascii() or not key.isprintable():
            raise ConfigError(
                f"config.engine.http.api_key_env = {name!r}: expected an environment "
                "variable that holds the key, in printable ASCII; it is not set, "
                "empty, or of another form"
            )
        return key


@dataclasses.dataclass(frozen=True)
class EngineConfig:
    kind: str
    lanes: int
    row_buckets: tuple[int, ...]
    http: HttpConfig

    def __post_init__(self) -> None:
        require(self.kind in KINDS, "engine.kind", f"one of {KINDS}", self.kind)
        require(self.lanes >= 1, "engine.lanes", "at least 1", self.lanes)
        ok = all(rows >= 1 for rows in self.row_buckets)
        require(ok, "engine.row_buckets", "numbers of at least 1", self.row_buckets)
        if self.kind == "http":
            self.http.check_used()

    def check_fits(self, slots: int, devices: int) -> None:
        """Raises ConfigError where the local engine cannot compute so.

        slots: of this process. devices: that these lie on.
        """
        whole = slots % self.lanes == 0
        expected = f"a divisor of the {slots} slots (sampling.slots)"
        require(whole, "engine.lanes", expected, self.lanes)
        why = f"as {devices} devices of this process share the rows (see config.mesh)"
        alone = devices == 1
        require(alone or self.lanes == 1, "engine.lanes", f"1, {why}", self.lanes)
        ok = alone or not self.row_buckets
        require(ok, "engine.row_buckets", f"(), {why}", self.row_buckets)

    @property
    def stale(self) -> bool:
        """Whether the sampler keeps the weights it has while the policy learns."""
        return self.kind == "http" and self.http.sync == "none"


def check_stale(
    engine: EngineConfig, importance_cap: float, gap: float, eval_tasks: int
) -> None:
    """Raises ConfigError where a sampler that never learns would be taken for the
    policy: by the objective, by the check of log-probs, or by an evaluation."""
    if not engine.stale:
        return
    why = "as engine.http.sync = 'none' lets the server keep its weights"
    require(
        importance_cap > 0,
        "objective.importance_cap",
        f"above 0 (2.0 is usual) {why}",
        importance_cap,
    )
    require(
        gap >= STALE_GAP,
        "train.max_log_prob_gap",
        f"at least {STALE_GAP} (nats; some tokens soon differ by several) {why}",
        gap,
    )
    require(
        eval_tasks == 0,
        "train.eval_tasks",
        f"0 {why}: an evaluation would be one of the server's weights; use "
        "engine.http.sync = 'directory', or evaluate the saved policy afterwards",
        eval_tasks,
    )


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
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
class ObjectiveConfig:
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
class TrainConfig:
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


BFLOAT16_GAP = 0.1  # sampler against trainer, both in bfloat16


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """All sections of a config."""

    seed: int
    env: EnvConfig
    context: ContextConfig
    memory: MemoryConfig
    reward: RewardSection
    policy: PolicyConfig
    sampling: SamplingConfig
    engine: EngineConfig
    credit: CreditConfig
    objective: ObjectiveConfig
    train: TrainConfig
    mesh: MeshConfig
    log: LogConfig

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


def from_config(config: Mapping[str, Any]) -> RunConfig:
    """Checks a whole config (a plain nested mapping) and types it.

    Raises:
      ConfigError: in one line, what does not fit.
    """
    try:
        return build(RunConfig, config, "config")
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error


def advice(s: RunConfig) -> list[str]:
    """One warning for each value outside the recommended range, with the remedy."""
    return list(_ranges(s))


def _ranges(s: RunConfig) -> Iterator[str]:
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
