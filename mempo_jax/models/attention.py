"""Which kernel computes the attention of whole rows, behind one switch.

    "xla"    plain operations, on any backend; long rows by blocks of queries
    "cudnn"  cuDNN's flash attention: NVIDIA GPUs, 16-bit activations
    "auto"   cudnn where it can be had, else xla

Rows are right-padded and attention is causal, so no token sees padding behind it: a
causal mask is all that the flash kernel needs. It has not been run by this project's
tests, which have no GPU; "xla" is what they check.

Exact causal attention that never holds the scores of all tokens against all.

Queries go in blocks, each against the keys up to its own end: a little more than half
of the products of a full square. Nothing but the result and one number a query, the
log of its softmax's denominator, is kept for the gradient, which computes the scores
again (Dao et al. 2022, arXiv:2205.14135, appendix B). Query heads that share a key
head are laid out as more queries of it, so that keys are never repeated.

Letters: ``B`` rows, ``T`` tokens, ``H`` heads, ``K`` key heads, ``G`` = H / K, ``C``
head size, ``n`` queries of a block, ``S`` keys that it may see.

New tokens of several slots packed in one row: no slot is padded to another's width.

Letters as in ``decoder``: ``N`` tokens of a packed row, ``H`` heads, ``K`` key/value
heads, ``C`` head size, ``S`` cache length; ``G`` the most pieces there may be.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array
BLOCK = 64  # queries; 128 took 1.6 times as long on a CPU, at 256 tokens
GROUPS = 8  # of blocks: each is compiled once and repeated for its blocks
_UNSEEN = -1e30  # finite, so that a query that sees nothing gives no NaN


def blocked_attention(query: Array, key: Array, value: Array, token_mask: Array):
    """Causal attention among the real tokens of right-padded rows.

    query [B, T, H, C], key and value [B, T, K, C], token_mask bool [B, T] -> as query.
    What lies in padding, not-a-number included, reaches no real token.
    """
    length = query.shape[1]
    short = -length % BLOCK
    real = token_mask[..., None, None]
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
    made = []
    for blocks in _groups(len(queries)):
        see = _seen(keys, values, token_mask, blocks)
        made.append(_each(functools.partial(_block, *see), blocks, (queries,)))
    folded, log_totals = (jnp.concatenate(parts) for parts in zip(*made, strict=True))
    result = _unfolded(folded, query)
    return result, (query, key, value, token_mask, result, log_totals)


def _backward(kept, slope):
    query, key, value, token_mask, result, log_totals = kept
    keys, values = _heads_first(key), _heads_first(value)
    # A softmax's slope is taken off its mean, weighted; over values, that is this.
    mean = jnp.sum(
        slope.astype(jnp.float32) * result.astype(jnp.float32), axis=-1, keepdims=True
    )
    given = *(_folded(x, key) for x in (query, slope, mean)), log_totals
    # [B, K, C, S]: on a CPU these products take half the time that [B, K, S, C] takes.
    turned = jnp.zeros(jnp.swapaxes(keys, 2, 3).shape, jnp.float32)
    sums = turned, turned
    made = []
    for blocks in _groups(len(log_totals)):
        see = _seen(keys, values, token_mask, blocks)
        part = tuple(x[..., : blocks.stop * BLOCK] for x in sums)
        one = functools.partial(_block_slopes, *see)
        part, of_queries = _each_summed(one, part, blocks, given)
        sums = tuple(
            x.at[..., : blocks.stop * BLOCK].set(new) for x, new in zip(sums, part)
        )
        made.append(of_queries)
    of_keys, of_values = (x.transpose(0, 3, 1, 2) for x in sums)
    return (
        _unfolded(jnp.concatenate(made), query),
        of_keys.astype(key.dtype),
        of_values.astype(value.dtype),
        None,
    )


_attend.defvjp(_forward, _backward)


def _block(keys, values, token_mask, number, queries):
    """A block's result [B, K, G*n, C] and log-denominators f32 [B, K, G*n]."""
    scores = _scores(keys, token_mask, number, queries)
    most = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - most)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    result = _product("bkns,bksc->bknc", weights.astype(values.dtype), values)
    result = (result / total).astype(values.dtype)
    return result, (most + jnp.log(total))[..., 0]


def _block_slopes(
    keys, values, token_mask, sums, number, queries, slope, mean, log_total
):
    """Adds a block's slopes of keys and values to ``sums``; its slopes of queries."""
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
    """f32 [B, K, G*n, S]; those that do not count are so low that nothing is left.

    But of a query that sees no key: there all are left, which are padding (rows are
    right-padded), zeros that no gradient reaches.
    """
    scores = _product("bknc,bksc->bkns", queries, keys) * keys.shape[-1] ** -0.5
    positions = number * BLOCK + jnp.arange(queries.shape[2]) % BLOCK
    causal = jnp.arange(keys.shape[2]) <= positions[:, None]
    return jnp.where((causal & token_mask[:, None])[:, None], scores, _UNSEEN)


def _product(letters: str, left: Array, right: Array) -> Array:
    return jnp.einsum(letters, left, right, preferred_element_type=jnp.float32)


def _groups(blocks: int) -> list[range]:
    """The blocks by group: a group sees the keys up to the end of its last block."""
    count = min(blocks, GROUPS)
    ends = [blocks * (n + 1) // count for n in range(count)]
    return [range(first, end) for first, end in zip([0, *ends], ends)]


def _seen(keys, values, token_mask, blocks: range):
    end = blocks.stop * BLOCK
    return keys[:, :, :end], values[:, :, :end], token_mask[:, :end]


def _each(one: Callable, blocks: range, given: tuple[Array, ...]):
    """``one(number, *given of that block)`` for each block of a group, in turn."""

    def with_nothing(nothing, number, *block):
        return nothing, one(number, *block)

    return _each_summed(with_nothing, (), blocks, given)[1]


def _each_summed(one: Callable, sums, blocks: range, given: tuple[Array, ...]):
    """``sums, made = one(sums, number, ...)`` for each; all that was made, stacked."""
    given = tuple(x[blocks.start : blocks.stop] for x in given)
    if len(blocks) == 1:
        sums, made = one(sums, blocks.start, *(x[0] for x in given))
        return sums, jax.tree.map(lambda x: x[None], made)
    numbers = jnp.arange(blocks.start, blocks.stop)
    return jax.lax.scan(lambda sums, x: one(sums, *x), sums, (numbers, *given))


def _heads_first(x: Array) -> Array:
    return jnp.swapaxes(x, 1, 2)


def _folded(x: Array, key: Array) -> Array:
    """[B, T, H, C] -> by block, [T / n, B, K, G*n, C]."""
    rows, length, heads, size = x.shape
    shared = key.shape[2]
    x = x.reshape(rows, length // BLOCK, BLOCK, shared, heads // shared, size)
    x = x.transpose(1, 0, 3, 4, 2, 5)
    return x.reshape(length // BLOCK, rows, shared, -1, size)


def _unfolded(x: Array, like: Array) -> Array:
    """``_folded`` back, to the shape [B, T, H, C] of ``like``."""
    count, rows, shared, _, size = x.shape
    x = x.reshape(count, rows, shared, -1, BLOCK, size)
    return x.transpose(1, 0, 4, 2, 3, 5).reshape(like.shape)


IMPLEMENTATIONS = ("auto", "xla", "cudnn")
WHOLE_UP_TO = 128  # tokens: the scores of shorter rows are computed in one go
_FLASH_DTYPES = ("bfloat16", "float16")
_FLASH_HEADS = 128  # largest head, in multiples of 8


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


# Queries of one product with a slot's keys. Each reads them all, so fewer cost more;
# what a slot's last piece lacks is padding.
PIECE = 32


class PackedRows(NamedTuple):
    """Tokens, one slot's after the other's, and how attention goes through them.

    tokens, slots, positions: int32 [N]. Padding has a position past the cache's end.
    pieces: int32 [G, 4], of ``count`` pieces in the order of their tokens: the first of
    up to ``PIECE`` neighbours in one slot, the slot, the position of that first token,
    and which of the spans holds the piece.
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
    """Attention of tokens to their slots' cache, up to their own positions.

    query [N, H, C]; keys, values: of a ``Cache``. spans: numbers of positions to look
    at, of which each piece names one. Returns [N, H, C]; what
    stands for padding means nothing.
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

    branches = [attend(span) for span in spans]

    def body(index, made):
        first, slot, start, which = packed.pieces[index]
        part = jax.lax.dynamic_slice_in_dim(padded, first, PIECE)
        part = jax.lax.switch(which, branches, part, slot, start)
        # What is behind the slot's last token is written over by the next piece, or
        # is padding.
        return jax.lax.dynamic_update_slice_in_dim(made, part, first, axis=0)

    padded = jnp.pad(query, ((0, PIECE), (0, 0), (0, 0)))
    made = jax.lax.fori_loop(0, packed.count, body, jnp.zeros_like(padded))
    return made[: len(query)]
