"""The engine where what is new is padded to rows of one width: equal heads."""

import jax.numpy as jnp
import pytest

from mempo_jax.models.decoder import LanguageModel
from mempo_jax.rollout.decode import EnginePrograms
from mempo_jax.rollout.sampler import Counters
from tests.rollout.engine_case import (
    CONFIG,
    EQUAL_HEADS,
    MODEL,
    SLOTS,
    check_log_probs,
    make_engine,
    make_params,
    prompts,
    request,
)


@pytest.fixture(scope="module")
def engine():
    return make_engine(EQUAL_HEADS)


def test_ragged_log_probs_equal_recomputed_ones_over_turns(engine):
    """Contexts of one id, and such as need pieces of the last width."""
    params, temperature = make_params(model=EQUAL_HEADS), 0.9
    engine.set_params(params)
    contexts = prompts([3, 21, 9, 1, 17, 4, 36, 12])
    for turn in range(3):
        requests = [request(i, tokens, turn, 5) for i, tokens in enumerate(contexts)]
        results = engine.generate(requests, temperature=temperature)
        check_log_probs(params, requests, results, temperature, EQUAL_HEADS)
        more = prompts([(i * 3 + turn) % 7 for i in range(SLOTS)], seed=turn + 1)
        contexts = [
            c + r.tokens + m for c, r, m in zip(contexts, results, more, strict=True)
        ]


def test_a_group_shares_the_prefill_of_its_prompt(engine):
    engine.set_params(make_params(model=EQUAL_HEADS))
    [prompt] = prompts([30])
    before = engine.counters.tokens_prefilled
    engine.generate([request(slot, prompt) for slot in range(SLOTS)], temperature=1.0)
    computed = engine.counters.tokens_prefilled - before
    assert computed == len(prompt) - 1 + SLOTS  # the last id of each, when decoding


def test_where_new_tokens_lie_flat():
    """Grouped heads, layers laid out, several slots, one CPU."""
    scanned = LanguageModel(CONFIG, jnp.float32, unroll=False)
    given = (MODEL, 8), (EQUAL_HEADS, 8), (scanned, 8), (MODEL, 1)
    packed = [EnginePrograms(m, None, Counters()).packed_sizes(n, 16) for m, n in given]
    assert packed == [(64, 128), (), (), ()]
