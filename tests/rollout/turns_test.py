from typing import NamedTuple

import numpy as np
import pytest

from mempo_jax.rollout.sampler import SampledTurn

END = 0


class Letters:
    """Id i is one piece of text; id 0 ends a turn."""

    pieces = ("<end>", "a", "</", "act", ">", "</act>", ">x", "</ans>")
    stop_ids = (END,)

    def decode(self, ids):
        return "".join(self.pieces[i] for i in ids)

    def offsets(self, ids):
        ends = np.cumsum([len(self.pieces[i]) for i in ids]).tolist()
        return list(zip([0, *ends], ends))


class Asked(NamedTuple):
    slot: int = 0
    tokens: tuple = (1,)
    key: tuple = (0, 0)
    max_new_tokens: int = 9


def finished(*chunks):
    turn = SampledTurn(Asked(), Letters(), ("</act>", "</ans>"), 9)
    for chunk in chunks:
        turn.add(list(chunk), np.arange(len(chunk), dtype=np.float32))
    return turn.result()


@pytest.mark.parametrize(
    ("chunks", "tokens", "finish"),
    [
        ([[1, 1, END]], [1, 1, END], "stop"),
        ([[1, 5, 1]], [1, 5], "tag"),
        ([[1, 2], [3, 4, 1]], [1, 2, 3, 4], "tag"),  # split over tokens and chunks
        ([[2, 3, 6, 1]], [2, 3, 6], "tag"),  # its end glued to other text
        ([[7, 5, END]], [7], "tag"),  # the first of several
        ([[1, 2, 3]], [1, 2, 3], "length"),
        ([[]], [], "length"),
    ],
)
def test_where_a_turn_ends(chunks, tokens, finish):
    result = finished(*chunks)
    assert (result.tokens, result.finish) == (tokens, finish)
    assert len(result.log_probs) == len(tokens)
    assert result.text == Letters().decode(tokens)


def test_an_ended_turn_is_closed_and_a_full_one_too():
    turn = SampledTurn(Asked(), Letters(), ("</act>",), 3)
    turn.add([1, 1], np.zeros(2, np.float32))
    assert (turn.open, turn.left, turn.end, turn.last) == (True, 1, 3, 1)
    full = SampledTurn(Asked(), Letters(), ("</act>",), 2)
    full.add([1, 1], np.zeros(2, np.float32))
    assert not full.open
    turn.add([5], np.zeros(1, np.float32))
    assert not turn.open
    roomy = SampledTurn(Asked(), Letters(), ("</act>",), 9)
    roomy.add([1, 5], np.zeros(2, np.float32))
    assert not roomy.open
    assert roomy.left == 7
