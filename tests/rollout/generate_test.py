import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.core.log_probs import token_log_probs
from mempo_jax.models.decoder import Cache, LanguageModel, empty_cache
from mempo_jax.rollout.decode import (
    DrawParameters,
    copy_rows,
    decode,
    prefill,
    put_view,
    sample,
    take_view,
)
from tests.models.decoder_case import SMALL

CONFIG = dataclasses.replace(SMALL, vocab_size=30, heads=2, kv_heads=1)
MODEL = LanguageModel(CONFIG, jnp.float32)
SLOTS, LENGTH = 4, 24
run_sample = jax.jit(sample, static_argnums=4)
run_prefill = jax.jit(functools.partial(prefill, MODEL), static_argnames="span")
run_decode = jax.jit(
    functools.partial(decode, MODEL), static_argnames=("steps", "span", "filtered")
)


def make_params(seed=0):
    draw = np.random.default_rng(seed).normal
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0))
    return jax.tree.map(lambda x: draw(0.2, 0.4, x.shape).astype(x.dtype), shapes)


def sampling(temperature=1.0, top_p=1.0, top_k=0):
    return DrawParameters(np.float32(temperature), np.float32(top_p), np.int32(top_k))


def make_keys(count, seed=0):
    draws = np.random.default_rng(seed).integers(0, 2**32, (count, 2))
    return draws.astype(np.uint32)


def noise_cache(turned=True):
    cache = empty_cache(turned, 2, SLOTS, 1, LENGTH, 8, jnp.float32)
    draw = np.random.default_rng(0).normal
    return jax.tree.map(lambda x: draw(size=x.shape).astype(x.dtype), cache)


def both(before, after):
    """Pairs of the leaves of two caches, as numpy arrays [R, K, S, C]."""
    leaves = map(jax.tree.leaves, (before, after, before.place))
    return [
        tuple(np.moveaxis(np.asarray(leaf), place, 2) for leaf in (old, new))
        for old, new, place in zip(*leaves)
    ]


def test_in_bfloat16_the_output_matrix_is_rounded_as_in_training():
    draw = np.random.default_rng(0).normal
    states = jnp.asarray(draw(size=(1, 1, 16)), jnp.bfloat16)
    unembed = draw(size=(16, 30)).astype(np.float32)

    class Fixed:
        def unembed(self, params):
            return params

        def extend(self, params, cache, tokens, start):
            return states, cache

    empty = (jnp.zeros((1, 1, 8, 8), jnp.bfloat16),)
    zero, keys, stop = np.zeros(1, np.int32), make_keys(1), np.zeros(30, bool)
    given = unembed, Cache(empty, empty), stop, None, zero, zero, zero + 1, keys, zero
    run = functools.partial(decode, Fixed(), steps=1, span=8, filtered=False)
    _, made = jax.jit(run)(*given, sampling())
    rounded = jnp.asarray(unembed).astype(jnp.bfloat16)
    expected = token_log_probs(states, rounded, made.tokens)
    np.testing.assert_allclose(made.log_probs, expected, atol=1e-5)


@pytest.mark.parametrize("turned", [False, True])
def test_views_are_taken_and_put_back_in_place(turned):
    cache = noise_cache(turned)
    rows = np.array([2, 0, SLOTS], np.int32)  # the last one is no row
    view = take_view(cache, rows, 10)
    for whole, part in both(cache, view):
        assert part.shape == (3, 1, 10, 8)
        np.testing.assert_array_equal(part[0], whole[2, :, :10])
    changed = jax.tree.map(lambda x: x + 1, view)
    after = put_view(jax.tree.map(jnp.asarray, cache), changed, rows)
    for old, new in both(cache, after):
        np.testing.assert_array_equal(new[[1, 3]], old[[1, 3]])
        np.testing.assert_array_equal(new[[0, 2], :, 10:], old[[0, 2], :, 10:])
        np.testing.assert_allclose(new[[0, 2], :, :10], old[[0, 2], :, :10] + 1)


def test_copied_rows_equal_their_source_up_to_the_span():
    cache = noise_cache()
    source = np.array([0, 0, 2, 2], np.int32)
    after = copy_rows(jax.tree.map(jnp.asarray, cache), source, span=16)
    for old, new in both(cache, after):
        np.testing.assert_array_equal(new[1, :, :16], old[0, :, :16])
        np.testing.assert_array_equal(new[1, :, 16:], old[1, :, 16:])
        np.testing.assert_array_equal(new[[0, 2]], old[[0, 2]])


def test_draws_follow_the_distribution_at_the_temperature():
    count, temperature = 20_000, 0.7
    logits = np.random.default_rng(0).normal(0, 1.5, 12).astype(np.float32)
    token, log_prob = run_sample(
        np.tile(logits, (count, 1)),
        jax.random.wrap_key_data(make_keys(count)),
        np.zeros(count, np.int32),
        sampling(temperature),
        False,
    )
    expected = np.asarray(jax.nn.softmax(logits / temperature))
    seen = np.bincount(token, minlength=12) / count
    np.testing.assert_allclose(seen, expected, atol=4 * 0.5 / count**0.5)
    np.testing.assert_allclose(log_prob, np.log(expected)[token], atol=1e-5)


def test_ids_of_probability_zero_are_never_drawn():
    logits = np.full((5_000, 6), -np.inf, np.float32)
    logits[:, [1, 4]] = 0.0
    keys = jax.random.wrap_key_data(make_keys(5_000))
    token, log_prob = run_sample(logits, keys, np.full(5_000, 3), sampling(), False)
    assert set(np.asarray(token).tolist()) == {1, 4}
    np.testing.assert_allclose(log_prob, np.log(0.5), atol=1e-6)


def test_greedy_takes_the_first_maximum_and_scores_at_temperature_one():
    logits = np.array([[0.0, 2.0, 2.0, 1.0]], np.float32)
    keys = jax.random.wrap_key_data(make_keys(1))
    token, log_prob = run_sample(logits, keys, np.zeros(1, int), sampling(0.0), False)
    assert token.tolist() == [1]
    np.testing.assert_allclose(log_prob, jax.nn.log_softmax(logits)[0, 1], atol=1e-6)


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 0, "top_p": 0.75}, {0, 1}),
        ({"top_p": 0.01}, {0}),
        ({"top_k": 1, "top_p": 0.9}, {0}),
        ({"top_k": 3, "top_p": 0.85}, {0, 1, 2}),
    ],
)
def test_top_k_and_top_p_keep_the_likeliest_and_do_not_rescore(options, allowed):
    probs = np.array([0.5, 0.3, 0.15, 0.05], np.float32)
    logits = np.tile(np.log(probs), (3_000, 1))
    keys = jax.random.wrap_key_data(make_keys(3_000))
    token, log_prob = run_sample(
        logits, keys, np.zeros(3_000, int), sampling(**options), True
    )
    assert set(np.asarray(token).tolist()) == allowed
    np.testing.assert_allclose(log_prob, np.log(probs)[token], atol=1e-5)


def test_the_draw_depends_on_key_and_index_alone():
    logits = np.zeros((6, 1_000), np.float32)
    keys = make_keys(6)

    def draw(order, index):
        wrapped = jax.random.wrap_key_data(keys[order])
        out = run_sample(logits, wrapped, np.asarray(index), sampling(), False)
        return np.asarray(out[0])

    order = np.array([3, 1, 0, 5, 4, 2])
    first, later = draw(np.arange(6), [0] * 6), draw(np.arange(6), [1] * 6)
    np.testing.assert_array_equal(draw(order, [0] * 6), first[order])
    assert len(set(first.tolist())) > 3
    assert (later != first).all()
    mixed = draw(np.arange(6), [0, 1] * 3)  # rows that began at different times
    np.testing.assert_array_equal(mixed[::2], first[::2])
    np.testing.assert_array_equal(mixed[1::2], later[1::2])


@jax.jit
def score(params, tokens, mask, temperature):
    logits = MODEL.hidden(params, tokens, mask) @ MODEL.unembed(params)
    return jax.nn.log_softmax(logits / temperature)


def prompt_in_cache(params, tokens):
    """All but the last id of each row, prefilled from nothing."""
    start = np.zeros(SLOTS, np.int32)
    cache = MODEL.init_cache(SLOTS, LENGTH)
    return run_prefill(params, cache, None, tokens[:, :-1], start, span=LENGTH)


@pytest.mark.parametrize("chosen", [None, [3, 1]])
def test_decode_stops_at_limits_and_stop_ids_and_scores_what_it_drew(chosen):
    params = make_params()
    prompt = np.random.default_rng(1).integers(0, 30, (SLOTS, 5)).astype(np.int32)
    rows = np.arange(SLOTS) if chosen is None else np.array(chosen)
    limit = np.array([6, 0, 2, 6], np.int32)[rows]
    stop = np.zeros(30, bool)
    stop[::4] = True
    cache, out = run_decode(
        params,
        prompt_in_cache(params, prompt),
        stop,
        None if chosen is None else rows.astype(np.int32),
        prompt[rows, -1],
        np.full(len(rows), 4, np.int32),
        limit,
        make_keys(SLOTS)[rows],
        np.zeros(len(rows), np.int32),
        sampling(0.8),
        steps=8,
        span=16,
        filtered=False,
    )
    assert (out.counts <= limit).all()
    for index, row in enumerate(rows):
        count = int(out.counts[index])
        sampled = np.asarray(out.tokens[index, :count])
        assert not stop[sampled[:-1]].any()
        assert count == limit[index] or stop[sampled[-1]]
        if not count:
            continue
        text = np.zeros((1, LENGTH), np.int32)
        text[0, : 5 + count] = [*prompt[row], *sampled]
        scores = score(params, text, np.arange(LENGTH)[None] < 5 + count, 0.8)
        expected = scores[0, np.arange(4, 4 + count), sampled]
        np.testing.assert_allclose(out.log_probs[index, :count], expected, atol=1e-4)
    assert cache.values[0].shape == (SLOTS, 1, LENGTH, 8)


def test_decode_leaves_other_rows_of_the_cache_alone():
    params, cache = make_params(), noise_cache()
    after, out = run_decode(
        params,
        cache,
        np.zeros(30, bool),
        None,
        np.zeros(SLOTS, np.int32),
        np.full(SLOTS, 5, np.int32),
        np.array([0, 3, 0, 0], np.int32),
        make_keys(SLOTS),
        np.zeros(SLOTS, np.int32),
        sampling(),
        steps=8,
        span=16,
        filtered=False,
    )
    assert out.counts.tolist() == [0, 3, 0, 0]
    for old, new in both(cache, after):
        np.testing.assert_array_equal(new[[0, 2, 3]], old[[0, 2, 3]])
        np.testing.assert_array_equal(new[1, :, :5], old[1, :, :5])
        np.testing.assert_array_equal(new[1, :, 8:], old[1, :, 8:])
