"""A tiny policy, and settings of runs with it, for the tests of planning."""

import functools

from mempo_jax.distributed import placement
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.planning.plan import with_changes
from mempo_jax.planning.programs import Lowering
from tests.experiments import tiny

SHAPE = DecoderConfig(
    vocab_size=128,
    width=32,
    layers=8,
    heads=4,
    kv_heads=2,
    head_dim=8,
    mlp_width=64,
    rope_theta=1e4,
    norm_eps=1e-6,
    tied=True,
    qkv_bias=True,
    qk_norm=False,
    max_positions=256,
)


def settings_of(**changes):
    """Settings of the tiny run; ``changes`` by field, with __ for the dot."""
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return with_changes(tiny.get_config().to_dict(), named)


@functools.cache
def lowering(axes=(1, 1, 1), **changes):
    return Lowering(SHAPE, settings_of(**changes), placement.make_mesh(*axes))
