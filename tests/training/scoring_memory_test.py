"""Compiled, not run: what scoring needs beside its arguments at a real shape."""

import functools

import jax
import jax.numpy as jnp
import pytest

from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.training import loss as losses
from mempo_jax.types import Rows

ROWS, LENGTH = 8, 2_048
CONFIG = DecoderConfig(
    vocab_size=151_936,
    width=896,
    layers=2,
    heads=14,
    kv_heads=2,
    head_dim=64,
    mlp_width=4_864,
    rope_theta=1e6,
    norm_eps=1e-6,
    tied=True,
    qkv_bias=True,
    qk_norm=False,
    max_positions=LENGTH,
)


# Layers are scanned in any model of more than six. Reached: 0.104 and 0.148.
@pytest.mark.parametrize(("unroll", "share"), [(False, 0.11), (True, 0.15)])
def test_scoring_needs_a_small_part_of_the_logits_memory(unroll, share):
    """Neither the logits, nor the scores of all tokens against all, nor a copy of the
    tied embedding beside what the layers need."""
    model = LanguageModel(CONFIG, "float32", unroll=unroll)
    shape = functools.partial(jax.ShapeDtypeStruct, (ROWS, LENGTH))
    one = functools.partial(jax.ShapeDtypeStruct, (ROWS,))
    rows = Rows(
        tokens=shape(jnp.int32),
        token_mask=shape(bool),
        action_mask=shape(bool),
        behaviour_log_probs=shape(jnp.float32),
        turn_id=shape(jnp.int32),
        op_id=shape(jnp.int32),
        trajectory_index=one(jnp.int32),
        valid=one(bool),
    )

    @jax.jit
    def score(params, rows, temperature):
        return losses.score(model, params, rows, temperature, 2_048)

    params = jax.eval_shape(model.init, jax.random.key(0))
    program = score.lower(params, rows, jax.ShapeDtypeStruct((), jnp.float32))
    used = program.compile().memory_analysis().temp_size_in_bytes
    logits = 4 * ROWS * LENGTH * CONFIG.vocab_size
    assert used < share * logits, f"{used / logits:.3f} of the float32 logits"
