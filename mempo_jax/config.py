"""The settings of a run: its sections, what they must agree on, and advice.

A section is a frozen dataclass without defaults; every default is in
``configs/base.py``. Bounds of single fields are in their types (``PositiveInt``), and
what fields must agree on is in ``__post_init__``: an impossible value raises a
``ConfigError`` that names the field. Values that are possible, but outside of what is
recommended, come back as warnings from ``advice``.

Sections that concern one other package alone are dataclasses of that package: context,
reward, credit, and the tasks.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import warnings
from collections.abc import Container, Iterator, Mapping
from typing import Annotated, Any

from mempo_jax.core.credit import CreditConfig
from mempo_jax.core.objective import AGGREGATIONS, AUX_KEYS, IMPORTANCE_KEYS
from mempo_jax.engine_config import EngineConfig, check_adapters, check_stale
from mempo_jax.envs.adapters import ADAPTERS, AdapterConfig
from mempo_jax.envs.babi import BabiConfig
from mempo_jax.envs.context import (
    ContextConfig,
    WorkedContext,
    describe,
    worked_example,
)
from mempo_jax.envs.dialogue import DialogueConfig
from mempo_jax.envs.factbook import FactbookConfig
from mempo_jax.envs.ledger import LedgerConfig
from mempo_jax.envs.multi_qa import MultiQaConfig
from mempo_jax.envs.reward import RewardConfig
from mempo_jax.envs.tools import ToolConfig
from mempo_jax.memory import BankConfig, Embedder, make_embedder
from mempo_jax.models.attention import IMPLEMENTATIONS
from mempo_jax.models.lora import LoraConfig
from mempo_jax.rollout.sampler import Decoding
from mempo_jax.settings import (
    LOG_PROB_GAPS,
    Bound,
    Buckets,
    ConfigError,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seconds,
    above,
    add_missing,
    at_least,
    build,
    check_bounds,
    migrated,
    one_of,
    require,
)

SUITES = ("ledger", "babi", "dialogue", "multi_qa", "factbook", *ADAPTERS)
DTYPES = ("float32", "bfloat16")
JUDGES = ("lexical", "always", "policy")
KL_ESTIMATORS = ("k1", "k2", "k3")
KL_SCOPES = ("all", "ops")
SUMMARIES = ("truncate", "policy")
EMBEDDERS = ("static", "hashing", "sentence_transformers")
# Fields that came after the first runs and whose default was changed since, or may be:
# what a config that was saved before them meant, whatever configs/base.py says today.
ADDED_FIELDS = {
    "context.instruction_examples": 0,
    "context.instructions_form": "given",
    "credit.bonus_decay_steps": 0,
    "env.workers": 1,
    "memory.tombstone_turns": 0,
    "mesh.sampling.data": -1,
    "mesh.sampling.devices": 0,
    "mesh.sampling.fsdp": 0,
    "mesh.sampling.tensor": 0,
    "objective.logit_chunk": 2_048,
    "sampling.steps_ahead": 0,
    "train.adam_b1": 0.9,
    "train.adam_eps": 1e-8,
}

# Those of configs/base.py, which `nano` learns with: "auto" replaces no others.
PLAIN_INSTRUCTIONS = "use memory"
_SHOWN_FIELDS = 12  # in the warning of fields that were added
POLICY_CONFIG = "mempo_config.json"  # the config, in the folder of an exported policy

Dtype = Annotated[str, one_of(DTYPES)]
Decay = Annotated[float, Bound(lambda value: 0 < value < 1, "between 0 and 1")]
GroupSize = Annotated[
    int, at_least(2, "(a group of 1 has no baseline); 8 to 16 is usual")
]
# The trainer scores tokens under the full distribution, so the sampler must draw from
# it: a truncated one would make the ratio of a token something else.
FullTopP = Annotated[
    float, Bound(lambda value: value == 1.0, "1.0: scoring uses the full distribution")
]
FullTopK = Annotated[
    int, Bound(lambda value: value == 0, "0: scoring uses the full distribution")
]
Share = Annotated[float, Bound(lambda value: 0 <= value <= 1, "0 to 1")]
ClipLow = Annotated[float, Bound(lambda value: 0 < value < 1, "above 0, below 1")]
DualClip = Annotated[float, Bound(lambda value: value == 0 or value > 1, "0 or > 1")]
ImportanceCap = Annotated[
    float, Bound(lambda value: 0 <= value < math.inf, "0 (off), or a finite cap > 0")
]
StepsOrNever = Annotated[int, Bound(lambda value: value >= 0, ">= 0")]  # 0: never
Ddof = Annotated[int, Bound(lambda value: value in (0, 1), "0 or 1")]


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """All sections of a config."""

    seed: int  # keys every random draw
    env: EnvConfig
    context: ContextConfig
    memory: MemoryConfig
    reward: RewardConfig
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
        cap, gap = self.objective.importance_cap, self.max_log_prob_gap
        check_stale(self.engine, cap, gap, self.train.eval_tasks)
        rank, cold_steps = self.policy.lora.rank, self.train.cold_start_steps
        check_adapters(self.engine, rank, cold_steps)
        ahead = self.sampling.steps_ahead > 0
        why = "with sampling.steps_ahead = 1, whose tokens come from older weights"
        ok = cap > 0 or not ahead
        require(ok, "objective.importance_cap", f"above 0 (2.0 is usual) {why}", cap)
        ok = not (ahead and self.engine.stale)
        expected = f"'directory' {why}: 'none' never gives the server new ones"
        require(ok, "engine.http.sync", expected, self.engine.http.sync)

    @property
    def max_log_prob_gap(self) -> float:
        """Nats between the sampler's and the trainer's log-prob of a token, at most.

        By ``train.max_log_prob_gap``, or if that is 0 by ``policy.compute_dtype``.
        """
        asked = self.train.max_log_prob_gap
        return asked or LOG_PROB_GAPS[self.policy.compute_dtype]

    @property
    def max_segment_tokens(self) -> int:
        """Tokens of the longest context and action together."""
        return self.context.max_context_tokens + self.sampling.max_new_tokens


def from_config(config: Mapping[str, Any]) -> RunConfig:
    """Checks a whole config and types it.

    Args:
      config: nested sections, as plain mappings.

    Raises:
      ConfigError: in one line, what does not fit.
    """
    try:
        return _told(build(RunConfig, config, "config"))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _told(settings: RunConfig) -> RunConfig:
    """The settings with the instructions that ``context.instructions_form`` means."""
    context, form = settings.context, settings.context.instructions_form
    if form == "auto":
        form = _usual_form(settings.policy.path, context.instructions)
    context = dataclasses.replace(context, instructions_form=form)
    if form != "given":
        told = context, settings.memory, settings.env.name
        text = describe(*told)
        # Other wordings of the task need the tags explained just as well.
        others = tuple(f"{text}\n{other}" for other in context.instruction_variants)
        context = dataclasses.replace(
            context, instructions=text, instruction_variants=others
        )
        context = WorkedContext.of(context, worked_example(*told))
    return dataclasses.replace(settings, context=context)


def _usual_form(path: str, instructions: str) -> str:
    """The form "auto" of a policy: a policy of a run keeps the form it learnt with."""
    if not path or instructions != PLAIN_INSTRUCTIONS:
        return "given"
    folder = pathlib.Path(path).expanduser()
    for file in (folder / POLICY_CONFIG, folder.parent / "config.json"):
        try:
            saved = json.loads(file.read_text(encoding="utf-8"))
            context, before = saved["context"], saved["policy"]["path"]
            form = context.get("instructions_form", "given")
            said = context["instructions"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # a model that no run has exported; what is damaged is told later
        return _usual_form(before, said) if form == "auto" else form
    return "short"


@dataclasses.dataclass(frozen=True)
class SamplingConfig(Decoding):
    """How groups are sampled and how their actions are drawn; section ``sampling``."""

    temperature: Annotated[float, above(0, "in training")]
    top_p: FullTopP
    top_k: FullTopK
    max_new_tokens: PositiveInt  # of one action
    group_size: GroupSize  # trajectories of one task, compared with each other
    tasks_per_step: PositiveInt  # groups of a training step
    max_turns: PositiveInt  # of a trajectory
    slots: PositiveInt  # trajectories generated at once, by all processes
    decode_chunk: PositiveInt  # tokens sampled between two looks at the text
    prefill_buckets: Buckets  # padded lengths in which new context is fed
    drop_degenerate: bool  # groups of equal rewards do not train
    max_resample_rounds: NonNegativeInt  # of other tasks in place of such groups
    max_failed_share: Share  # of a step's trajectories; if more fail, the run stops
    steps_ahead: Annotated[int, Bound(lambda n: n in (0, 1), "0 or 1")]

    @property
    def greedy(self) -> Decoding:
        """The most probable token each time, with the same bound on new tokens."""
        return Decoding(0.0, self.top_p, self.top_k, self.max_new_tokens)

    def __post_init__(self) -> None:
        check_bounds(self, "sampling")
        rounds = self.max_resample_rounds
        expected = "0 where drop_degenerate is False: then no group is replaced"
        ok = rounds == 0 or self.drop_degenerate
        require(ok, "sampling.max_resample_rounds", expected, rounds)


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig:
    """The loss; section ``objective``."""

    clip_low: ClipLow  # the ratio is clipped below at 1 - clip_low
    clip_high: PositiveFloat  # and above at 1 + clip_high
    dual_clip: DualClip  # c: a negative advantage A costs c |A| at most; 0: off
    aggregation: Annotated[str, one_of(AGGREGATIONS)]  # how tokens are averaged
    constant_length: PositiveInt  # tokens, the divisor of "constant"
    kl_coef: NonNegativeFloat  # weight of the KL to the reference policy
    kl_warmup_steps: NonNegativeInt  # steps in which it rises from 0
    kl_estimator: Annotated[str, one_of(KL_ESTIMATORS)]
    kl_scope: Annotated[str, one_of(KL_SCOPES)]  # "ops": tokens of memory ops alone
    importance_cap: ImportanceCap  # largest weight old / behaviour of a token
    advantage_eps: PositiveFloat  # added to the standard deviation of a group
    advantage_ddof: Ddof  # 1: unbiased standard deviation
    divide_by_std: bool  # False: advantages are r - mean, as in Dr. GRPO
    logit_chunk: Annotated[int, at_least(1, "token")]  # whose logits exist at once

    @property
    def aux_keys(self) -> tuple[str, ...]:
        """Names of the sums that the loss reports."""
        return AUX_KEYS + (IMPORTANCE_KEYS if self.importance_cap else ())

    def __post_init__(self) -> None:
        check_bounds(self, "objective")


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Steps, optimiser, cold start and checkpoints; section ``train``."""

    steps: NonNegativeInt  # of reinforcement learning
    learning_rate: NonNegativeFloat  # at its peak
    warmup_steps: NonNegativeInt  # of a linear rise to it
    decay_steps: NonNegativeInt  # step at which a cosine reaches 0; 0: constant
    weight_decay: NonNegativeFloat
    adam_b1: Decay
    adam_b2: Decay
    adam_eps: PositiveFloat
    grad_clip: PositiveFloat  # largest norm of the gradient of all parameters
    minibatches: PositiveInt  # optimiser updates of a step
    micro_batch_tokens: PositiveInt  # padded tokens of one forward pass
    length_buckets: Buckets  # padded lengths of training rows
    max_log_prob_gap: NonNegativeFloat  # nats, see ``RunConfig.max_log_prob_gap``
    max_skipped_updates: PositiveInt  # non-finite ones in a row; then the run stops
    cold_start_steps: NonNegativeInt  # supervised updates before step 0; 0: none
    cold_start_rows: PositiveInt  # of one such update
    cold_start_learning_rate: NonNegativeFloat
    cold_start_checkpoint_every: PositiveInt
    demonstrations: PositiveInt  # scripted trajectories that it learns from
    demonstrations_path: str  # JSONL of trajectories to use instead; "": none
    checkpoint_every: PositiveInt  # steps
    checkpoints_kept: PositiveInt  # the last ones
    checkpoint_best: str  # metric whose best checkpoint is kept too; "": none
    eval_tasks: NonNegativeInt  # held-out tasks of the summary

    def __post_init__(self) -> None:
        check_bounds(self, "train")
        ok = self.decay_steps == 0 or self.decay_steps > self.warmup_steps
        expected = f"0 or above warmup_steps = {self.warmup_steps}"
        require(ok, "train.decay_steps", expected, self.decay_steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryConfig(BankConfig):
    """The bank's own fields, and how its judge, embedder and summaries are made.

    A config must name the fields of ``BankConfig`` too, though that class has defaults
    for them: ``settings.build`` asks for every field.
    """

    embedder: Annotated[str, one_of(EMBEDDERS)]
    embedder_model: str  # directory of a "sentence_transformers" model
    judge_adds_prompt: str  # asks judge "policy" if {new} adds to {old}
    judge_changes_prompt: str  # asks it if {new} gives another value than {old}
    judge_yes: str
    judge_no: str
    summarise: Annotated[str, one_of(SUMMARIES)]  # who shortens merged texts
    summarise_prompt: str  # asks "policy" to say {text} in {max_chars}
    summarise_tokens: PositiveInt  # of one summary

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except ValueError as error:
            raise ConfigError(f"config.memory: {error}") from error
        require(self.judge in JUDGES, "memory.judge", f"one of {JUDGES}", self.judge)
        check_bounds(self, "memory")
        by_model = self.embedder == "sentence_transformers"
        expected = "a model directory" if by_model else f"'' with {self.embedder!r}"
        ok = bool(self.embedder_model) == by_model
        require(ok, "memory.embedder_model", expected, self.embedder_model)

    def make_embedder(self) -> Embedder:
        """The embedder of all banks.

        Raises:
          ConfigError: its model or its package is missing.
        """
        options = {"model": self.embedder_model} if self.embedder_model else {}
        try:
            return make_embedder(self.embedder, **options)
        except (ValueError, OSError, ImportError) as error:
            raise ConfigError(f"config.memory.embedder: {error}") from error


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    """The model that learns; section ``policy``."""

    path: str  # of its weights; "": the built-in ``nano``, trained from scratch
    ref_path: str  # of the KL's reference; "": the policy's own initial weights
    chat_template_kwargs: tuple[tuple[str, bool | int | float | str], ...]
    param_dtype: Dtype  # of stored parameters
    compute_dtype: Dtype
    attention: str  # "auto", "xla" or "cudnn"
    remat: bool  # activations are computed again in the backward pass
    lora: LoraConfig
    nano: NanoConfig  # used if ``path`` is ""

    def __post_init__(self) -> None:
        check_bounds(self, "policy")
        ok = self.attention in IMPLEMENTATIONS
        expected = f"one of {IMPLEMENTATIONS}"
        require(ok, "policy.attention", expected, self.attention)
        options = self.chat_template_kwargs
        ok = len({name for name, _ in options}) == len(options)
        require(ok, "policy.chat_template_kwargs", "each name once", options)
        expected = "() where policy.path is '': the built-in policy has no such options"
        ok = not options or bool(self.path)
        require(ok, "policy.chat_template_kwargs", expected, options)


@dataclasses.dataclass(frozen=True)
class NanoConfig:
    """Shape of the built-in policy; section ``policy.nano``."""

    layers: PositiveInt
    width: PositiveInt
    heads: PositiveInt
    mlp_width: PositiveInt

    def __post_init__(self) -> None:
        check_bounds(self, "policy.nano")
        # A head's width must be even: rotary positions turn pairs of its numbers.
        ok = self.width % (2 * self.heads) == 0
        require(ok, "policy.nano.width", "a multiple of 2 x heads", self.width)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis of the mesh; section ``mesh``."""

    data: int  # rows are split; -1: all devices that the other axes leave
    fsdp: int  # rows and parameters are split
    tensor: int  # the wide dimensions of parameters are split
    sampling: SamplingMeshConfig

    @property
    def samples_as_it_trains(self) -> bool:
        """Whether sampling has the devices and axes of training."""
        return self.sampling == SamplingMeshConfig(0, -1, 0, 0)


@dataclasses.dataclass(frozen=True)
class SamplingMeshConfig:
    """A mesh for sampling alone, in each process; section ``mesh.sampling``."""

    devices: NonNegativeInt  # that training does not use; 0: the devices of training
    data: int  # trajectories are split; -1: all devices that the other axes leave
    fsdp: NonNegativeInt  # trajectories and parameters are split; 0: as in training
    tensor: NonNegativeInt  # parameters are split; 0: as in training

    def __post_init__(self) -> None:
        check_bounds(self, "mesh.sampling")


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """What a run writes down besides its metrics; section ``log``."""

    tensorboard: bool
    wandb_project: str  # "": off
    trajectories_every: StepsOrNever

    def __post_init__(self) -> None:
        check_bounds(self, "log")

    def records(self, step: int) -> bool:
        """Whether the trajectories of this step are written down.

        Args:
          step: number of the step, from 0.
        """
        return bool(self.trajectories_every) and step % self.trajectories_every == 0


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """The tasks; section ``env``. Of the suites only that of ``name`` is used."""

    name: str  # one of SUITES, or "package.module:Name" of an own environment
    data_dir: str  # folder of data files, for tasks that read files
    step_timeout_s: Seconds  # a slower call of the environment fails the trajectory
    workers: PositiveInt  # environments of one's own called at a time
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
        check_bounds(self, "env")


def complete_saved(
    config: Mapping[str, Any], source: str, wanted: Container[str] | None = None
) -> dict[str, Any]:
    """A saved config as this version reads it: fields renamed, and missing ones added.

    A missing field takes what ``ADDED_FIELDS`` says it meant, else its default in
    ``configs/base.py``. It warns once, by name, of what was added.

    Args:
      config: nested sections, as read from JSON.
      source: the file, for the warning.
      wanted: dotted names of the fields that may be added; None for all.

    Raises:
      ConfigError: a newer version saved it.
    """
    completed = migrated(config, source)
    added = add_missing(completed, _defaults(), wanted)
    if added:
        shown = ", ".join(added[:_SHOWN_FIELDS])
        more = len(added) - _SHOWN_FIELDS
        warnings.warn(
            f"{source} was saved before some fields existed; they are taken as "
            f"{shown}{f' and {more} more' if more > 0 else ''}",
            stacklevel=2,
        )
    return completed


def _defaults() -> dict[str, Any]:
    """Nested defaults of all sections: what a field meant before it could be set."""
    from mempo_jax.configs import (
        base,
    )  # here: reading a config file needs ml_collections

    defaults = base.get_config().to_dict()
    for name, value in ADDED_FIELDS.items():
        *sections, field = name.split(".")
        part = defaults
        for section in sections:
            part = part[section]
        part[field] = value
    return defaults


def advice(settings: RunConfig) -> list[str]:
    """What is possible but not recommended.

    Args:
      settings: of the run.

    Returns:
      One sentence for each value, with the remedy.
    """
    return [*_outside_ranges(settings), *_unwise_pairs(settings)]


def _outside_ranges(s: RunConfig) -> Iterator[str]:
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
        ("sampling.max_turns", s.sampling.max_turns, 20, 40, ""),
    ):
        if not low <= value <= high:
            because = f" ({why})" if why else ""
            yield f"config.{field} = {value}: {low} to {high} is recommended{because}"


def _unwise_pairs(s: RunConfig) -> Iterator[str]:
    if len(s.reward.active()) > 4:
        yield (
            f"config.reward: {s.reward.active()} are active; more than four "
            "components are hard to balance, set one to 0"
        )
    if 0 < s.train.decay_steps < s.train.steps:
        yield (
            f"config.train.steps = {s.train.steps}: from step {s.train.decay_steps} "
            "(train.decay_steps) on the learning rate is 0; raise train.decay_steps"
        )
    gap, room = s.train.max_log_prob_gap, LOG_PROB_GAPS["bfloat16"]
    if s.policy.compute_dtype == "bfloat16" and 0 < gap < room:
        yield (
            f"config.train.max_log_prob_gap = {gap}: in bfloat16 (config.policy."
            "compute_dtype) rounding alone exceeds it and stops the run; "
            f"{room} leaves room, and is what 0 means there"
        )
    if s.objective.advantage_ddof == 1:
        yield "config.objective.advantage_ddof = 1: retune train.learning_rate"
    if s.policy.ref_path:
        yield (
            "config.policy.ref_path is set: the KL pulls towards that model, which may "
            "differ from the initial policy; it is not checked to start at 0"
        )
