"""The compiled programs of the engine: prefill, copy, decode. Pure functions.

All but ``prefill_flat`` work on a *view* of the slot cache: some rows (all of them, or
``N`` chosen ones) and the first ``span`` positions. A view costs one copy in and one
out, a decode step reads the whole view: so a short span and few rows pay back within a
turn.

Letters: ``R`` slots, ``N`` rows of the view, ``P`` prefill width, ``V`` vocabulary,
``W`` the number of decode steps of one call.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mempo_jax.models.decoder import Cache, LanguageModel
from mempo_jax.models.flat import Flat

Array = jax.Array


class Sampling(NamedTuple):
    """How tokens are drawn: f32 temperature (0: greedy), f32 top_p, int32 top_k."""

    temperature: Array
    top_p: Array
    top_k: Array


class Decoded(NamedTuple):
    """tokens int32 [N, W], log_probs f32 [N, W], counts int32 [N]: how many of the W
    columns of a row were sampled."""

    tokens: Array
    log_probs: Array
    counts: Array


class _Loop(NamedTuple):
    step: Array
    cache: Cache
    token: Array
    alive: Array
    out: Decoded


def take_view(cache: Cache, rows: Array | None, span: int) -> Cache:
    """Rows ``rows`` (None: all) and positions below ``span``; a row index past the
    end gives some row, which ``put_view`` then drops."""

    def take(leaf, axis):
        leaf = jax.lax.slice_in_dim(leaf, 0, span, axis=axis)
        return leaf if rows is None else jnp.take(leaf, rows, axis=0, mode="clip")

    return jax.tree.map(take, cache, cache.place)


def put_view(cache: Cache, view: Cache, rows: Array | None) -> Cache:
    """The cache with a view written back."""

    def put(leaf, part, axis):
        below = (slice(None),) * (axis - 1) + (slice(part.shape[axis]),)
        if rows is None:
            return leaf.at[:, *below].set(part)
        return leaf.at[rows, *below].set(part, mode="drop")

    return jax.tree.map(put, cache, view, cache.place)


def prefill(
    model: LanguageModel,
    params,
    cache: Cache,
    rows: Array | None,
    tokens: Array,
    start: Array,
    *,
    span: int,
) -> Cache:
    """Feeds ``tokens`` int32 [N, P] from positions ``start`` int32 [N] on.

    A row that has fewer than P tokens is padded at its right: what the padding writes
    lies past the row's end and is overwritten before it is ever attended to. A row
    with ``start >= span`` is left alone.
    """
    _, view = model.extend(params, take_view(cache, rows, span), tokens, start)
    return put_view(cache, view, rows)


def prefill_flat(
    model: LanguageModel, params, cache: Cache, flat: Flat, *, spans: tuple[int, ...]
) -> Cache:
    """Feeds the tokens of ``flat`` into their slots, with no view: they are written to
    their places, and attention takes of each slot the span that it needs."""
    return model.extend_flat(params, cache, flat, spans)[1]


def copy_rows(cache: Cache, source: Array, *, span: int) -> Cache:
    """Row r becomes row ``source[r]`` (int32 [R]) up to position ``span``."""
    return put_view(cache, take_view(cache, source, span), None)


def decode(
    model: LanguageModel,
    params,
    cache: Cache,
    stop: Array,
    rows: Array | None,
    token: Array,
    position: Array,
    limit: Array,
    keys: Array,
    first: Array,
    sampling: Sampling,
    *,
    steps: int,
    span: int,
    filtered: bool,
) -> tuple[Cache, Decoded]:
    """Samples up to ``limit`` [N] (0: leave the row alone) tokens a row, in lockstep.

    token int32 [N] is the last one known, not yet in the cache, at ``position`` [N];
    stop bool [V] marks the ids that end a row, once sampled. keys uint32 [N, 2]:
    token number i of a row's turn is drawn with ``fold_in(key, i)``, i counted from
    ``first`` [N], so a row's text depends neither on its neighbours nor on when it
    began. The loop ends as soon as every row has ended.
    """
    view = take_view(cache, rows, span)
    # In the dtype of the states, as where training scores them.
    unembed = model.unembed(params).astype(cache.keys[0].dtype)
    turn_keys = jax.random.wrap_key_data(keys, impl="threefry2x32")

    def body(state: _Loop) -> _Loop:
        step, alive = state.step, state.alive
        at = jnp.where(alive, position + step, span)
        hidden, view = model.extend(params, state.cache, state.token[:, None], at)
        logits = jnp.dot(
            hidden[:, 0],
            unembed,
            precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        new, log_prob = sample(logits, turn_keys, first + step, sampling, filtered)
        out = Decoded(
            state.out.tokens.at[:, step].set(new),
            state.out.log_probs.at[:, step].set(log_prob),
            state.out.counts + alive,
        )
        alive = alive & ~stop[new] & (out.counts < limit)
        return _Loop(step + 1, view, new, alive, out)

    def more(state: _Loop) -> Array:
        return (state.step < steps) & state.alive.any()

    count = token.shape[0]
    out = Decoded(
        jnp.zeros((count, steps), jnp.int32),
        jnp.zeros((count, steps), jnp.float32),
        jnp.zeros(count, jnp.int32),
    )
    start = _Loop(jnp.int32(0), view, token, limit > 0, out)
    end = jax.lax.while_loop(more, body, start)
    return put_view(cache, end.cache, rows), end.out


def sample(
    logits: Array, keys: Array, index: Array, sampling: Sampling, filtered: bool
) -> tuple[Array, Array]:
    """One token a row from f32 logits [N, V]: ids int32 [N], log-probs f32 [N].

    keys [N], index int32 [N]: row r's number comes from ``fold_in(keys[r], index[r])``.
    Drawn by inverting the cumulative distribution at one uniform number a row.
    Log-probs are those of the whole distribution at the sampling temperature (at
    temperature 1 when greedy): top-p and top-k choose, they do not rescore.
    """
    greedy = sampling.temperature == 0
    logits = logits / jnp.where(greedy, 1.0, sampling.temperature)
    log_probs = jax.nn.log_softmax(logits)

    def uniform(key, number):
        return jax.random.uniform(jax.random.fold_in(key, number))

    def draw():
        kept = _filter(log_probs, sampling) if filtered else log_probs
        cumulative = jnp.cumsum(jnp.exp(kept), axis=-1)
        # The level stays below the total: ids of probability 0 are never reached.
        level = jax.vmap(uniform)(keys, index)[:, None] * cumulative[:, -1:]
        return jnp.sum(cumulative <= level, axis=-1, dtype=jnp.int32)

    def likeliest():
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    token = jax.lax.cond(greedy, likeliest, draw)
    return token, jnp.take_along_axis(log_probs, token[:, None], axis=-1)[:, 0]


def _filter(log_probs: Array, sampling: Sampling) -> Array:
    """-inf outside the top_k likeliest ids (0: all) and outside the smallest set of
    likeliest ids that holds top_p of the mass; the likeliest id always stays."""
    ordered = jnp.sort(log_probs, axis=-1, descending=True)
    mass_before = jnp.cumsum(jnp.exp(ordered), axis=-1) - jnp.exp(ordered)
    rank = jnp.arange(ordered.shape[-1])
    top_k = jnp.where(sampling.top_k > 0, sampling.top_k, ordered.shape[-1])
    inside = (rank < top_k) & ((mass_before < sampling.top_p) | (rank == 0))
    lowest = jnp.min(jnp.where(inside, ordered, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(log_probs >= lowest, log_probs, -jnp.inf)
