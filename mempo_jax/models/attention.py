"""Attention kernels: whole rows, a cache, and new tokens of several slots in one row.

One switch chooses the kernel of whole rows (``causal_attention``)::

    "xla"    plain operations, on any backend; long rows by blocks of queries
    "cudnn"  cuDNN's flash attention: NVIDIA GPUs, 16-bit activations
    "auto"   cudnn if it can be had, else xla

Rows are right-padded and attention is causal, so no token sees the padding after it: a
causal mask is all that the flash kernel needs. The tests that need no GPU check "xla".

``blocked_attention`` is exact and never holds the scores of all tokens against all.
Queries go in blocks, each against the keys up to its own end: a little more than half
of the products of a full square. Only the result and one number per query, the log of
its softmax's denominator, are saved for the gradient, which computes the scores again
(Dao et al. 2022, arXiv:2205.14135, appendix B). Query heads that share a key head are
laid out as more queries of it, so that keys are never repeated. It has a custom VJP and
therefore no forward-mode derivative.

``packed_attention`` takes the new tokens of several slots as one packed row, so that no
slot is padded to another's width.

Letters: ``B`` rows, ``T`` tokens, ``H`` heads, ``K`` key heads, ``G`` = H / K, ``C``
head size, ``n`` queries of a block, ``S`` keys that it may see, or the cache length;
``R`` slots, ``P`` new tokens of a slot, ``N`` tokens of a packed row, ``M`` the most
pieces that a packed row may have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mempo_jax.models.layers import precision_of

Array = jax.Array
IMPLEMENTATIONS = ("auto", "xla", "cudnn")
# Tokens: the scores of shorter rows are small enough to be computed in one go.
WHOLE_UP_TO = 128
# What cuDNN's flash attention takes: dtypes, and heads of a multiple of 8, up to 128 on
# every GPU that it runs on, and up to 256 from Hopper on.
_FLASH_DTYPES = ("bfloat16", "float16")
_FLASH_HEADS, _FLASH_HEADS_OF_HOPPER = 128, 256
# Queries of a block: forward and backward over 256 tokens took 1.4 times as long on a
# CPU with 32, and 1.9 times with 128.
BLOCK = 64
# Groups of blocks: each is compiled once and scanned over its blocks. More groups read
# fewer keys in vain and take longer to compile; 2 took 1.2 times as long as 8.
GROUPS = 8
_UNSEEN = -1e30  # finite, so that a query that sees nothing gives no NaN


def blocked_attention(query: Array, key: Array, value: Array, token_mask: Array):
    """Computes causal attention among the real tokens of right-padded rows.

    Args:
      query: [B, T, H, C].
      key: [B, T, K, C].
      value: [B, T, K, C].
      token_mask: bool [B, T], the real tokens; what padding holds, not-a-number
        included, reaches none of them.

    Returns:
      [B, T, H, C].
    """
    length = query.shape[1]
    short = -length % BLOCK
    real = token_mask[..., None, None]
    # Zeros instead of whatever padding holds: a weight of 0 times NaN would be NaN.
    key, value = (jnp.where(real, x, jnp.zeros((), x.dtype)) for x in (key, value))
    query, key, value = (
        jnp.pad(x, ((0, 0), (0, short), (0, 0), (0, 0))) for x in (query, key, value)
    )
    token_mask = jnp.pad(token_mask, ((0, 0), (0, short)))
    return _attend(query, key, value, token_mask)[:, :length]


@jax.custom_vjp
def _attend(query, key, value, token_mask):
    return _forward(query, key, value, token_mask)[0]


def _forward(query, key, value, token_mask):
    queries, keys, values = _folded(query, key), _heads_first(key), _heads_first(value)
    outputs = []
    for blocks in _groups(len(queries)):
        seen = _seen(keys, values, token_mask, blocks)
        outputs.append(_each(functools.partial(_block, *seen), blocks, (queries,)))
    folded, log_totals = (
        jnp.concatenate(parts) for parts in zip(*outputs, strict=True)
    )
    result = _unfolded(folded, query)
    return result, (query, key, value, token_mask, result, log_totals)


def _backward(residuals, slope):
    query, key, value, token_mask, result, log_totals = residuals
    keys, values = _heads_first(key), _heads_first(value)
    # The gradient of a softmax subtracts its weighted mean, which over values is the
    # product of the result with its own gradient.
    mean = jnp.sum(
        slope.astype(jnp.float32) * result.astype(jnp.float32), axis=-1, keepdims=True
    )
    per_block = *(_folded(x, key) for x in (query, slope, mean)), log_totals
    # Sums are float32 over all blocks, and [B, K, C, S] because on a CPU these products
    # take half the time that [B, K, S, C] takes.
    turned = jnp.zeros(jnp.swapaxes(keys, 2, 3).shape, jnp.float32)
    sums = turned, turned
    query_slopes = []
    for blocks in _groups(len(log_totals)):
        seen = _seen(keys, values, token_mask, blocks)
        part = tuple(x[..., : blocks.stop * BLOCK] for x in sums)
        one = functools.partial(_block_slopes, *seen)
        part, of_queries = _each_summed(one, part, blocks, per_block)
        sums = tuple(
            x.at[..., : blocks.stop * BLOCK].set(new) for x, new in zip(sums, part)
        )
        query_slopes.append(of_queries)
    of_keys, of_values = (x.transpose(0, 3, 1, 2) for x in sums)
    return (
        _unfolded(jnp.concatenate(query_slopes), query),
        of_keys.astype(key.dtype),
        of_values.astype(value.dtype),
        None,
    )


_attend.defvjp(_forward, _backward)


def _block(keys, values, token_mask, number, queries):
    """Returns a block's result [B, K, G*n, C] and log-denominators f32 [B, K, G*n]."""
    scores = _scores(keys, token_mask, number, queries)
    most = jnp.max(scores, axis=-1, keepdims=True)  # subtracted, so exp cannot overflow
    weights = jnp.exp(scores - most)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    result = _product("bkns,bksc->bknc", weights.astype(values.dtype), values)
    result = (result / total).astype(values.dtype)
    return result, (most + jnp.log(total))[..., 0]


def _block_slopes(
    keys, values, token_mask, sums, number, queries, slope, mean, log_total
):
    """Adds a block's slopes of keys and values to ``sums``.

    Returns:
      The new sums, and the block's slopes of queries.
    """
    scores = _scores(keys, token_mask, number, queries)
    weights = jnp.exp(scores - log_total[..., None])
    of_weights = _product("bknc,bksc->bkns", slope, values)
    of_scores = weights * (of_weights - mean) * keys.shape[-1] ** -0.5
    of_scores = of_scores.astype(keys.dtype)
    of_keys, of_values = sums
    of_keys += _product("bknc,bkns->bkcs", queries, of_scores)
    of_values += _product("bknc,bkns->bkcs", slope, weights.astype(slope.dtype))
    of_queries = _product("bkns,bksc->bknc", of_scores, keys)
    return (of_keys, of_values), of_queries.astype(queries.dtype)


def _scores(keys, token_mask, number, queries):
    """Computes scores, f32 [B, K, G*n, S]; unseen ones are so low that exp gives 0.

    A query that sees no key at all attends to everything equally. Only padding does so
    (rows are right-padded): its keys are zeros, and no gradient reaches them.
    """
    scores = _product("bknc,bksc->bkns", queries, keys) * keys.shape[-1] ** -0.5
    positions = number * BLOCK + jnp.arange(queries.shape[2]) % BLOCK
    causal = jnp.arange(keys.shape[2]) <= positions[:, None]
    return jnp.where((causal & token_mask[:, None])[:, None], scores, _UNSEEN)


def _product(letters: str, left: Array, right: Array) -> Array:
    return jnp.einsum(
        letters,
        left,
        right,
        precision=precision_of(left.dtype),
        preferred_element_type=jnp.float32,
    )


def _plain_attention(query: Array, key: Array, value: Array, mask: Array) -> Array:
    """``jax.nn.dot_product_attention``, with products as exact as its operands."""
    attend = functools.partial(jax.nn.dot_product_attention, mask=mask)
    if precision_of(query.dtype) is None:
        return attend(query, key, value)
    # It takes no precision, but does as the context in which it is traced says.
    with jax.default_matmul_precision("highest"):
        return attend(query, key, value)


def _groups(blocks: int) -> list[range]:
    """Groups neighbouring blocks; a group sees the keys up to its last block's end."""
    count = min(blocks, GROUPS)
    ends = [blocks * (n + 1) // count for n in range(count)]
    return [range(first, end) for first, end in zip([0, *ends], ends)]


def _seen(keys, values, token_mask, blocks: range):
    end = blocks.stop * BLOCK
    return keys[:, :, :end], values[:, :, :end], token_mask[:, :end]


def _each(one: Callable, blocks: range, arrays: tuple[Array, ...]):
    """Stacks the results of ``one(number, *arrays of that block)`` for each block."""

    def without_sums(sums, number, *block):
        return sums, one(number, *block)

    return _each_summed(without_sums, (), blocks, arrays)[1]


def _each_summed(one: Callable, sums, blocks: range, arrays: tuple[Array, ...]):
    """Calls ``sums, result = one(sums, number, *arrays of that block)`` for each block.

    Returns:
      The last sums, and the results stacked.
    """
    arrays = tuple(x[blocks.start : blocks.stop] for x in arrays)
    if len(blocks) == 1:  # no loop around a single block
        sums, result = one(sums, blocks.start, *(x[0] for x in arrays))
        return sums, jax.tree.map(lambda x: x[None], result)
    numbers = jnp.arange(blocks.start, blocks.stop)
    return jax.lax.scan(lambda sums, x: one(sums, *x), sums, (numbers, *arrays))


def _heads_first(x: Array) -> Array:
    return jnp.swapaxes(x, 1, 2)


def _folded(x: Array, key: Array) -> Array:
    """Lays [B, T, H, C] out by block, [T / n, B, K, G*n, C]."""
    rows, length, heads, size = x.shape
    shared = key.shape[2]
    x = x.reshape(rows, length // BLOCK, BLOCK, shared, heads // shared, size)
    x = x.transpose(1, 0, 3, 4, 2, 5)
    return x.reshape(length // BLOCK, rows, shared, -1, size)


def _unfolded(x: Array, like: Array) -> Array:
    """Undoes ``_folded``, to the shape [B, T, H, C] of ``like``."""
    count, rows, shared, _, size = x.shape
    x = x.reshape(count, rows, shared, -1, BLOCK, size)
    return x.transpose(1, 0, 4, 2, 3, 5).reshape(like.shape)


def chosen(name: str, dtype: Any, head_dim: int, backend: str = "") -> str:
    """Resolves the name of a kernel.

    Args:
      name: one of ``IMPLEMENTATIONS``.
      dtype: of the activations.
      head_dim: head size.
      backend: "cpu", "gpu" or "tpu"; empty: the default backend of this process.

    Returns:
      "xla" or "cudnn".

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
    gpu = (backend or jax.default_backend()) == "gpu"
    return "cudnn" if gpu and narrow and fits else "xla"


def refusal(name: str, dtype: Any, head_dim: int, backend: str = "") -> str:
    """Says why a kernel that was named cannot be used, before anything is traced.

    Args:
      name, dtype, head_dim, backend: as for ``chosen``.

    Returns:
      What was expected and what was given; "" if it can be used.
    """
    if name != "cudnn":
        return ""
    backend, dtype = backend or jax.default_backend(), jnp.dtype(dtype).name
    instead = "expected 'auto' or 'xla'"
    if backend != "gpu":
        return f"{instead} on {backend}, got 'cudnn', which needs an NVIDIA GPU"
    if dtype not in _FLASH_DTYPES:
        return (
            f"{instead} with policy.compute_dtype = {dtype!r}, got 'cudnn', which "
            "takes bfloat16 alone"
        )
    if head_dim % 8 or head_dim > _FLASH_HEADS_OF_HOPPER:
        return (
            f"{instead} for heads of {head_dim}, got 'cudnn', which takes multiples of "
            f"8 up to {_FLASH_HEADS_OF_HOPPER}"
        )
    return ""


def causal_attention(token_mask, implementation: str) -> Callable:
    """Builds the attention of whole rows; the mask is computed once for all layers.

    Args:
      token_mask: bool [B, T], the real tokens of right-padded rows.
      implementation: "xla" or "cudnn", see ``chosen``.

    Returns:
      (query [B, T, H, C], key and value [B, T, K, C]) -> [B, T, H, C].
    """
    length = token_mask.shape[1]
    if implementation == "cudnn":
        attend = jax.nn.dot_product_attention
        return functools.partial(attend, is_causal=True, implementation="cudnn")
    if length > WHOLE_UP_TO:
        return functools.partial(blocked_attention, token_mask=token_mask)
    causal = jnp.tril(jnp.ones((length, length), bool))
    mask = (causal & token_mask[:, None, :])[:, None]
    return functools.partial(_plain_attention, mask=mask)


def cached_attention(query, keys, values, mask, turned: bool = False):
    """Computes attention to a cache, whose heads come before its positions.

    Args:
      query: [R, P, H, C].
      keys: [R, K, S, C], or [R, K, C, S] if ``turned``.
      values: [R, K, S, C].
      mask: bool [R, 1, P, S], the positions that each query attends to.
      turned: the layout of ``keys``, see ``decoder.TurnedCache``.

    Returns:
      [R, P, H, C].
    """
    rows, count, heads, size = query.shape
    shared = keys.shape[1]
    if heads == shared:
        keys = keys.swapaxes(2, 3) if turned else keys
        keys, values = jnp.swapaxes(keys, 1, 2), jnp.swapaxes(values, 1, 2)
        return _plain_attention(query, keys, values, mask)
    # Query heads of one key head become more queries of it, and the mask is added: half
    # the time of ``dot_product_attention`` on a CPU, for many tokens and for one.
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


# Queries of one product with a slot's keys. Each product reads all keys, so smaller
# pieces cost more; larger ones waste more on the padding of a slot's last piece.
PIECE = 32


class PackedRows(NamedTuple):
    """New tokens in one row, slot after slot, and the pieces that attention takes.

    Attributes:
      tokens: int32 [N].
      slots: int32 [N], the slot of each token.
      positions: int32 [N]; that of padding is past the cache's end.
      pieces: int32 [M, 4], in the order of their tokens: the index of the first of up
        to ``PIECE`` neighbours in one slot, the slot, the position of that first token,
        and the index of the span that holds the piece.
      count: int32, how many of ``pieces`` are used.
    """

    tokens: Array
    slots: Array
    positions: Array
    pieces: Array
    count: Array


def packed_attention(
    query: Array,
    keys: Array,
    values: Array,
    packed: PackedRows,
    spans: tuple[int, ...],
    turned: bool,
) -> Array:
    """Computes attention of tokens to their slots' cache, up to their own positions.

    Args:
      query: [N, H, C].
      keys: one layer's keys of a ``decoder.Cache``.
      values: one layer's values of it.
      packed: the tokens' slots and positions, in pieces.
      spans: numbers of positions to read, of which each piece names one.
      turned: the layout of ``keys``, see ``decoder.TurnedCache``.

    Returns:
      [N, H, C]; the rows of padding mean nothing.
    """

    def attend(span: int):
        def seen(leaf, slot, axis):
            leaf = jax.lax.slice_in_dim(leaf, 0, span, axis=axis)
            return jax.lax.dynamic_slice_in_dim(leaf, slot, 1, axis=0)

        def run(part, slot, start):
            mask = jnp.arange(span) <= start + jnp.arange(PIECE)[:, None]
            held = seen(keys, slot, 3 if turned else 2), seen(values, slot, 2)
            return cached_attention(part[None], *held, mask[None, None], turned)[0]

        return run

    # A slice's size must be static, so there is one branch for each span.
    branches = [attend(span) for span in spans]

    def body(index, made):
        first, slot, start, which = packed.pieces[index]
        part = jax.lax.dynamic_slice_in_dim(padded, first, PIECE)
        part = jax.lax.switch(which, branches, part, slot, start)
        # What follows the slot's last token is overwritten by the next piece, or is
        # padding.
        return jax.lax.dynamic_update_slice_in_dim(made, part, first, axis=0)

    # Padded, because dynamic slices past the end would be shifted back silently.
    padded = jnp.pad(query, ((0, PIECE), (0, 0), (0, 0)))
    made = jax.lax.fori_loop(0, packed.count, body, jnp.zeros_like(padded))
    return made[: len(query)]
