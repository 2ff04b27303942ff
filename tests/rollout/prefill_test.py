"""Plans are played on lists: what each slot then holds must be its context."""

import dataclasses

import numpy as np
import pytest

from mempo_jax.rollout.prefill import CALL_COST, EngineShapes, plan, price
from mempo_jax.rollout.sampler import HeldContexts, Request

SHAPES = EngineShapes(
    8, 64, rows=(1, 8), widths=(2, 8), packed=(), spans=(64,), chunk=4
)
CHEAP = EngineShapes(
    8, 64, rows=(1, 8), widths=(4, 64), packed=(), spans=(8, 64), chunk=4
)
FLAT = dataclasses.replace(CHEAP, packed=(16, 32, 64))
SYSTEM = list(range(100, 120))


def request(slot, tokens):
    return Request(slot, tokens, np.zeros(2, np.uint32), 1)


def play(requests, held=None, shapes=SHAPES):
    """Stages, and the number of ids fed; checks what the slots hold at the end."""
    contexts = HeldContexts(shapes.slots)
    for slot, ids in (held or {}).items():
        contexts.grow(slot, ids, [0])
    cache = [list(ids) for ids in contexts.ids()]
    stages = plan(requests, contexts.reuse(requests), contexts.ids(), shapes)
    fed = 0
    for stage in stages:
        before = [list(ids) for ids in cache]
        for slot, source in stage.copies.items():
            cache[slot] = before[source][: stage.end]
        for _, call in shapes.calls(stage.rows):
            for row in call:
                cache[row.slot][row.start :] = row.tokens
                fed += len(row.tokens)
    for asked in requests:
        length = len(asked.tokens) - 1
        assert cache[asked.slot][:length] == list(asked.tokens)[:-1]
    return stages, fed


def test_contexts_are_fed_without_their_last_id():
    requests = [request(1, [1, 2, 3, 4]), request(3, [7, 8]), request(0, [9])]
    [stage], fed = play(requests)
    assert (fed, stage.copies) == (4, {})
    assert [row.slot for row in stage.rows] == [1, 3]


def test_equal_contexts_are_fed_once_into_the_slot_that_holds_most():
    asked = [request(slot, [1, 2, 3, 4, 5]) for slot in (0, 2, 3)]
    [feed, copy], _ = play(asked, {2: [1, 2, 3]})
    assert [tuple(row) for row in feed.rows] == [(2, 3, [4])]
    assert (copy.copies, copy.end, copy.rows) == ({0: 2, 3: 2}, 5, [])


def test_a_slot_that_holds_all_copies_nothing():
    held = {slot: [1, 2, 3] for slot in (0, 1)}
    stages, _ = play([request(slot, [1, 2, 3, 5]) for slot in (0, 1)], held)
    assert stages == []


def tails(count, length=3):
    return [[10 * slot + i for i in range(length)] for slot in range(count)]


def test_a_common_beginning_is_fed_once_where_that_is_cheap():
    requests = [request(i, [*SYSTEM, *tail]) for i, tail in enumerate(tails(8))]
    stages, fed = play(requests, shapes=CHEAP)
    assert fed == 22 + 7 * 2
    assert [len(stage.copies) for stage in stages] == [0, 7]
    # One call of one row and one of eight short ones, against eight long ones.
    assert price(stages, CHEAP) < 8 * 64 / 2
    short = [request(i, [*SYSTEM[:5], *tail]) for i, tail in enumerate(tails(8, 20))]
    _, fed = play(short, shapes=CHEAP)
    assert fed == 8 * 24, "too little is shared"


def test_a_flat_call_costs_its_tokens_and_something_of_its_own():
    requests = [request(i, [i, 1, 2, 3]) for i in range(5)]
    stages, fed = play(requests, shapes=FLAT)
    assert (fed, price(stages, FLAT)) == (15, 16 + CALL_COST)


def test_groups_with_a_common_beginning_share_it_and_their_contexts():
    contexts = [[*SYSTEM, *tail] for tail in tails(4)]
    requests = [request(i, contexts[i // 2]) for i in range(8)]
    four = EngineShapes(
        8, 64, rows=(1, 4, 8), widths=(4, 64), packed=(), spans=(8, 64), chunk=4
    )
    stages, fed = play(requests, shapes=four)
    assert fed == 22 + 3 * 2
    assert [len(stage.copies) for stage in stages] == [0, 4, 3]


@pytest.mark.parametrize("own", [{}, {5: [1, 2]}])
def test_a_late_member_takes_what_another_slot_holds(own):
    context = [*SYSTEM, 1, 2, 3]
    stages, fed = play(
        [request(5, context)], {2: [*SYSTEM, 9], 3: [*context, 4], **own}, CHEAP
    )
    assert (fed, [stage.copies for stage in stages]) == (0, [{5: 3}])
    # A source that is itself asked for something else is read before it changes.
    requests = [request(5, context), request(3, [7, 8, 9])]
    stages, fed = play(requests, {3: [*context, 4]}, CHEAP)
    assert (fed, stages[0].copies) == (2, {5: 3})


@pytest.mark.parametrize(("shapes", "least"), [(CHEAP, 30), (FLAT, 5)])
def test_random_plans_bring_every_slot_to_its_context(shapes, least):
    rng = np.random.default_rng(0)
    shared = 0
    for _ in range(300):
        held = {
            slot: rng.integers(0, 2, rng.integers(1, 30)).tolist()
            for slot in rng.choice(8, rng.integers(0, 8), replace=False).tolist()
        }
        slots = rng.choice(8, rng.integers(1, 9), replace=False).tolist()
        begin = rng.integers(0, 2, rng.integers(0, 30)).tolist()
        requests = [
            request(slot, begin + rng.integers(0, 3, rng.integers(1, 6)).tolist())
            for slot in slots
        ]
        stages, _ = play(requests, held, shapes)
        shared += len(stages) > 1
    assert shared > least
