import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.models import rope
from mempo_jax.models.layers import DecoderConfig, rotation_table

LLAMA3 = rope.Llama3Rope(8.0, 1.0, 4.0, 8192)
YARN = rope.YarnRope(4.0, 32_768, 32.0, 1.0, 1.25, True)
KINDS = {
    "plain": None,
    "linear": rope.LinearRope(4.0),
    "llama3": LLAMA3,
    "yarn": YARN,
    "factors": rope.FactorsRope((1.0, 2.0, 3.0), 1.5, 64),
}
PLAIN = DecoderConfig(
    vocab_size=8,
    width=8,
    layers=1,
    heads=1,
    kv_heads=1,
    head_dim=128,
    mlp_width=8,
    rope_theta=5e5,
    norm_eps=1e-5,
    tied=True,
    qkv_bias=False,
    qk_norm=False,
    max_positions=64,
)


@pytest.mark.parametrize("scaling", KINDS.values(), ids=KINDS)
def test_what_is_written_is_read_back(scaling):
    assert rope.read(rope.written(scaling), 64) == scaling


def test_llama3_keeps_short_waves_and_stretches_long_ones():
    got = LLAMA3.multipliers(128, 5e5)
    waves = 2 * math.pi * 5e5 ** (np.arange(64) / 64)
    np.testing.assert_array_equal(got[waves < 8192 / 4], 1.0)
    np.testing.assert_allclose(got[waves > 8192], 1 / 8)
    between = (waves > 8192 / 4) & (waves < 8192)
    assert between.sum() > 2
    assert (np.diff(got) <= 0).all()
    turns = 8192 / waves[between]
    smooth = (turns - 1) / 3
    np.testing.assert_allclose(got[between], smooth + (1 - smooth) / 8)


def test_yarn_keeps_fast_dimensions_and_divides_slow_ones():
    got = YARN.multipliers(128, 1e6)
    turns = 32_768 / (2 * math.pi * 1e6 ** (np.arange(64) / 64))
    np.testing.assert_array_equal(got[turns > 36], 1.0)
    np.testing.assert_allclose(got[turns < 0.9], 1 / 4)
    assert (np.diff(got) <= 0).all()
    exact = dataclasses.replace(YARN, truncate=False).multipliers(128, 1e6)
    assert not np.array_equal(exact, got)


def test_yarn_defaults_follow_the_paper():
    fields = {"rope_type": "yarn", "factor": 4.0}
    scaling = rope.read(fields, 2048)
    assert scaling.original_positions == 2048
    assert (scaling.beta_fast, scaling.beta_slow) == (32.0, 1.0)
    assert scaling.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    both = rope.read(fields | {"mscale": 2.0, "mscale_all_dim": 1.0}, 2048)
    expected = (0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1)
    assert both.attention_factor == pytest.approx(expected)


def test_the_rotation_is_stretched_and_strengthened():
    positions = jnp.arange(6)[None]
    cos, sin = rotation_table(positions, PLAIN)
    linear = dataclasses.replace(PLAIN, rope_scaling=rope.LinearRope(2.0))
    halved = rotation_table(2 * positions, linear)
    np.testing.assert_allclose(halved[0], cos, atol=1e-6)
    np.testing.assert_allclose(halved[1], sin, atol=1e-6)
    factors = rope.FactorsRope((1.0,) * 64, 1.5, 64)
    strong = rotation_table(positions, dataclasses.replace(PLAIN, rope_scaling=factors))
    np.testing.assert_allclose(strong[0], 1.5 * cos, rtol=1e-6)
    np.testing.assert_allclose(strong[1], 1.5 * sin, rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_type 'dynamic' is not one of"),
        ({"type": "su"}, "rope_type 'su'"),
        ({"rope_type": "linear"}, "'linear' without factor"),
        ({"rope_type": "linear", "factor": "x"}, "could not convert"),
        ({"rope_type": "linear", "factor": 2.0, "mystery": 1}, "with mystery"),
        ({"rope_type": "llama3", "factor": 8.0}, "without low_freq_factor"),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 4.0,
            },
            "is not below high_freq_factor",
        ),
        ({"mrope_section": [1, 2]}, "with mrope_section"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor 0\.5"),
        (
            {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
            "a long_factor other than its short_factor",
        ),
    ],
)
def test_what_would_give_other_positions_is_refused(fields, match):
    with pytest.raises(ValueError, match=match):
        rope.read(fields, 64)


def test_factors_of_another_head_size_are_refused():
    short = rope.FactorsRope((1.0, 2.0), 1.0, 64)
    with pytest.raises(ValueError, match="expected 64 rotary factors"):
        dataclasses.replace(PLAIN, rope_scaling=short)
