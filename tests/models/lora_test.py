import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.models import lora
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.lora import LoraConfig
from tests.models.decoder_case import SMALL

CONFIG = dataclasses.replace(SMALL, qkv_bias=True)
ALL = LoraConfig(rank=3, alpha=6.0, targets=tuple(lora.PROJECTIONS))
SOME = LoraConfig(rank=2, alpha=5.0, targets=("query", "down"))
MODEL = LanguageModel(CONFIG, jnp.float32)


def random_tree(shapes, seed=0):
    draw = np.random.default_rng(seed).normal
    return jax.tree.map(lambda x: draw(0.1, 0.3, x.shape).astype(x.dtype), shapes)


@functools.cache
def base():
    return random_tree(jax.eval_shape(MODEL.init, jax.random.key(0)))


def fresh(settings, seed=1):
    return lora.new_adapters(base(), settings, jax.random.key(seed))


def trained(settings):
    """A whole tree whose adapters have been moved from where they began."""
    return lora.join(random_tree(fresh(settings), seed=2), base())


@functools.partial(jax.jit, static_argnums=0)
def logits(model, params):
    tokens = jnp.arange(24).reshape(2, 12)
    hidden = model.hidden(params, tokens, jnp.ones((2, 12), bool))
    return hidden @ model.unembed(params)


@functools.partial(jax.jit, static_argnums=0)
def extended(model, params):
    tokens = jnp.arange(24).reshape(2, 12)
    cache = model.init_cache(2, 16)
    hidden, _ = model.extend(params, cache, tokens, jnp.zeros(2, jnp.int32))
    return hidden @ model.unembed(params)


@pytest.mark.parametrize("settings", [ALL, SOME])
def test_fresh_adapters_stand_where_the_model_keeps_them(settings):
    wanted = jax.eval_shape(MODEL.with_lora(settings).init, jax.random.key(0))
    made = lora.join(fresh(settings), base())
    assert jax.tree.structure(made) == jax.tree.structure(wanted)
    for own, other in zip(jax.tree.leaves(made), jax.tree.leaves(wanted)):
        assert (own.shape, own.dtype) == (other.shape, other.dtype)


def test_fresh_adapters_change_nothing_to_the_bit():
    params = lora.join(fresh(ALL), base())
    for function in (logits, extended):
        with_them = function(MODEL.with_lora(ALL), params)
        np.testing.assert_array_equal(with_them, function(MODEL, base()))


def test_each_adapter_is_drawn_for_itself_and_by_the_key():
    one, other = fresh(ALL), fresh(ALL, seed=2)
    drawn = [leaf for leaf in jax.tree.leaves(one) if np.any(leaf)]
    assert len(drawn) == len(ALL.targets), "every a is random, every b is 0"
    layers = {np.asarray(part).tobytes() for leaf in drawn for part in leaf}
    assert len(layers) == len(ALL.targets) * CONFIG.layers
    again = fresh(ALL)
    jax.tree.map(np.testing.assert_array_equal, again, one)
    assert not np.array_equal(*(_query(tree)["a"] for tree in (one, other)))
    # A projection starts alike whatever the others are.
    some = dataclasses.replace(SOME, rank=3)
    np.testing.assert_array_equal(_query(fresh(some))["a"], _query(one)["a"])


def _query(tree):
    return tree["layers"]["attention"]["query"]["adapter"]


@pytest.mark.parametrize(("settings", "unroll"), [(ALL, True), (SOME, False)])
def test_merged_weights_give_the_same_logits(settings, unroll):
    model = LanguageModel(CONFIG, jnp.float32, unroll=unroll)
    params = trained(settings)
    merged = lora.merge(params, settings)
    assert jax.tree.structure(merged) == jax.tree.structure(base())
    adapted = logits(model.with_lora(settings), params)
    np.testing.assert_allclose(logits(model, merged), adapted, atol=1e-5)
    assert np.abs(adapted - logits(model, base())).max() > 0.1


def test_generation_computes_with_the_adapters_that_training_does():
    model, params = MODEL.with_lora(ALL), trained(ALL)
    same = logits(model, params)
    np.testing.assert_allclose(extended(model, params), same, atol=1e-5)


def test_the_factor_is_alpha_over_rank():
    params = trained(SOME)
    half = dataclasses.replace(SOME, alpha=SOME.alpha / 2)
    pair = _query(params)
    for settings, factor in ((SOME, 2.5), (half, 1.25)):
        kernel = lora.merge(params, settings)["layers"]["attention"]["query"]["kernel"]
        change = kernel - base()["layers"]["attention"]["query"]["kernel"]
        expected = factor * (pair["a"] @ pair["b"])
        np.testing.assert_allclose(change, expected, atol=1e-6)


def test_what_is_trained_and_what_is_frozen():
    params = trained(SOME)
    adapters, frozen = lora.split(params)
    assert len(jax.tree.leaves(adapters)) == 2 * len(SOME.targets)
    assert jax.tree.structure(frozen) == jax.tree.structure(base())
    again = lora.join(adapters, frozen)
    assert jax.tree.structure(again) == jax.tree.structure(params)
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(params)):
        assert one is other, "no array is copied"
    for one, other in zip(jax.tree.leaves(frozen), jax.tree.leaves(base())):
        assert one is other


def test_without_adapters_everything_is_trained():
    whole, nothing = lora.split(base())
    assert whole is base()
    assert nothing == {}
    assert lora.join(whole, nothing) is whole


def test_a_small_change_of_a_bfloat16_base_survives_merging():
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), base())
    small = jax.tree.map(lambda x: 0.01 * x, random_tree(fresh(SOME), seed=2))
    merged = lora.merge(lora.join(small, narrow), SOME)
    assert {leaf.dtype for leaf in jax.tree.leaves(merged)} == {np.dtype("float32")}
    kernel, before = (
        np.asarray(tree["layers"]["mlp"]["down"]["kernel"], np.float32)
        for tree in (merged, narrow)
    )
    pair = small["layers"]["mlp"]["down"]["adapter"]
    np.testing.assert_allclose(kernel - before, 2.5 * pair["a"] @ pair["b"], atol=1e-7)


def test_models_with_other_adapters_are_not_equal():
    assert MODEL.with_lora(ALL) != MODEL
    assert MODEL.with_lora(ALL) != MODEL.with_lora(SOME)
    assert MODEL.with_lora(ALL).with_lora(None) == MODEL


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"rank": -1}, r"rank: expected at least 0 \(0: off\), got -1"),
        ({"alpha": 0.0}, "alpha: expected above 0, got 0.0"),
        ({"targets": ("query", "head")}, "targets: expected some of query, key"),
        ({"targets": ()}, "targets: expected some of"),
        ({"targets": ("up", "up")}, "each once"),
    ],
)
def test_impossible_adapters_are_refused(change, match):
    with pytest.raises(ValueError, match=match):
        dataclasses.replace(ALL, **change)
