"""A decoder's shape out of the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mempo_jax.models import rope
from mempo_jax.models.layers import DecoderConfig

ARCHITECTURES = ("llama", "qwen2", "qwen3")
Fields = Mapping[str, Callable[[], Any]]  # name -> what reads its value

_REQUIRED = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)
_SCALING = "rope.scaling."


def architecture(fields: Fields) -> str:
    """``general.architecture``; ValueError where it is none of ours."""
    found = fields["general.architecture"]() if "general.architecture" in fields else ""
    if found not in ARCHITECTURES:
        raise ValueError(
            f"expected general.architecture to be one of {', '.join(ARCHITECTURES)}, "
            f"got {found!r}"
        )
    return found


def read_config(
    fields: Fields, *, vocab_size: int, tied: bool, rope_factors: np.ndarray | None
) -> DecoderConfig:
    """The shape that the metadata and the tensors tell together.

    vocab_size: rows of the embedding. tied: there is no output tensor. rope_factors:
    divisors of the rotary frequencies, where the file has that tensor.

    Raises:
      ValueError: another architecture, fields that are missing, or a setting that would
        give other logits; it names them.
    """
    family = architecture(fields)
    prefix = f"{family}."
    own = {
        n.removeprefix(prefix): f() for n, f in fields.items() if n.startswith(prefix)
    }
    if missing := [prefix + name for name in _REQUIRED if name not in own]:
        raise ValueError(f"its metadata lacks {', '.join(missing)}")
    heads, width = own["attention.head_count"], own["embedding_length"]
    head_dim = own.get("attention.key_length") or width // heads
    _refuse_unsupported(own, head_dim)
    theta = float(own.get("rope.freq_base", 10_000.0))
    return DecoderConfig(
        vocab_size=vocab_size,
        width=width,
        layers=own["block_count"],
        heads=heads,
        kv_heads=own.get("attention.head_count_kv") or heads,
        head_dim=head_dim,
        mlp_width=own["feed_forward_length"],
        rope_theta=theta,
        norm_eps=_shortest(own["attention.layer_norm_rms_epsilon"]),
        tied=tied,
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        max_positions=own["context_length"],
        rope_scaling=_scaling(own, rope_factors),
    )


def _refuse_unsupported(own: Mapping[str, Any], head_dim: int) -> None:
    per_layer = [n for n, value in own.items() if isinstance(value, list)]
    same = {
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "expert_count": 0,
        "attention.sliding_window": 0,
    }
    wrong = [f"{n} = {own[n]}" for n, v in same.items() if own.get(n, v) != v]
    wrong += [f"{name} by layer" for name in per_layer]
    if wrong:
        raise ValueError(
            f"{', '.join(wrong)} is not supported; expected layers that are alike, "
            f"rotary positions over whole heads of {head_dim}, no experts, full "
            "attention"
        )


def _scaling(
    own: Mapping[str, Any], factors: np.ndarray | None
) -> rope.RopeScaling | None:
    kind = own.get(f"{_SCALING}type", "none")
    original = own.get(f"{_SCALING}original_context_length") or own["context_length"]
    if factors is not None:
        if kind != "none":
            raise ValueError(f"rope.scaling.type {kind!r} beside rotary factors")
        if not (np.isfinite(factors) & (factors > 0)).all():
            raise ValueError("rope_freqs.weight has values that are no divisors")
        return rope.FactorsRope(tuple(map(float, factors)), 1.0, original)
    if kind == "none":
        factor = own.get("rope.scale_linear", 1.0)
        return None if factor == 1 else rope.LinearRope(factor)
    factor = own.get(f"{_SCALING}factor")
    if kind == "linear" and factor:
        return rope.LinearRope(factor)
    extra = own.get(f"{_SCALING}attn_factor", 1.0)
    if kind == "yarn" and factor and extra == 1.0:
        return rope.YarnRope(
            factor=factor,
            original_positions=original,
            beta_fast=own.get(f"{_SCALING}yarn_beta_fast", 32.0),
            beta_slow=own.get(f"{_SCALING}yarn_beta_slow", 1.0),
            attention_factor=rope.yarn_attention_factor(factor),
            truncate=True,
        )
    raise ValueError(
        f"rope.scaling.type {kind!r} with factor {factor} and attn_factor {extra} is "
        "not supported; expected none, linear or yarn with a factor, or rotary factors"
    )


def _shortest(value: float) -> float:
    """A float32 of the file as the decimal number that was meant (1e-05)."""
    return float(str(np.float32(value)))
