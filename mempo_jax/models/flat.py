"""New tokens of several slots as one flat row: no slot is padded to another's width.

Letters as in ``decoder``: ``N`` tokens of a flat row, ``H`` heads, ``K`` key/value
heads, ``C`` head size, ``S`` cache length; ``G`` the most pieces there may be.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mempo_jax.models.attention import cached_attention

Array = jax.Array

# Queries of one product with a slot's keys. Each reads them all, so fewer cost more;
# what a slot's last piece lacks is padding.
PIECE = 32


class Flat(NamedTuple):
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


def flat_attention(
    query: Array,
    keys: Array,
    values: Array,
    flat: Flat,
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
        first, slot, start, which = flat.pieces[index]
        part = jax.lax.dynamic_slice_in_dim(padded, first, PIECE)
        part = jax.lax.switch(which, branches, part, slot, start)
        # What is behind the slot's last token is written over by the next piece, or
        # is padding.
        return jax.lax.dynamic_update_slice_in_dim(made, part, first, axis=0)

    padded = jnp.pad(query, ((0, PIECE), (0, 0), (0, 0)))
    made = jax.lax.fori_loop(0, flat.count, body, jnp.zeros_like(padded))
    return made[: len(query)]
