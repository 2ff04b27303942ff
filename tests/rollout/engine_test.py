import jax
import numpy as np
import pytest

from tests.rollout.engine_case import (
    END,
    EQUAL_HEADS,
    LENGTH,
    SLOTS,
    TOKENIZER,
    check_log_probs,
    forced,
    greedy_without_cache,
    make_engine,
    make_params,
    prompts,
    request,
)


def test_ragged_log_probs_equal_recomputed_ones_over_turns(engine):
    params, temperature = make_params(), 0.9
    contexts = prompts([3, 21, 9, 1, 17, 4, 30, 12])
    for turn in range(3):
        requests = [request(i, tokens, turn, 7) for i, tokens in enumerate(contexts)]
        results = engine.generate(requests, temperature=temperature)
        check_log_probs(params, requests, results, temperature)
        more = prompts([(i * 3 + turn) % 7 for i in range(SLOTS)], seed=turn + 1)
        contexts = [
            c + r.tokens + m for c, r, m in zip(contexts, results, more, strict=True)
        ]


def test_greedy_in_a_batch_equals_greedy_alone_and_without_cache(engine):
    params = make_params()
    contexts = prompts([3, 21, 9, 1, 17, 4, 30, 12])
    requests = [request(i, tokens) for i, tokens in enumerate(contexts)]
    batch = engine.generate(requests, temperature=0.0)
    check_log_probs(params, requests, batch, 1.0)
    for asked, got in zip(requests, batch):
        engine.set_params(params)
        [alone] = engine.generate([asked._replace(slot=5)], temperature=0.0)
        assert alone.tokens == got.tokens
        free = greedy_without_cache(params, asked.tokens, len(got.tokens))
        assert got.tokens == free


def test_results_do_not_depend_on_order_slots_or_company(engine):
    contexts = prompts([5, 20, 11, 2])
    requests = [request(i, tokens) for i, tokens in enumerate(contexts)]
    together = engine.generate(requests, temperature=1.0)
    engine.set_params(make_params())
    moved = [r._replace(slot=7 - r.slot) for r in requests[::-1]]
    backwards = engine.generate(moved, temperature=1.0)[::-1]
    assert [r.tokens for r in together] == [r.tokens for r in backwards]
    for asked, got in zip(requests, together):
        engine.set_params(make_params())
        [alone] = engine.generate([asked], temperature=1.0)
        assert alone.tokens == got.tokens
        np.testing.assert_allclose(alone.log_probs, got.log_probs, atol=1e-5)


def test_eight_requests_of_one_prompt_give_eight_texts(engine):
    [context] = prompts([12])
    requests = [request(i, context) for i in range(SLOTS)]
    results = engine.generate(requests, temperature=1.0)
    assert len({tuple(r.tokens) for r in results}) == SLOTS
    check_log_probs(make_params(), requests, results, 1.0)
    again = engine.generate(requests, temperature=1.0)
    assert [r.tokens for r in again] == [r.tokens for r in results]
    next_turn = [request(i, context, turn=1) for i in range(SLOTS)]
    other = engine.generate(next_turn, temperature=1.0)
    assert all(a.tokens != b.tokens for a, b in zip(results, other))


def test_a_group_shares_the_prefill_of_its_prompt(engine):
    one, two = prompts([23, 14])
    requests = [request(i, one if i < 4 else two) for i in range(SLOTS)]
    before = engine.counters.tokens_prefilled
    results = engine.generate(requests, temperature=1.0)
    # Each prompt once, and every row's own last token.
    assert engine.counters.tokens_prefilled - before == 22 + 13 + SLOTS
    check_log_probs(make_params(), requests, results, 1.0)


def test_a_group_is_filled_from_the_slot_that_holds_most(engine):
    [context] = prompts([24])
    engine.generate([request(3, context[:20], max_new_tokens=1)], temperature=1.0)
    before = engine.counters.tokens_prefilled
    requests = [request(i, context) for i in range(4)]
    results = engine.generate(requests, temperature=1.0)
    assert engine.counters.tokens_prefilled - before == 3 + 4
    check_log_probs(make_params(), requests, results, 1.0)


def test_only_what_a_slot_does_not_hold_is_computed(engine):
    params = make_params()
    [context] = prompts([20])
    [first] = engine.generate([request(2, context)], temperature=1.0)
    second = context + first.tokens + prompts([6], seed=1)[0]
    before = engine.counters.tokens_prefilled
    asked = [request(2, second, turn=1)]
    check_log_probs(params, asked, engine.generate(asked, temperature=1.0), 1.0)
    # The last sampled token was never fed; then the six new ones.
    assert engine.counters.tokens_prefilled - before == 7
    fork = second[:10] + prompts([9], seed=2)[0]
    asked = [request(2, fork, turn=2)]
    before = engine.counters.tokens_prefilled
    check_log_probs(params, asked, engine.generate(asked, temperature=1.0), 1.0)
    assert engine.counters.tokens_prefilled - before == 9
    before = engine.counters.tokens_prefilled
    engine.generate(asked, temperature=1.0)
    assert engine.counters.tokens_prefilled - before == 1


def test_nothing_cached_outlives_a_weight_update(engine):
    contexts = prompts([20, 9])
    requests = [request(i, tokens) for i, tokens in enumerate(contexts)]
    old = engine.generate(requests, temperature=1.0)
    params = make_params(seed=5)
    engine.set_params(params)
    results = engine.generate(requests, temperature=1.0)
    check_log_probs(params, requests, results, 1.0)
    assert [r.tokens for r in results] != [r.tokens for r in old]
    for asked, got in zip(requests, engine.generate(requests, temperature=0.0)):
        assert got.tokens == greedy_without_cache(params, asked.tokens, len(got.tokens))


def test_an_end_of_turn_in_the_context_is_no_padding(engine):
    """Pad id = end-of-turn id: what stands before and at an end is attended to."""
    body = prompts([6])[0]
    contexts = [[*body, END, 5], [*body, 9, 5], [END, END, *body]]
    requests = [request(i, tokens) for i, tokens in enumerate(contexts)]
    results = engine.generate(requests, temperature=1.0)
    check_log_probs(make_params(), requests, results, 1.0)


def test_a_sampled_end_of_turn_ends_the_turn_and_is_scored(engine):
    [q] = TOKENIZER.encode("q")
    params = forced([[q, *TOKENIZER.encode("bcdef"), END]])
    engine.set_params(params)
    requests = [request(0, [q])]
    results = engine.generate(requests, temperature=1.0)
    assert results[0].text == "bcdef<|im_end|>"
    assert results[0].tokens[-1] == END
    assert results[0].finish == "stop"
    check_log_probs(params, requests, results, 1.0)


@pytest.mark.parametrize(
    ("text", "expected", "finish"),
    [
        ("bd</act>xyz", "bd</act>", "tag"),  # eight tokens, over two chunks
        ("b</answer>xy", "b</answer>", "tag"),  # a token of its own
        ("b</act", "b</act", "length"),  # no tag, only its beginning
    ],
)
def test_a_turn_ends_behind_a_closing_tag(engine, text, expected, finish):
    [q] = TOKENIZER.encode("q")
    known = [q, *TOKENIZER.encode(text)]
    params = forced([known])
    engine.set_params(params)
    requests = [request(0, [q], max_new_tokens=len(known) - 1)]
    [result] = results = engine.generate(requests, temperature=1.0)
    assert (result.text, result.finish) == (expected, finish)
    assert result.tokens == TOKENIZER.encode(expected)
    check_log_probs(params, requests, results, 1.0)


def test_the_slot_forgets_what_was_cut_off_behind_a_tag(engine):
    [q] = TOKENIZER.encode("q")
    params = forced([[q, *TOKENIZER.encode("b</act>xyz")]])
    engine.set_params(params)
    [first] = engine.generate([request(0, [q])], temperature=1.0)
    assert first.text == "b</act>"
    context = [q, *first.tokens, *TOKENIZER.encode("uvwx")]
    before = engine.counters.tokens_prefilled
    requests = [request(0, context, turn=1)]
    check_log_probs(params, requests, engine.generate(requests, temperature=1.0), 1.0)
    assert engine.counters.tokens_prefilled - before == 5


def test_limits_of_request_and_cache(engine):
    contexts = prompts([LENGTH - 3, LENGTH, 8, 8])
    requests = [request(i, tokens) for i, tokens in enumerate(contexts)]
    requests[3] = request(3, contexts[3], max_new_tokens=0)
    results = engine.generate(requests, temperature=1.0)
    assert [len(r.tokens) <= n for r, n in zip(results, (3, 0, 10, 0))] == [True] * 4
    assert results[1] == ([], results[1].log_probs, "length", "")
    assert len(results[1].log_probs) == 0
    check_log_probs(make_params(), requests[::2], results[::2], 1.0)
    follow = [request(1, contexts[1][: LENGTH - 5], turn=1)]
    check_log_probs(
        make_params(), follow, engine.generate(follow, temperature=1.0), 1.0
    )


def test_top_k_of_one_is_greedy(engine):
    [context] = prompts([8])
    [one] = engine.generate([request(0, context)], temperature=0.7, top_k=1)
    [greedy] = engine.generate([request(0, context)], temperature=0.0)
    assert one.tokens == greedy.tokens
    check_log_probs(make_params(), [request(0, context)], [one], 0.7)


def test_nothing_compiles_after_warm_up(engine):
    before = engine.counters.compilations
    assert before > 0
    for turn, lengths in enumerate(([1], [3, 40], [60] * 8, [7, 7, 7], range(1, 9))):
        contexts = prompts(lengths, seed=turn)
        for temperature in (0.0, 0.9):
            requests = [request(i, c, turn) for i, c in enumerate(contexts)]
            engine.generate(requests, temperature=temperature)
    engine.generate([request(0, [1, 2])], temperature=1.0, top_p=0.9)
    assert engine.counters.compilations == before


def test_a_width_above_the_span_is_warmed_up_too():
    engine = make_engine(EQUAL_HEADS, prefill_buckets=(4, 48), span_buckets=(32,))
    params = make_params(model=EQUAL_HEADS)
    engine.set_params(params)
    engine.warm_up()
    before = engine.counters.compilations
    for length in (3, 20, 31, 40):  # 20 and 31 need width 48 in a span of 32
        engine.set_params(params)
        context = prompts([length])[0]
        engine.generate([request(0, context, max_new_tokens=1)], temperature=1.0)
    assert engine.counters.compilations == before


def test_counters_add_up(engine):
    start = (engine.counters.tokens_fed, engine.counters.tokens_generated)
    requests = [request(i, tokens) for i, tokens in enumerate(prompts([5, 6]))]
    results = engine.generate(requests, temperature=1.0)
    assert engine.counters.tokens_fed - start[0] == 11
    made = sum(len(r.tokens) for r in results)
    assert engine.counters.tokens_generated - start[1] == made


def test_rows_spread_over_devices_give_the_same(engine):
    contexts = prompts([3, 21, 9, 1, 17, 4, 30, 12])
    requests = [
        request(i, tokens, max_new_tokens=5) for i, tokens in enumerate(contexts)
    ]
    expected = engine.generate(requests, temperature=1.0)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    spread = make_engine(
        row_buckets=None, span_buckets=(), prefill_buckets=(16,), row_sharding=rows
    )
    spread.set_params(jax.device_put(make_params(), whole))
    results = spread.generate(requests, temperature=1.0)
    assert [r.tokens for r in results] == [r.tokens for r in expected]
    check_log_probs(make_params(), requests, results, 1.0)
    compiled = spread.counters.compilations
    spread.generate([r._replace(key=r.key + 1) for r in requests], temperature=1.0)
    assert spread.counters.compilations == compiled


@pytest.mark.parametrize(
    ("requests", "match"),
    [
        ([request(8, [1])], r"expected a slot in 0 \.\.\. 7, got 8"),
        ([request(1, [1]), request(1, [2])], "expected one request a slot"),
        ([request(0, [])], "expected a context of 1 to 64 tokens, got 0"),
        ([request(0, [1] * 65)], "or raise max_length"),
    ],
)
def test_requests_that_do_not_fit_are_refused(engine, requests, match):
    with pytest.raises(ValueError, match=match):
        engine.generate(requests, temperature=1.0)


def test_without_parameters_it_says_so():
    with pytest.raises(ValueError, match="call set_params"):
        make_engine().generate([request(0, [1])], temperature=1.0)
    with pytest.raises(ValueError, match="prefill_buckets: expected positive sizes"):
        make_engine(prefill_buckets=())


def test_no_requests_give_no_results(engine):
    assert engine.generate([], temperature=1.0) == []
