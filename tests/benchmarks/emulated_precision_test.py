"""Rounded products part the sampler from the trainer, unless products ask for more."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.emulated_precision import nothing_asked, rounded_products
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.settings import LOG_PROB_GAPS
from tests.models.decoder_case import SMALL

LENGTH = 24
MODEL = LanguageModel(SMALL, jnp.float32)


def gap():
    """Between whole rows and the cache, fed a token at a time: nats, the largest."""
    # Wide weights, as training makes them: the layers then add to what they are given.
    draws = np.random.default_rng(0)
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0))
    params = jax.tree.map(lambda x: draws.normal(0, 0.7, x.shape).astype("f"), shapes)
    tokens = draws.integers(0, SMALL.vocab_size, (4, LENGTH), dtype=np.int32)
    whole = jax.jit(MODEL.hidden)(params, tokens, np.ones(tokens.shape, bool))
    extend = jax.jit(MODEL.extend)
    cache, states = MODEL.init_cache(len(tokens), LENGTH), []
    for at in range(LENGTH):
        new = tokens[:, at : at + 1]
        state, cache = extend(params, cache, new, np.full(len(tokens), at, np.int32))
        states.append(state)

    def log_probs(states):
        states = np.asarray(states, np.float64)
        return jax.nn.log_softmax(states @ np.asarray(MODEL.unembed(params)))

    apart = log_probs(whole) - log_probs(np.concatenate(states, axis=1))
    return float(np.abs(apart).max())


@pytest.mark.parametrize("bits", [8, 11])
def test_only_products_that_ask_stay_below_the_bound(bits):
    gaps = {}
    for name, way in {
        "before": nothing_asked(),
        "now": contextlib.nullcontext(),
    }.items():
        with way, rounded_products(bits):
            gaps[name] = gap()
    assert gaps["now"] < LOG_PROB_GAPS["float32"] < gaps["before"]


def test_what_is_rounded():
    exact = np.float32(1 + 2**-9)
    one = np.ones((1, 1), np.float32)
    asks = {"asks": jax.lax.Precision.HIGHEST, "asks for less": jax.lax.Precision.HIGH}

    def product(dtype=np.float32, precision=None):
        return float(jnp.dot(dtype(exact * one), dtype(one), precision=precision)[0, 0])

    with rounded_products(8):
        assert product() == 1
        assert product(precision=asks["asks"]) == exact
        assert product(precision=asks["asks for less"]) == 1
    with rounded_products(11):
        assert product() == exact
    assert product() == exact
