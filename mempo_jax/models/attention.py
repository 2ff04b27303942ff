"""Which kernel computes the attention of whole rows, behind one switch.

    "xla"    plain operations, on any backend; long rows by blocks of queries
    "cudnn"  cuDNN's flash attention: NVIDIA GPUs, 16-bit activations
    "auto"   cudnn where it can be had, else xla

Rows are right-padded and attention is causal, so no token sees padding behind it: a
causal mask is all that the flash kernel needs. It has not been run by this project's
tests, which have no GPU; "xla" is what they check.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from mempo_jax.models.attention_blocks import blocked_attention

IMPLEMENTATIONS = ("auto", "xla", "cudnn")
WHOLE_UP_TO = 128  # tokens: the scores of shorter rows are computed in one go
_FLASH_DTYPES = ("bfloat16", "float16")
_FLASH_HEADS = 128  # largest head, in multiples of 8
_UNSEEN = -1e30  # added to scores: finite, so that nothing becomes not-a-number


def chosen(name: str, dtype: Any, head_dim: int) -> str:
    """What ``name`` stands for on the default backend: "xla" or "cudnn".

    Raises:
      ValueError: an unknown name.
    """
    if name not in IMPLEMENTATIONS:
        raise ValueError(
            f"attention: expected one of {', '.join(IMPLEMENTATIONS)}, got {name!r}; "
            "set config.policy.attention"
        )
    if name != "auto":
        return name
    fits = head_dim % 8 == 0 and head_dim <= _FLASH_HEADS
    narrow = jnp.dtype(dtype).name in _FLASH_DTYPES
    return "cudnn" if jax.default_backend() == "gpu" and narrow and fits else "xla"


def causal_attention(token_mask, implementation: str) -> Callable:
    """Attention of rows from their first token on, as (query, key, value) -> result.

    token_mask: bool [B, T], real tokens, rows right-padded; what is made of it is made
    once for all layers. query and result [B, T, H, C], key and value [B, T, K, C].
    """
    attend, length = jax.nn.dot_product_attention, token_mask.shape[1]
    if implementation == "cudnn":
        return functools.partial(attend, is_causal=True, implementation="cudnn")
    if length > WHOLE_UP_TO:
        return functools.partial(blocked_attention, token_mask=token_mask)
    causal = jnp.tril(jnp.ones((length, length), bool))
    mask = (causal & token_mask[:, None, :])[:, None]
    return functools.partial(attend, mask=mask)


def cached_attention(query, keys, values, mask, turned: bool = False):
    """Attention to a cache, whose heads come before its positions.

    query [R, P, H, C], keys and values [R, K, S, C] (``turned``: keys [R, K, C, S]),
    mask bool [R, 1, P, S] -> as query.
    """
    rows, count, heads, size = query.shape
    shared = keys.shape[1]
    if heads == shared:
        keys = keys.swapaxes(2, 3) if turned else keys
        keys, values = jnp.swapaxes(keys, 1, 2), jnp.swapaxes(values, 1, 2)
        return jax.nn.dot_product_attention(query, keys, values, mask=mask)
    # Query heads of one key head as more queries of it, and a mask that is added: on a
    # CPU half the time of ``dot_product_attention`` for many tokens and for one.
    grouped = query.reshape(rows, count, shared, -1, size).transpose(0, 2, 3, 1, 4)
    letters = "rknc,rkcs->rkns" if turned else "rknc,rksc->rkns"
    scores = _product(letters, grouped.reshape(rows, shared, -1, size), keys)
    scores = scores.reshape(*grouped.shape[:-1], -1) * size**-0.5
    scores = scores + jnp.where(mask, 0.0, _UNSEEN)[:, :, None]
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights.reshape(rows, shared, -1, weights.shape[-1])
    seen = _product("rkns,rksc->rknc", weights.astype(values.dtype), values)
    seen = (seen.reshape(grouped.shape) / total).astype(query.dtype)
    return seen.transpose(0, 3, 1, 2, 4).reshape(query.shape)


def _product(letters: str, left, right):
    return jnp.einsum(letters, left, right, preferred_element_type=jnp.float32)
