import numpy as np
import pytest

from mempo_jax.rollout.slots import HeldContexts, Request, buckets, fit


def request(slot, tokens):
    return Request(slot, tokens, np.zeros(2, np.uint32), 1)


def drained(plan, width=3):
    rows = []
    while more := plan.next_rows((1, width)):
        rows.append([tuple(row) for row in more])
    return rows


def test_contexts_are_fed_in_pieces_without_their_last_id():
    held = HeldContexts(4)
    plan = held.plan(
        [request(1, [1, 2, 3, 4, 5, 6]), request(3, [7, 8]), request(0, [9])]
    )
    assert drained(plan) == [[(1, 0, [1, 2, 3]), (3, 0, [7])], [(1, 3, [4, 5])]]
    assert plan.copies == {}


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ([1, 2, 3, 4, 9, 9], [[(0, 4, [9])]]),  # 4 was sampled and is not in the cache
        ([1, 2, 3, 4, 5], []),
        ([1, 2, 3], []),  # shorter than what is held
        ([1, 7, 3, 4], [[(0, 1, [7, 3])]]),
        ([8], []),
    ],
)
def test_only_what_differs_is_fed(context, expected):
    held = HeldContexts(1)
    start = [request(0, [1, 2])]
    held.plan(start)
    held.feed(start)
    held.grow(0, [1, 2], [3, 4, 5])
    assert drained(held.plan([request(0, context)])) == expected


def test_equal_contexts_are_fed_once_into_the_slot_that_holds_most():
    held = HeldContexts(4)
    held.grow(2, [1, 2, 3], [0])
    plan = held.plan([request(slot, [1, 2, 3, 4, 5]) for slot in (0, 2, 3)])
    assert drained(plan) == [[(2, 3, [4])]]
    assert plan.copies == {0: 2, 3: 2}
    assert plan.longest_copy == 5


def test_a_slot_that_holds_all_copies_nothing():
    held = HeldContexts(2)
    for slot in (0, 1):
        held.grow(slot, [1, 2, 3], [4])
    plan = held.plan([request(slot, [1, 2, 3, 5]) for slot in (0, 1)])
    assert plan.copies == {}
    assert drained(plan) == []


def test_a_failed_call_leaves_only_what_was_reused():
    held = HeldContexts(1)
    held.grow(0, [1, 2, 3], [4])
    held.plan([request(0, [1, 9, 9, 9])])
    assert drained(held.plan([request(0, [1, 2, 3, 4])])) == [[(0, 1, [2, 3])]]


def test_sizes():
    assert buckets("x", (32, 8, 100), 64) == (8, 32, 64)
    assert [fit((8, 32), needed) for needed in (1, 8, 9, 40)] == [8, 8, 32, 32]
    with pytest.raises(ValueError, match="x: expected positive sizes"):
        buckets("x", (0, 4), 8)
