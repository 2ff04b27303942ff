"""Requests that enter while others are under way."""

import jax
import numpy as np
import pytest

from tests.rollout.engine_case import (
    END,
    LENGTH,
    SLOTS,
    check_log_probs,
    greedy_without_cache,
    make_engine,
    make_params,
    prompts,
    request,
)

LIMITS = (2, 13, 5, 9, 1, 16, 7, 3, 11, 4, 8, 6)


def drive(engine, todo, temperature, slots=SLOTS):
    """Results by place in ``todo``, a slot given on as soon as it is free, and the
    sizes of what came together. ``todo``: (tokens, turn, limit)."""
    waiting, made, sizes, asked = list(range(len(todo))), {}, [], {}
    free = list(range(slots))
    while waiting or asked:
        new = []
        while waiting and free:
            at, slot = waiting.pop(0), free.pop(0)
            tokens, turn, limit = todo[at]
            # The key names the place, so that a slot is no part of it.
            one = request(slot, tokens, turn, limit)
            asked[slot] = at
            new.append(one._replace(key=np.array([turn, at], np.uint32)))
        engine.submit(new, temperature=temperature)
        ended = engine.wait()
        sizes.append(len(ended))
        for one, got in ended:
            made[asked.pop(one.slot)] = one, got
            free.append(one.slot)
    return [made[at] for at in range(len(todo))], sizes


def ragged(count=24):
    lengths = np.random.default_rng(4).integers(1, 40, count).tolist()
    return [
        (tokens, 0, LIMITS[at % len(LIMITS)])
        for at, tokens in enumerate(prompts(lengths, seed=4))
    ]


def test_entering_late_equals_running_alone(engine):
    made, sizes = drive(engine, ragged(), 1.0)
    assert len(sizes) > 4
    assert max(sizes) < SLOTS, "all ran in lockstep"
    check_log_probs(make_params(), *zip(*made), 1.0)
    assert [len(got.tokens) for _, got in made] != [1] * len(made)
    for asked, got in made[::5]:
        engine.set_params(make_params())
        [alone] = engine.generate([asked._replace(slot=3)], temperature=1.0)
        assert alone.tokens == got.tokens
        np.testing.assert_allclose(alone.log_probs, got.log_probs, atol=1e-5)


def test_what_comes_together_is_the_same_every_time(engine):
    made, sizes = drive(engine, ragged(), 0.9)
    engine.set_params(make_params())
    again, same = drive(engine, ragged(), 0.9)
    assert sizes == same
    for (_, one), (_, other) in zip(made, again):
        assert one.tokens == other.tokens
        np.testing.assert_array_equal(one.log_probs, other.log_probs)  # bit for bit


def test_fewer_slots_change_no_text(engine):
    made, _ = drive(engine, ragged(), 1.0)
    engine.set_params(make_params())
    few, sizes = drive(engine, ragged(), 1.0, slots=3)
    assert len(sizes) > 8
    assert [got.tokens for _, got in few] == [got.tokens for _, got in made]


def test_turns_grow_rebuild_and_end_while_others_go_on(engine):
    """Greedy turns of eight episodes, each at its own pace; some contexts are rebuilt
    (a new segment: the beginning stays, the middle is dropped)."""
    params, system = make_params(), prompts([9], seed=7)[0]
    contexts = [[*system, *more] for more in prompts([2, 9, 4, 1, 7, 3, 8, 5], seed=8)]
    turns, seen = [0] * SLOTS, []

    def ask(slots):
        asked = [
            request(i, contexts[i], turns[i], LIMITS[(3 * i + turns[i]) % 12])
            for i in slots
        ]
        engine.submit(asked, temperature=0.0)

    ask(range(SLOTS))
    while ended := engine.wait():
        going = []
        for one, got in ended:
            slot, seen = one.slot, [*seen, (one, got)]
            turns[slot] += 1
            more = [*prompts([slot % 3], seed=slot)[0], END, slot]
            if (slot + turns[slot]) % 3 == 0:
                contexts[slot] = [*system, slot, *got.tokens, *more]
            else:
                contexts[slot] = [*contexts[slot], *got.tokens, *more]
            if turns[slot] < 4 and len(contexts[slot]) < LENGTH - 16:
                going.append(slot)
        ask(going)
    assert len(seen) > 3 * SLOTS - 4
    check_log_probs(params, *zip(*seen), 1.0)
    for one, got in seen[::3]:
        free = greedy_without_cache(params, one.tokens, len(got.tokens))
        assert got.tokens == free


def test_members_of_a_group_that_enter_late_compute_nothing_again(engine):
    [context] = prompts([30], seed=3)
    made, _ = drive(engine, [(context, 0, 9)] * 12, 1.0, slots=4)
    check_log_probs(make_params(), *zip(*made), 1.0)
    assert len({tuple(got.tokens) for _, got in made}) > 9, "own keys, own texts"
    before = engine.counters.tokens_prefilled
    engine.generate([request(7, context)], temperature=1.0)
    # A slot that held nothing: a copy, and the last token.
    assert engine.counters.tokens_prefilled - before == 1


def test_little_more_is_computed_than_the_distinct_tokens():
    engine = make_engine(row_buckets=(1, 4), prefill_buckets=(4, 16, 32))
    engine.set_params(make_params())
    system, (one, two) = prompts([20], seed=5)[0], prompts([6, 9], seed=6)
    contexts = [[*system, *(one if i < 4 else two)] for i in range(SLOTS)]
    sampled, shown = 0, []
    for turn in range(3):
        requests = [request(i, contexts[i], turn, 4) for i in range(SLOTS)]
        results = engine.generate(requests, temperature=1.0)
        shown += contexts
        sampled += sum(len(got.tokens) for got in results)
        check_log_probs(make_params(), requests, results, 1.0)
        more = prompts([3 + i % 4 for i in range(SLOTS)], seed=turn)
        contexts = [
            [*c, *got.tokens, *new] for c, got, new in zip(contexts, results, more)
        ]
    distinct = {tuple(c[:n]) for c in shown for n in range(1, len(c) + 1)}
    fed = sum(map(len, shown))
    assert engine.counters.tokens_fed == fed > 2 * len(distinct)
    assert engine.counters.tokens_generated == sampled
    assert engine.counters.tokens_prefilled <= 1.3 * len(distinct)


@pytest.fixture(scope="module")
def apart():
    """Slots in two lanes, on a mesh of one device as in training."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    made = make_engine(
        lanes=2, span_buckets=(), prefill_buckets=(16,), row_sharding=rows
    )
    made.set_params(on_one_device())
    made.warm_up()
    return made


def on_one_device(seed=0):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.device_put(make_params(seed), whole)


def test_lanes_give_the_same_texts_and_compile_nothing_of_their_own(engine, apart):
    made, _ = drive(engine, ragged(), 1.0)
    apart.set_params(on_one_device())
    before = apart.counters.compilations
    same, sizes = drive(apart, ragged(), 1.0)
    assert max(sizes) < SLOTS
    assert [got.tokens for _, got in same] == [got.tokens for _, got in made]
    check_log_probs(make_params(), *zip(*same[::3]), 1.0)
    # Slots 3 and 4 lie in different lanes: each computes the context for itself.
    [context] = prompts([12], seed=9)
    computed = apart.counters.tokens_prefilled
    apart.generate([request(i, context) for i in (2, 3, 4, 5)], temperature=1.0)
    assert apart.counters.tokens_prefilled - computed == 2 * 11 + 4
    assert apart.counters.compilations == before
    apart.set_params(on_one_device(1))
    asked = [request(i, context) for i in (0, 7)]
    results = apart.generate(asked, temperature=1.0)
    check_log_probs(make_params(1), asked, results, 1.0)


def test_lanes_drop_what_was_cancelled(engine, apart):
    params = on_one_device()
    apart.set_params(params)
    contexts = prompts([9] * SLOTS, seed=3)
    asked = [
        request(i, tokens, max_new_tokens=2 + 4 * (i % 3))
        for i, tokens in enumerate(contexts)
    ]
    apart.submit(asked, temperature=1.0)
    assert 0 < len(apart.wait()) < SLOTS
    apart.cancel()
    assert apart.wait() == []
    expected = engine.generate(asked, temperature=1.0)
    made = apart.generate(asked, temperature=1.0)
    assert [got.tokens for got in made] == [got.tokens for got in expected]
    decoding = apart._decode_params
    apart.set_params(params)
    assert apart._decode_params is decoding, "the same arrays were taken apart again"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"lanes": 3, "row_buckets": None},
            "lanes: expected a divisor of the 8 slots, .* got 3",
        ),
        ({"lanes": 2, "row_buckets": None}, "and 1 where rows are spread .* got 2"),
        ({}, r"row_buckets: expected all slots or none .* got \(2,\)"),
    ],
)
def test_rows_over_devices_are_neither_cut_nor_in_lanes(options, match):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    with pytest.raises(ValueError, match=match):
        make_engine(**options, row_sharding=rows)


def test_nothing_compiles_however_requests_come(engine):
    before = engine.counters.compilations
    for slots in (1, 2, 5):
        drive(engine, ragged(9), 0.9, slots=slots)
    assert engine.counters.compilations == before


def test_new_parameters_wait_for_the_requests_under_way(engine):
    [context] = prompts([6])
    engine.submit([request(0, context)], temperature=1.0)
    with pytest.raises(RuntimeError, match="1 requests under way"):
        engine.set_params(make_params(1))
    with pytest.raises(RuntimeError, match="generate while other requests"):
        engine.generate([request(1, context)], temperature=1.0)
    [(_, got)] = engine.wait()
    check_log_probs(make_params(), [request(0, context)], [got], 1.0)
    engine.set_params(make_params(1))
    assert engine.wait() == []


def test_what_is_cancelled_leaves_nothing_wrong_behind(engine):
    contexts = prompts([20, 11, 5])
    asked = [request(i, tokens, 0, 16) for i, tokens in enumerate(contexts)]
    engine.submit([asked[0], asked[1]._replace(max_new_tokens=1)], temperature=1.0)
    engine.submit([asked[2]._replace(max_new_tokens=2)], temperature=1.0)
    assert [one.slot for one, _ in engine.wait()] == [1, 2]
    engine.submit([asked[1]], temperature=1.0)
    engine.cancel()
    assert engine.wait() == []
    for context in (contexts[0], [*contexts[0][:12], 1, 2, 3, 4]):
        asked = [request(0, context, 1), request(1, contexts[1], 1)]
        results = engine.generate(asked, temperature=0.7)
        check_log_probs(make_params(), asked, results, 0.7)


def test_requests_that_cannot_join_are_refused_and_none_is_taken(engine):
    contexts = prompts([6, 7])
    engine.submit([request(0, contexts[0])], temperature=1.0)
    fine = request(1, contexts[1])
    with pytest.raises(ValueError, match=r"no request under way, got \[0\]"):
        engine.submit([fine, request(0, contexts[1])], temperature=1.0)
    with pytest.raises(ValueError, match="the temperature, top_p and top_k"):
        engine.submit([fine], temperature=0.5)
    engine.submit([fine], temperature=1.0)
    assert len(engine.wait()) == 2
    engine.submit([fine], temperature=0.5)
    assert len(engine.wait()) == 1
