"""Estimates how long a step takes on named chips: a count of work, not a measurement.

Each stage takes as long as the slowest of three: its matrix products at a share of the
chip's peak, the bytes that it reads at a share of its memory's bandwidth, and the bytes
that it receives from other chips at a share of the links' speed. ``LEFT_OUT`` says what
is not counted, so a real step takes longer.
"""

from __future__ import annotations

import dataclasses
import math

from mempo_jax.config import RunConfig
from mempo_jax.distributed.placement import AXES
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.planning.devices import Device

# Shares of the makers' figures: assumed, as tuned runs of such models reach them, and
# not measured here.
OF_PEAK, OF_BANDWIDTH, OF_LINK = 0.4, 0.6, 0.6
FLOAT32 = 0.25  # of the bfloat16 peak, for float32 products; assumed
LEFT_OUT = (
    "work of the host (episodes, memory banks, tokeniser), waiting for the longest "
    "trajectory, sums that tensor needs in each layer, compilation, evaluation, "
    "checkpoints, traffic between slices"
)
_BYTES = {"float32": 4, "bfloat16": 2}


def seconds(
    config: DecoderConfig, settings: RunConfig, chips: Chips, work: Work
) -> dict[str, float]:
    """Estimates the seconds of each stage of a step.

    Args:
      config: the policy's shape.
      settings: of the run; if a server samples, that is not counted.
      chips: speeds of the slice.
      work: what a step consists of.
    """
    stages = {"decode": _decode, "prefill": _prefill}
    here = stages if settings.engine.kind == "local" else {}
    sampling = {
        name: stage(config, settings, chips, work) for name, stage in here.items()
    }
    return sampling | {
        "score": _score(config, settings, chips, work),
        "train": _train(config, settings, chips, work),
    }


@dataclasses.dataclass(frozen=True)
class Work:
    """What a step is assumed to consist of; only the trajectories are certain.

    Attributes:
      trajectories: of a step.
      turns: of a trajectory.
      turn_tokens: sampled in a turn.
      context_tokens: before a turn, on average.
      rows: training rows of a step.
      row_tokens: padded length of a row.
    """

    trajectories: int
    turns: int
    turn_tokens: int
    context_tokens: int
    rows: int
    row_tokens: int

    def __str__(self) -> str:
        return (
            f"{self.trajectories} trajectories of {self.turns} turns, "
            f"{self.turn_tokens} tokens sampled in each, at a context of "
            f"{self.context_tokens}; {self.rows} training rows of {self.row_tokens}"
        )


def assumed_work(settings: RunConfig, turns: int = 0, turn_tokens: int = 0) -> Work:
    """Assumes what a step consists of; contexts are taken as half full.

    Args:
      settings: of the run.
      turns: of a trajectory; 0 assumes the most that the task allows.
      turn_tokens: sampled in a turn; 0 assumes half of what a turn may sample.
    """
    sampling, env = settings.sampling, settings.env
    if not turns:
        own = env.ledger.max_turns if env.name == "ledger" else sampling.max_turns
        turns = min(own, sampling.max_turns)
    turn_tokens = turn_tokens or max(1, sampling.max_new_tokens // 2)
    trajectories = sampling.tasks_per_step * sampling.group_size
    context = max(1, settings.context.max_context_tokens // 2)
    buckets = settings.train.length_buckets
    if settings.context.rule == "append":
        # A trajectory is one growing row; with other rules each turn is a row.
        rows, row_tokens = trajectories, buckets[-1]
    else:
        rows = trajectories * turns
        fits = [size for size in buckets if size >= context + turn_tokens]
        row_tokens = fits[0] if fits else buckets[-1]
    return Work(trajectories, turns, turn_tokens, context, rows, row_tokens)


@dataclasses.dataclass(frozen=True)
class Chips:
    """Speeds of a slice under the assumed shares, and how arrays are split on it.

    Attributes:
      device: the chips.
      axes: sizes of the mesh's axes by name.
      sampling_axes: the same of one engine's mesh.
      float32: whether products are float32.
    """

    device: Device
    axes: dict[str, int]
    sampling_axes: dict[str, int]
    float32: bool

    def seconds(self, flops: float, reads: float = 0, sent: float = 0) -> float:
        """Computes how long work takes.

        Args:
          flops: of all chips together.
          reads: bytes that one chip reads from its memory.
          sent: bytes that one chip receives from others.
        """
        chip = self.device.chip
        peak = chip.peak * OF_PEAK * (FLOAT32 if self.float32 else 1)
        used = math.prod(self.axes.values())
        return max(
            flops / used / peak,
            reads / (chip.bandwidth * OF_BANDWIDTH),
            sent / (chip.link * OF_LINK),
        )


def _decode(config, settings, chips, work) -> float:
    slots, width = settings.sampling.slots, _BYTES[settings.policy.compute_dtype]
    waves = -(-work.trajectories // slots)
    steps = waves * work.turns * work.turn_tokens
    tensor = chips.sampling_axes["tensor"]
    weights = _weights(config, settings) / tensor
    # Numbers in the keys and values of one slot.
    cached = 2 * config.layers * config.kv_heads * config.head_dim * work.context_tokens
    per_chip = slots / math.prod(chips.axes[axis] for axis in AXES[:2])
    flops = slots * token_flops(config, work.context_tokens)
    # The cache is split by heads only if these divide.
    split = 1 if config.kv_heads % tensor else tensor
    reads = weights + per_chip * cached * width / split
    # Weights that fsdp splits are gathered layer by layer, in each step.
    sent = _gathered(weights, chips.sampling_axes)
    return steps * chips.seconds(flops, reads, sent)


def _prefill(config, settings, chips, work) -> float:
    # A context that only grows is fed once; others are fed anew in each turn.
    turns = 1 if settings.context.rule == "append" else work.turns
    tokens = work.trajectories * turns * work.context_tokens
    return chips.seconds(
        tokens * token_flops(config, work.context_tokens / 2, head=False)
    )


def _score(config, settings, chips, work) -> float:
    # The reference scores all rows if there is a KL, the policy those of later updates:
    # the first one's gradient pass gives its scores. Logits are counted for all tokens
    # though only counted tokens have any: an upper bound, as in training.
    passes = 1 - 1 / settings.train.minibatches + bool(settings.objective.kl_coef)
    tokens = work.rows * work.row_tokens
    flops = passes * tokens * token_flops(config, work.row_tokens / 2)
    return chips.seconds(flops, sent=passes * _passes(config, settings, chips, work))


def _train(config, settings, chips, work) -> float:
    tokens, policy = work.rows * work.row_tokens, settings.policy
    # One pass forward, one for the gradients of activations, one for those of weights
    # if all are trained, and the second forward pass of remat.
    passes = 1 + (1 if policy.lora.rank else 2) + (1 if policy.remat else 0)
    flops = passes * tokens * token_flops(config, work.row_tokens / 2)
    # 3: weights are gathered forward and backward, and gradients are summed.
    return chips.seconds(flops, sent=3 * _passes(config, settings, chips, work))


def _passes(config, settings, chips, work) -> float:
    """Counts the bytes received if each micro-batch passes over the weights once."""
    weights = _weights(config, settings) / chips.axes["tensor"]
    tokens = max(settings.train.micro_batch_tokens, work.row_tokens)
    batches = -(-work.rows * work.row_tokens // tokens)
    return batches * _gathered(weights, chips.axes)


def _gathered(size: float, axes: dict[str, int]) -> float:
    """Counts the bytes that a chip receives to gather an array that fsdp splits."""
    return size * (axes["fsdp"] - 1) / axes["fsdp"]


def _weights(config: DecoderConfig, settings: RunConfig) -> float:
    return matrix_parameters(config) * _BYTES[settings.policy.param_dtype]


def matrix_parameters(c: DecoderConfig, *, head: bool = True) -> int:
    """Counts the parameters of the matrices that a token is multiplied with.

    Args:
      c: the decoder's shape.
      head: whether the output matrix counts.
    """
    attention = c.width * c.head_dim * (2 * c.heads + 2 * c.kv_heads)
    layer = attention + 3 * c.width * c.mlp_width
    return c.layers * layer + (c.vocab_size * c.width if head else 0)


def token_flops(c: DecoderConfig, seen: float, *, head: bool = True) -> float:
    """Counts the FLOPs of one token's forward pass.

    Args:
      c: the decoder's shape.
      seen: tokens that it attends to.
      head: whether it gets logits.
    """
    # 4: scores and weighted values, a multiplication and an addition each.
    attention = 4 * c.layers * c.heads * c.head_dim * seen
    return 2 * matrix_parameters(c, head=head) + attention
