"""Tokens of several slots in a packed row against one forward pass of whole rows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.models.attention import PIECE, PackedRows
from mempo_jax.models.decoder import LanguageModel
from tests.models.decoder_case import SMALL

LENGTH = 3 * PIECE
SPANS = (PIECE, LENGTH)
SIZE = 2 * PIECE + 24
EQUAL_HEADS = dataclasses.replace(SMALL, kv_heads=SMALL.heads, qk_norm=True)


@functools.partial(jax.jit, static_argnums=0)
def hidden_of(model, params, tokens):
    return model.hidden(params, tokens, jnp.ones(tokens.shape, bool))


@functools.partial(jax.jit, static_argnums=0)
def feed(model, params, cache, packed):
    return model.extend_packed(params, cache, packed, SPANS)


def packed_of(tokens, parts):
    """Parts (slot, first position, end) of rows ``tokens`` as one packed row."""
    ids, slots, positions, pieces = [], [], [], []
    for slot, start, end in parts:
        for begin in range(start, end, PIECE):
            span = int(min(begin + PIECE, end) > SPANS[0])
            pieces.append((len(ids) + begin - start, slot, begin, span))
        ids += tokens[slot, start:end].tolist()
        slots += [slot] * (end - start)
        positions += range(start, end)
    spare = SIZE - len(ids)
    table = np.zeros((9, 4), np.int32)
    table[: len(pieces)] = pieces
    return PackedRows(
        np.array([*ids, *[1] * spare], np.int32),
        np.array([*slots, *[0] * spare], np.int32),
        np.array([*positions, *[LENGTH] * spare], np.int32),
        table,
        np.int32(len(pieces)),
    )


def make_model(config, unroll):
    return LanguageModel(
        dataclasses.replace(config, max_positions=LENGTH), jnp.float32, unroll=unroll
    )


def make_params(model):
    draw = np.random.default_rng(0).normal
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda x: draw(0.2, 0.3, x.shape).astype(x.dtype), shapes)


@pytest.mark.parametrize(
    ("config", "turned", "unroll"),
    [(SMALL, True, True), (SMALL, False, False), (EQUAL_HEADS, False, True)],
)
def test_flat_tokens_give_the_states_of_whole_rows(config, turned, unroll):
    model = make_model(config, unroll)
    params = make_params(model)
    tokens = np.random.default_rng(1).integers(0, 40, (3, LENGTH)).astype(np.int32)
    whole = hidden_of(model, params, tokens)
    cache = model.init_cache(3, LENGTH, turned)
    for parts in (
        [(2, 0, PIECE + 5), (0, 0, 7), (1, 0, 40)],
        [(1, 40, 42), (2, PIECE + 5, LENGTH)],  # slot 0 and its past stay as they are
        [(0, 7, 8), (1, 42, LENGTH), (2, LENGTH - 1, LENGTH)],
        [(0, 8, LENGTH)],
    ):
        states, cache = feed(model, params, cache, packed_of(tokens, parts))
        expected = [whole[slot, start:end] for slot, start, end in parts]
        expected = np.concatenate(expected)
        np.testing.assert_allclose(states[: len(expected)], expected, atol=1e-5)


def test_padding_changes_nothing_in_the_cache():
    model = make_model(SMALL, True)
    cache = jax.tree.map(lambda x: x + 1, model.init_cache(3, LENGTH, True))
    packed = packed_of(np.ones((3, LENGTH), np.int32), [(1, 2, 4)])
    _, after = feed(model, make_params(model), cache, packed)
    for old, new, place in zip(*map(jax.tree.leaves, (cache, after, cache.place))):
        old, new = (np.moveaxis(np.asarray(x), place, 1) for x in (old, new))
        changed = (old != new).any((2, 3))
        assert np.argwhere(changed).tolist() == [[1, 2], [1, 3]]
