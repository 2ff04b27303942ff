"""The modules of a decoder, in Flax NNX: they define parameters and one layer's maths.

Letters as in ``decoder``: ``B`` rows, ``T`` tokens, ``H`` heads, ``K`` key/value heads,
``C`` head size, ``D`` width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from mempo_jax.models.rope import RopeScaling

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder.

    Attributes:
      vocab_size: rows of the embedding.
      width: of the states between layers, D.
      layers: number of layers.
      heads: query heads of a layer, H.
      kv_heads: key/value heads of a layer, K; must divide ``heads``.
      head_dim: size of a head, C; even, for rotary positions.
      mlp_width: inner width of the MLP.
      rope_theta: base of the rotary frequencies.
      norm_eps: added to the mean square in every norm.
      tied: whether the output matrix is the embedding.
      qkv_bias: whether query, key and value have biases.
      qk_norm: whether query and key heads are normed.
      max_positions: the longest row or slot.
      rope_scaling: how rotary frequencies are stretched; None for plain rotary.
    """

    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    rope_theta: float
    norm_eps: float
    tied: bool
    qkv_bias: bool
    qk_norm: bool
    max_positions: int
    rope_scaling: RopeScaling | None = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type in ("int", "float") and not value > 0:
                raise ValueError(
                    f"DecoderConfig.{field.name} must be positive, got {value!r}; "
                    "set it in the model's config"
                )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"DecoderConfig.heads ({self.heads}) must be a multiple of kv_heads "
                f"({self.kv_heads}); change either in the model's config"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"DecoderConfig.head_dim must be even for rotary positions, got "
                f"{self.head_dim}; change it in the model's config"
            )
        if self.rope_scaling is not None:
            # Only to raise: factors that do not match the head's size are refused here.
            self.rope_scaling.multipliers(self.head_dim, self.rope_theta)

    @property
    def grouped(self) -> bool:
        """Whether several query heads share a key head."""
        return self.heads > self.kv_heads


def precision_of(dtype: Any) -> jax.lax.Precision | None:
    """How exact a matrix product has to be, by the dtype of its operands.

    Unless they are told otherwise, a TPU rounds the operands of a float32 product to
    bfloat16, and a GPU since Ampere to 10 bits (TF32). Two programs that compute the
    same log-probs in another order would then differ by far more than float32 does,
    and the importance ratio with them.

    Args:
      dtype: of the operands.

    Returns:
      HIGHEST for float32; None, the backend's own choice, for narrower ones.
    """
    wide = jnp.dtype(dtype) == jnp.float32
    return jax.lax.Precision.HIGHEST if wide else None


class DecoderLayer(nnx.Module):
    """One layer: pre-norm attention and pre-norm MLP, both residual."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        std = config.width**-0.5
        self.attention_norm = RMSNorm(config.width, config.norm_eps)
        self.attention = Attention(config, rngs, std)
        self.mlp_norm = RMSNorm(config.width, config.norm_eps)
        self.mlp = MLP(config, rngs, std)

    def __call__(self, x: Array, rotation: tuple[Array, Array], attend: Callable):
        """Maps states [B, T, D] to the next layer's.

        Args:
          x: states [B, T, D].
          rotation: cosine and sine, see ``rotation_table``.
          attend: (query, key, value) -> [B, T, H, C]; the caller decides what each
            token attends to, whole rows or a cache.
        """
        heads = attend(*self.attention.project(self.attention_norm(x), rotation))
        x = x + self.attention.output(heads.reshape(*x.shape[:-1], -1))
        return x + self.mlp(self.mlp_norm(x))


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs, std: float):
        c = config
        queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.query = Projection(rngs, c.width, queries, c.qkv_bias, std)
        self.key = Projection(rngs, c.width, keys, c.qkv_bias, std)
        self.value = Projection(rngs, c.width, keys, c.qkv_bias, std)
        # 2 residual branches per layer: their sum keeps its scale at any depth.
        out_std = std / (2 * c.layers) ** 0.5
        self.output = Projection(rngs, queries, c.width, False, out_std)
        self.query_norm = RMSNorm(c.head_dim, c.norm_eps) if c.qk_norm else None
        self.key_norm = RMSNorm(c.head_dim, c.norm_eps) if c.qk_norm else None
        self.head_dim = c.head_dim

    def project(self, x: Array, rotation: tuple[Array, Array]):
        """Projects states to heads, with rotary positions on query and key.

        Args:
          x: states [B, T, D].
          rotation: cosine and sine, see ``rotation_table``.

        Returns:
          query [B, T, H, C], key and value [B, T, K, C].
        """
        query, key, value = (
            projection(x).reshape(*x.shape[:-1], -1, self.head_dim)
            for projection in (self.query, self.key, self.value)
        )
        if self.query_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        return rotate(query, rotation), rotate(key, rotation), value


class MLP(nnx.Module):
    """SwiGLU (Shazeer 2020, eq. 6)."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs, std: float):
        c = config
        self.gate = Projection(rngs, c.width, c.mlp_width, False, std)
        self.up = Projection(rngs, c.width, c.mlp_width, False, std)
        out_std = std / (2 * c.layers) ** 0.5  # as in ``Attention``
        self.down = Projection(rngs, c.mlp_width, c.width, False, out_std)

    def __call__(self, x: Array) -> Array:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class Projection(nnx.Module):
    """``x @ kernel (+ bias)`` in the dtype of ``x``."""

    def __init__(self, rngs: nnx.Rngs, inputs: int, outputs: int, bias: bool, std):
        self.kernel = nnx.Param(std * jax.random.normal(rngs(), (inputs, outputs)))
        self.bias = nnx.Param(jnp.zeros(outputs)) if bias else None
        self.adapter = None  # set by ``lora.attach``

    def __call__(self, x: Array) -> Array:
        # One flat matrix product: on a CPU its gradient takes two thirds of the time.
        flat = x.reshape(-1, x.shape[-1])
        kernel = self.kernel[...].astype(x.dtype)
        y = jnp.matmul(flat, kernel, precision=precision_of(x.dtype))
        if self.bias is not None:
            y = y + self.bias[...].astype(x.dtype)
        if self.adapter is not None:
            y = y + self.adapter(flat)
        return y.reshape(*x.shape[:-1], -1)


class RMSNorm(nnx.Module):
    """Root-mean-square norm in float32 (Zhang & Sennrich 2019, eq. 4)."""

    def __init__(self, size: int, eps: float):
        self.scale = nnx.Param(jnp.ones(size))
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        wide = x.astype(jnp.float32)
        power = jnp.mean(wide * wide, axis=-1, keepdims=True)
        normed = wide * jax.lax.rsqrt(power + self.eps)
        return (normed * self.scale[...]).astype(x.dtype)


class Ends(nnx.Module):
    """All that is not a layer: embedding, final norm, and the output head if untied."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        c = config
        self.embed = Embedding(config, rngs)
        self.final_norm = RMSNorm(c.width, c.norm_eps)
        if not c.tied:
            self.head = Projection(rngs, c.width, c.vocab_size, False, c.width**-0.5)


class Embedding(nnx.Module):
    """The table [V, D] of token embeddings."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        shape = (config.vocab_size, config.width)
        std = config.width**-0.5
        self.embedding = nnx.Param(std * jax.random.normal(rngs(), shape))


def rotation_table(positions: Array, config: DecoderConfig):
    """Computes the cosine and sine of rotary positions (Su et al. 2021).

    Args:
      positions: int32 [...].
      config: the decoder's shape.

    Returns:
      Cosine and sine, float32 [..., 1, C/2]; float32 because bfloat16 cannot tell large
      positions apart.
    """
    size, theta, scaling = config.head_dim, config.rope_theta, config.rope_scaling
    frequency = theta ** -(jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    if scaling is not None:
        frequency = frequency * scaling.multipliers(size, theta).astype(np.float32)
    angle = positions[..., None, None].astype(jnp.float32) * frequency
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    strength = 1.0 if scaling is None else scaling.attention_factor
    return (cos, sin) if strength == 1.0 else (cos * strength, sin * strength)


def rotate(x: Array, rotation: tuple[Array, Array]) -> Array:
    """Rotates pairs (i, i + C/2) of each head, the layout of Hugging Face files.

    Args:
      x: heads [..., H, C].
      rotation: cosine and sine, see ``rotation_table``.
    """
    cos, sin = rotation
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
