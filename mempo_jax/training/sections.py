"""The sections of a config as frozen dataclasses without defaults.

Each refuses impossible values when it is built. Sections that another package owns
(context, credit, the tasks) are its own dataclasses.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from mempo_jax.envs.adapters import ADAPTERS, AdapterSettings
from mempo_jax.envs.babi import BabiSettings
from mempo_jax.envs.dialogue import DialogueSettings
from mempo_jax.envs.factbook import FactbookSettings
from mempo_jax.envs.ledger import LedgerSettings
from mempo_jax.envs.multi_qa_settings import MultiQaSettings
from mempo_jax.envs.reward import RewardSettings
from mempo_jax.envs.tools import ToolSettings
from mempo_jax.memory import BankConfig, Embedder, make_embedder
from mempo_jax.models.attention import IMPLEMENTATIONS
from mempo_jax.models.lora import Lora
from mempo_jax.settings import ConfigError

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
class EnvSection:
    name: str
    data_dir: str
    step_timeout_s: float
    tools: ToolSettings
    ledger: LedgerSettings
    babi: BabiSettings
    dialogue: DialogueSettings
    multi_qa: MultiQaSettings
    factbook: FactbookSettings
    adapter: AdapterSettings

    def __post_init__(self) -> None:
        ok = self.name in SUITES or ":" in self.name.strip(":")
        expected = f"one of {SUITES}, or 'package.module:Name' of one's own"
        require(ok, "env.name", expected, self.name)
        ok = self.step_timeout_s > 0
        require(ok, "env.step_timeout_s", "> 0 seconds", self.step_timeout_s)


@dataclasses.dataclass(frozen=True)
class MemorySection:
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

    def weights(self) -> RewardSettings:
        names = [f.name for f in dataclasses.fields(RewardSettings)]
        return RewardSettings(**{name: getattr(self, name) for name in names})


@dataclasses.dataclass(frozen=True)
class NanoSection:
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
class PolicySection:
    path: str
    ref_path: str
    chat_template_kwargs: tuple[tuple[str, bool | int | float | str], ...]
    param_dtype: str
    compute_dtype: str
    attention: str
    remat: bool
    lora: LoraSection
    nano: NanoSection

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
class MeshSection:
    data: int
    fsdp: int
    tensor: int


@dataclasses.dataclass(frozen=True)
class LogSection:
    tensorboard: bool
    wandb_project: str
    trajectories_every: int

    def __post_init__(self) -> None:
        ok = self.trajectories_every >= 0
        require(ok, "log.trajectories_every", ">= 0", self.trajectories_every)

    def records(self, step: int) -> bool:
        """Whether the trajectories of this step are written down."""
        return bool(self.trajectories_every) and step % self.trajectories_every == 0
