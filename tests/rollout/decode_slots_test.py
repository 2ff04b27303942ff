import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from mempo_jax.distributed.placement import make_mesh, place_params, row_sharding
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.rollout.decode import heads_split
from mempo_jax.rollout.engine import Engine
from tests.rollout.engine_case import CONFIG, LENGTH, TAGS, TOKENIZER, prompts, request

HEADS = 2
# Even, so that two devices can share the vocabulary.
SHAPE = dataclasses.replace(
    CONFIG, heads=4, kv_heads=HEADS, vocab_size=CONFIG.vocab_size + 1, layers=1
)
MODEL = LanguageModel(SHAPE, "float32")


def engine(mesh):
    made = Engine(
        MODEL,
        TOKENIZER,
        slots=8,
        max_length=LENGTH,
        prefill_buckets=(16,),
        decode_chunk=4,
        closing_tags=TAGS,
        row_buckets=(),
        span_buckets=(),
        row_sharding=row_sharding(mesh),
    )
    params = MODEL.init(jax.random.key(3))
    made.set_params(place_params(params, mesh))
    return made


def test_a_cache_split_by_heads_gives_the_same_tokens():
    contexts = prompts([3, 21, 9, 1, 17, 4, 30, 12])
    asked = [request(i, each, max_new_tokens=6) for i, each in enumerate(contexts)]
    alone, split = engine(make_mesh(1, 1, 1)), engine(make_mesh(2, 2, 2))
    expected = alone.generate(asked, temperature=1.0)
    made = split.generate(asked, temperature=1.0)
    assert [each.tokens for each in made] == [each.tokens for each in expected]
    for one, other in zip(made, expected):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)
    compiled = split.counters.compilations
    more = [each._replace(key=each.key + 1) for each in asked]
    split.generate(more, temperature=1.0)
    assert split.counters.compilations == compiled
    (lane,) = split._lanes
    for leaf in jax.tree.leaves(lane.device._cache):
        rows, heads, *_ = leaf.sharding.shard_shape(leaf.shape)
        assert (rows, heads) == (8 // 4, HEADS // 2)


@pytest.mark.parametrize(
    ("axes", "heads", "expected"),
    [
        ((2, 2, 2), 4, (("data", "fsdp"), ("tensor",))),
        ((2, 2, 2), 3, (("data", "fsdp"),)),
        ((4, 2, 1), 4, (("data", "fsdp"),)),
    ],
)
def test_heads_are_split_where_the_axes_of_weights_divide_them(axes, heads, expected):
    made = heads_split(row_sharding(make_mesh(*axes)), heads)
    assert made.spec == PartitionSpec(*expected)


def test_without_a_mesh_nothing_is_split():
    assert heads_split(None, 4) is None
