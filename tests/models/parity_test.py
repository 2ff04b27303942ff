"""Live parity with transformers on torch: ``pytest -m parity`` (extra [parity])."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.models import hf, rope
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.models.nano import build_nano

pytestmark = pytest.mark.parity

TOKENIZER = build_nano(["a b c d e f g h"], [])
SHAPE = DecoderConfig(
    vocab_size=TOKENIZER.vocab_size,
    width=32,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=8,
    mlp_width=48,
    rope_theta=2e4,
    norm_eps=1e-6,
    tied=False,
    qkv_bias=False,
    qk_norm=False,
    max_positions=64,
)
QWEN2 = dataclasses.replace(SHAPE, qkv_bias=True)
QWEN3 = dataclasses.replace(SHAPE, qk_norm=True, head_dim=16)
# 20 tokens pass the original 8 positions.
LLAMA3 = rope.Llama3Rope(8.0, 1.0, 4.0, 8)
YARN = rope.YarnRope(8.0, 8, 4.0, 1.0, rope.yarn_attention_factor(8.0), True)
FACTORS = rope.FactorsRope((1.0, 1.5, 4.0, 8.0), 1.0, 64)


def scaled(config, scaling):
    return dataclasses.replace(config, rope_scaling=scaling)


FAMILIES = {
    "llama": SHAPE,
    "llama tied": dataclasses.replace(SHAPE, tied=True),
    "llama linear": scaled(SHAPE, rope.LinearRope(4.0)),
    "llama llama3": scaled(SHAPE, LLAMA3),
    "llama factors": scaled(SHAPE, FACTORS),
    "qwen2": QWEN2,
    "qwen2 tied": dataclasses.replace(QWEN2, tied=True),
    "qwen2 yarn": scaled(QWEN2, YARN),
    "qwen3": QWEN3,
    "qwen3 tied": dataclasses.replace(QWEN3, tied=True),
    "qwen3 yarn": scaled(QWEN3, dataclasses.replace(YARN, truncate=False)),
}


def random_params(config):
    import jax

    draw = np.random.default_rng(0).normal
    model = LanguageModel(config, jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda x: draw(0.1, 0.2, x.shape).astype(x.dtype), shapes)


def ours(config, params, tokens):
    model = LanguageModel(config, jnp.float32)
    hidden = model.hidden(params, tokens, np.ones(tokens.shape, bool))
    return np.asarray(hidden @ model.unembed(params))


def theirs(model, tokens):
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(tokens).long()).logits.numpy()


def check(logits, expected):
    """The largest difference, against the largest logit."""
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()


def random_tokens(config):
    shape = (3, 20)
    return np.random.default_rng(1).integers(0, config.vocab_size, shape, np.int32)


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_what_we_save_transformers_loads_with_equal_logits(config, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    params = random_params(config)
    hf.save(tmp_path, config, params, TOKENIZER)
    model, info = AutoModelForCausalLM.from_pretrained(
        str(tmp_path), output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    tokens = random_tokens(config)
    check(ours(config, params, tokens), theirs(model.eval(), tokens))
    if config.qkv_bias or config.qk_norm:
        return  # transformers puts the Qwen tokenizer in place of any other there
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path))
    text = "<|user|> a b<|end|>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == TOKENIZER.encode(text, control=True)


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("shard", ["1GB", "20KB"])
def test_what_transformers_saves_we_load_with_equal_logits(config, shard, tmp_path):
    from transformers import AutoModelForCausalLM

    hf.save(tmp_path / "ours", config, random_params(config), TOKENIZER)
    model = AutoModelForCausalLM.from_pretrained(str(tmp_path / "ours")).eval()
    model.save_pretrained(str(tmp_path / "theirs"), max_shard_size=shard)
    TOKENIZER.save(tmp_path / "theirs")
    again, params, _ = hf.load(tmp_path / "theirs")
    assert again == config
    tokens = random_tokens(config)
    check(ours(again, params, tokens), theirs(model, tokens))
