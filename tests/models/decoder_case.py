"""The small decoder that tests of the model share."""

from mempo_jax.models.layers import DecoderConfig

SMALL = DecoderConfig(
    vocab_size=40,
    width=16,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    mlp_width=24,
    rope_theta=1e4,
    norm_eps=1e-5,
    tied=True,
    qkv_bias=False,
    qk_norm=False,
    max_positions=64,
)
