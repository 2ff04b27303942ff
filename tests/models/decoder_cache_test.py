import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.models.decoder import LanguageModel, empty_cache, written
from tests.models.decoder_case import SMALL


@pytest.mark.parametrize(
    ("kv_heads", "backend", "turned"),
    [(2, "cpu", True), (2, "gpu", False), (4, "cpu", False)],
)
def test_keys_are_turned_for_grouped_heads_on_a_cpu(
    kv_heads, backend, turned, monkeypatch
):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    config = dataclasses.replace(SMALL, kv_heads=kv_heads)
    cache = LanguageModel(config, jnp.float32).init_cache(3, 16)
    assert cache.turned == turned
    assert (cache.rows, cache.length) == (3, 16)
    wide = (3, kv_heads, 16, 8)
    assert cache.values[0].shape == wide
    assert cache.keys[0].shape == ((3, kv_heads, 8, 16) if turned else wide)


@pytest.mark.parametrize("turned", [False, True])
def test_new_keys_and_values_are_put_at_their_positions(turned):
    cache = empty_cache(turned, 1, 2, 3, 6, 4, jnp.float32)
    new = np.random.default_rng(0).normal(size=(2, 2, 2, 3, 4)).astype(np.float32)
    positions = np.array([[1, 2], [5, 6]])  # 6 is past the end
    rows = np.arange(2)[:, None]
    made = written(cache.keys[0], cache.values[0], tuple(new), rows, positions, turned)
    for held, given, place in zip(made, new, (cache.place.keys[0], 2)):
        held = np.moveaxis(np.asarray(held), place, 1)  # [R, S, K, C]
        expected = np.zeros((2, 6, 3, 4), np.float32)
        expected[0, 1:3], expected[1, 5] = given[0], given[1, 0]
        np.testing.assert_array_equal(held, expected)
