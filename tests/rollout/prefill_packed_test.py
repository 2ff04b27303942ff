import numpy as np
import pytest

from mempo_jax.models.attention import PIECE
from mempo_jax.rollout.prefill import LARGEST, SMALLEST, cut_calls, pack_rows, sizes
from mempo_jax.rollout.sampler import NewContext

SIZES = (64, 128, 256, 512, 1024)


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (10**6, SIZES),
        (LARGEST, SIZES),
        (300, (75, 150, 300)),
        (SMALLEST, (SMALLEST,)),
        (5, (5,)),
    ],
)
def test_sizes_are_halves_of_the_largest(most, expected):
    assert sizes(most) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, []),
        (1, [64]),
        (64, [64]),
        (65, [128]),  # a second call costs more than what is computed in vain
        (300, [256, 64]),
        (603, [512, 128]),
        (900, [1024]),
        (2500, [1024, 1024, 512]),
    ],
)
def test_calls_are_few_and_hold_all(count, expected):
    rows = [NewContext(3, 10, range(count))] if count else []
    assert [size for size, _ in cut_calls(rows, SIZES)] == expected


def test_long_contexts_in_small_calls_are_many_calls():
    calls = cut_calls([NewContext(0, 0, [1] * 16_001)], (16,))
    assert [size for size, _ in calls] == [16] * 1_001


def test_rows_are_cut_where_a_call_is_full():
    rng = np.random.default_rng(0)
    for _ in range(100):
        rows = [
            NewContext(slot, int(rng.integers(50)), rng.integers(0, 9, length).tolist())
            for slot, length in enumerate(rng.integers(1, 200, rng.integers(1, 16)))
        ]
        held = {row.slot: [None] * row.start for row in rows}
        for size, part in cut_calls(rows, SIZES):
            assert 0 < sum(len(row.tokens) for row in part) <= size
            for slot, start, tokens in part:
                assert len(held[slot]) == start, "what is before it has been fed"
                held[slot] += tokens
        for slot, start, tokens in rows:
            assert held[slot][start:] == tokens


def test_tokens_lie_one_slot_after_the_other():
    rows = [
        NewContext(2, 5, [11, 12, 13]),
        NewContext(0, 0, list(range(20, 20 + PIECE + 2))),
    ]
    count = 3 + PIECE + 2
    packed = pack_rows(rows, 64, slots=4, length=100, spans=(8, 40, 100))
    assert packed.tokens[:4].tolist() == [11, 12, 13, 20]
    assert packed.slots[:count].tolist() == [2] * 3 + [0] * (PIECE + 2)
    assert packed.positions[:3].tolist() == [5, 6, 7]
    assert packed.positions[3:count].tolist() == list(range(PIECE + 2))
    assert (packed.positions[count:] == 100).all(), "padding is past the end"
    pieces = packed.pieces[: packed.count].tolist()
    assert pieces == [[0, 2, 5, 0], [3, 0, 0, 1], [3 + PIECE, 0, PIECE, 1]]


def test_there_is_room_for_a_piece_of_every_slot():
    rows = [NewContext(slot, 0, [1] * (PIECE + 1)) for slot in range(16)]
    packed = pack_rows(rows, 16 * (PIECE + 1), 16, 40, (40,))
    assert packed.count == 32
