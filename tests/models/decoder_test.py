import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.families import read_config
from mempo_jax.models.hf import load_params
from tests.models.decoder_case import SMALL

GOLDEN = Path(__file__).parent.parent / "golden"
GOLDENS = (
    *("llama", "qwen2", "qwen3"),
    *("llama_linear", "llama_llama3", "qwen2_yarn"),
)
VARIANTS = {
    "llama": SMALL,
    "qwen2": dataclasses.replace(SMALL, qkv_bias=True, tied=False),
    "qwen3": dataclasses.replace(SMALL, qk_norm=True, tied=False),
}


def random_params(model, seed=0):
    """Parameters full of noise, so that no bias is 0 and no scale is 1."""
    draw = np.random.default_rng(seed).normal
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda x: draw(0.2, 0.3, x.shape).astype(x.dtype), shapes)


def random_rows(rows=3, length=12, seed=0):
    tokens = jax.random.randint(jax.random.key(seed), (rows, length), 0, 40)
    return tokens, jnp.ones((rows, length), bool)


@functools.partial(jax.jit, static_argnums=0)
def hidden_of(model, params, tokens, mask):
    return model.hidden(params, tokens, mask)


@functools.partial(jax.jit, static_argnums=0)
def extend(model, params, cache, tokens, start):
    return model.extend(params, cache, tokens, start)


@functools.partial(jax.jit, static_argnums=0)
def logits(model, params, tokens, mask):
    return model.hidden(params, tokens, mask) @ model.unembed(params)


@pytest.mark.parametrize("family", GOLDENS)
def test_logits_equal_stored_transformers_logits(family, tmp_path):
    golden = np.load(GOLDEN / f"transformers_{family}.npz")
    weights = {
        name.removeprefix("weights/"): golden[name]
        for name in golden
        if name.startswith("weights/")
    }
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(str(golden["config"]))
    config = read_config(tmp_path)
    assert config.rope_theta == 5_000.0, "the stored config has another theta"
    model = LanguageModel(config, jnp.float32)
    tokens = golden["tokens"]
    got = logits(model, load_params(tmp_path), tokens, np.ones(tokens.shape, bool))
    np.testing.assert_allclose(
        got,
        golden["logits"],
        atol=1e-4,
        err_msg="the decoder changed: compare with transformers (tests/golden/)",
    )


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_parameter_paths_and_shapes(config):
    init = LanguageModel(config, jnp.float32).init
    params = jax.eval_shape(init, jax.random.key(0))
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    shapes = {"/".join(k.key for k in path): leaf.shape for path, leaf in flat}
    expected = {
        "embed/embedding": (40, 16),
        "final_norm/scale": (16,),
        "layers/attention_norm/scale": (2, 16),
        "layers/mlp_norm/scale": (2, 16),
        "layers/attention/query/kernel": (2, 16, 32),
        "layers/attention/key/kernel": (2, 16, 16),
        "layers/attention/value/kernel": (2, 16, 16),
        "layers/attention/output/kernel": (2, 32, 16),
        "layers/mlp/gate/kernel": (2, 16, 24),
        "layers/mlp/up/kernel": (2, 16, 24),
        "layers/mlp/down/kernel": (2, 24, 16),
    }
    if not config.tied:
        expected["head/kernel"] = (16, 40)
    if config.qkv_bias:
        for name, size in (("query", 32), ("key", 16), ("value", 16)):
            expected[f"layers/attention/{name}/bias"] = (2, size)
    if config.qk_norm:
        expected["layers/attention/query_norm/scale"] = (2, 8)
        expected["layers/attention/key_norm/scale"] = (2, 8)
    assert shapes == expected
    assert all(leaf.dtype == jnp.float32 for _, leaf in flat)


def test_init_depends_on_the_key_alone_and_layers_differ():
    init = jax.jit(LanguageModel(SMALL, jnp.float32).init)
    one, again, other = (init(jax.random.key(seed)) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    kernel = one["layers"]["mlp"]["gate"]["kernel"]
    assert not np.allclose(kernel[0], kernel[1])
    assert not np.allclose(kernel, other["layers"]["mlp"]["gate"]["kernel"])


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_scan_unrolled_and_remat_agree_in_value_and_gradient(config):
    tokens, mask = random_rows()
    results = []
    for options in ({"unroll": True}, {"unroll": False}, {"remat": True}):
        model = LanguageModel(config, jnp.float32, **options)
        params = random_params(model)

        def loss(params, model=model):
            return (model.hidden(params, tokens, mask) ** 2).sum()

        results.append(jax.jit(jax.value_and_grad(loss))(params))
    for value, gradient in results[1:]:
        np.testing.assert_allclose(value, results[0][0], rtol=1e-5)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3, rtol=1e-3),
            gradient,
            results[0][1],
        )


def test_a_token_changes_nothing_before_it():
    model = LanguageModel(SMALL, jnp.float32)
    params = random_params(model)
    tokens, mask = random_rows()
    changed = tokens.at[:, 7].add(1) % 40
    before, after = (hidden_of(model, params, t, mask) for t in (tokens, changed))
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert (np.abs(before[:, 7:] - after[:, 7:]).max(axis=(0, 2)) > 1e-6).all()


@pytest.mark.parametrize("pads", [1, 40])
def test_a_row_alone_equals_the_row_with_padding(pads):
    model = LanguageModel(SMALL, jnp.float32)
    params = random_params(model)
    tokens, mask = random_rows(1)
    alone = hidden_of(model, params, tokens, mask)
    other = jnp.full((1, pads), 3)
    padded = hidden_of(
        model,
        params,
        jnp.concatenate([tokens, other], 1),
        jnp.concatenate([mask, jnp.zeros((1, pads), bool)], 1),
    )
    np.testing.assert_allclose(padded[:, :12], alone, atol=1e-5)


def test_a_row_of_padding_alone_is_finite_in_value_and_gradient():
    model = LanguageModel(SMALL, jnp.float32)
    params = random_params(model)
    tokens, _ = random_rows()

    def loss(params):
        return model.hidden(params, tokens, jnp.zeros(tokens.shape, bool)).sum()

    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("unroll", [True, False])
@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_extend_in_ragged_pieces_equals_hidden(config, unroll):
    model = LanguageModel(config, jnp.float32, unroll=unroll)
    params = random_params(model)
    tokens, mask = random_rows()
    whole = hidden_of(model, params, tokens, mask)
    cache = model.init_cache(3, 20)
    lengths = np.array([2, 5, 3])  # of the first piece, padded to 5 with token 9
    first = np.where(np.arange(5) < lengths[:, None], tokens[:, :5], 9)
    hidden, cache = extend(model, params, cache, first, np.zeros(3, np.int32))
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(hidden[row, :length], whole[row, :length], atol=1e-5)
    for step in range(6):
        at = lengths + step
        hidden, cache = extend(
            model, params, cache, tokens[np.arange(3), at][:, None], at
        )
        np.testing.assert_allclose(hidden[:, 0], whole[np.arange(3), at], atol=1e-5)


def test_extend_leaves_rows_alone_that_start_at_the_end():
    model = LanguageModel(SMALL, jnp.float32)
    params = random_params(model)
    tokens, _ = random_rows()
    _, cache = extend(
        model, params, model.init_cache(3, 16), tokens, np.zeros(3, np.int32)
    )
    start = np.array([16, 3, 16], np.int32)
    _, after = extend(model, params, cache, tokens[:, :2], start)
    for leaves in zip(*map(jax.tree.leaves, (cache, after, cache.place))):
        old, new = (np.moveaxis(np.asarray(x), leaves[2], 2) for x in leaves[:2])
        np.testing.assert_array_equal(old[[0, 2]], new[[0, 2]])
        assert not np.array_equal(old[1], new[1])
        np.testing.assert_array_equal(old[1, :, 5:], new[1, :, 5:])


def test_bfloat16_keeps_norms_in_float32():
    model = LanguageModel(SMALL, jnp.bfloat16)
    exact = LanguageModel(SMALL, jnp.float32)
    params = random_params(exact)
    tokens, mask = random_rows()
    low = hidden_of(model, params, tokens, mask)
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        low.astype(jnp.float32), hidden_of(exact, params, tokens, mask), atol=0.15
    )
    assert model.init_cache(1, 4).keys[0].dtype == jnp.bfloat16


def test_tied_weights_get_the_gradient_of_both_uses():
    model = LanguageModel(SMALL, jnp.float32)
    params = random_params(model)
    assert "head" not in params
    tokens, mask = random_rows(1, 4)
    both = jax.jit(jax.grad(lambda p: logits(model, p, tokens, mask).sum()))
    absent = [i for i in range(40) if i not in np.asarray(tokens)]
    gradient = both(params)["embed"]["embedding"]
    assert (np.abs(gradient[np.array(absent)]).max(axis=1) > 0).all()


def test_equal_models_hash_alike():
    one, two = (LanguageModel(SMALL, jnp.float32) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != LanguageModel(SMALL, jnp.bfloat16)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"kv_heads": 3}, "multiple of kv_heads"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"layers": 0}, "layers must be positive, got 0"),
    ],
)
def test_impossible_shapes_are_refused(change, match):
    with pytest.raises(ValueError, match=match):
        dataclasses.replace(SMALL, **change)


def test_too_many_positions_are_refused():
    model = LanguageModel(SMALL, jnp.float32)
    with pytest.raises(ValueError, match="65 positions, but the model has at most 64"):
        model.init_cache(1, 65)
    tokens, mask = random_rows(1, 65)
    with pytest.raises(ValueError, match="raise max_positions"):
        hidden_of(model, random_params(model), tokens, mask)


def test_golden_configs_are_what_transformers_wrote():
    for name in GOLDENS:
        golden = np.load(GOLDEN / f"transformers_{name}.npz")
        config = json.loads(str(golden["config"]))
        family, _, kind = name.partition("_")
        assert config["model_type"] == family
        assert config["rope_parameters"]["rope_type"] == (kind or "default")
