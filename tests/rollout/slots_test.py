import numpy as np
import pytest

from mempo_jax.rollout.sampler import (
    HeldContexts,
    NewContext,
    Request,
    buckets,
    common,
    fit,
    pieces,
)


def request(slot, tokens):
    return Request(slot, tokens, np.zeros(2, np.uint32), 1)


def test_rows_are_cut_into_calls_from_where_they_start():
    rows = [NewContext(1, 0, [1, 2, 3, 4, 5]), NewContext(3, 4, [7])]
    assert pieces(rows, 3) == [
        [NewContext(1, 0, [1, 2, 3]), NewContext(3, 4, [7])],
        [NewContext(1, 3, [4, 5])],
    ]
    assert pieces([], 3) == []


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ([1, 2, 3, 4, 9, 9], 4),
        ([1, 2, 3, 4, 5], 4),  # 5 was sampled and is not in the cache
        ([1, 2, 3], 2),  # shorter than what is held; its last id is always fed
        ([1, 7, 3, 4], 1),
        ([8], 0),
    ],
)
def test_what_a_slot_holds_of_a_context(context, expected):
    held = HeldContexts(1)
    start = [request(0, [1, 2])]
    assert held.reuse(start) == {0: 0}
    held.feed(start)
    held.grow(0, [1, 2], [3, 4, 5])
    assert held.reuse([request(0, context)]) == {0: expected}


def test_a_failed_call_leaves_only_what_was_reused():
    held = HeldContexts(1)
    held.grow(0, [1, 2, 3], [4])
    held.trim(held.reuse([request(0, [1, 9, 9, 9])]))
    assert held.reuse([request(0, [1, 2, 3, 4])]) == {0: 1}


def test_common_beginnings():
    assert common([1, 2, 3], [1, 2, 4]) == 2
    assert common([1, 2], (1, 2, 4)) == 2
    assert common([], [1]) == 0


def test_sizes():
    assert buckets("x", (32, 8, 100), 64) == (8, 32, 64)
    assert [fit((8, 32), needed) for needed in (1, 8, 9, 40)] == [8, 8, 32, 32]
    with pytest.raises(ValueError, match="x: expected positive sizes"):
        buckets("x", (0, 4), 8)
