"""Contexts in a tokenizer of character pairs: its tokens straddle the blocks."""

import itertools

import pytest

from mempo_jax.memory import OpRecord
from mempo_jax.rollout.probes import ShownContext
from mempo_jax.rollout.segments import Segment


class Pairs:
    """Two characters a token, wherever they stand; one at the end."""

    def __init__(self):
        self.pieces = []

    def encode(self, text):
        parts = [text[i : i + 2] for i in range(0, len(text), 2)]
        for part in parts:
            if part not in self.pieces:
                self.pieces.append(part)
        return [self.pieces.index(part) for part in parts]

    def decode(self, ids):
        return "".join(self.pieces[i] for i in ids)

    def offsets(self, ids):
        ends = list(itertools.accumulate(len(self.pieces[i]) for i in ids))
        return list(zip([0, *ends], ends))


TEXTS = {0: "red", 1: "blue sky", 2: "red wine"}


def recall(turn, *ids):
    return OpRecord(turn, "recall", "recalled", ids)


def shown(text, *recalls, own=(0, 0), user="what"):
    tokenizer, segment = Pairs(), Segment()
    ids = tokenizer.encode(text)
    for place, (start, end) in enumerate(tokenizer.offsets(ids)):
        if start < own[1] and end > own[0]:
            segment.add_action([ids[place]], [0.0], 0)
        else:
            segment.add_observation([ids[place]], 0)
    made = ShownContext(tokenizer, segment, len(ids), user, recalls, TEXTS)
    return made, tokenizer


@pytest.mark.parametrize("before", ["", "x", "xy"])
@pytest.mark.parametrize("behind", ["", ".", "!?"])
def test_a_line_goes_and_the_text_around_it_stays(before, behind):
    text = f"{before}recalled\n0: red\n1: blue sky{behind}"
    made, tokenizer = shown(text, recall(0, 0, 1))
    for kept, block in (
        ((0, 1), "recalled\n0: red\n1: blue sky"),
        ((1,), "recalled\n1: blue sky"),
        ((0,), "recalled\n0: red"),
        ((), "recalled nothing"),
    ):
        assert tokenizer.decode(made.showing(kept)) == before + block + behind
    assert made.showing((0, 1)) == made.ids
    assert tokenizer.decode(made.showing_alone("\n7: x")) == (
        f"{before}recalled\n7: x{behind}"
    )


def test_the_longest_list_that_fits_is_the_one_shown():
    made, _ = shown("recalled\n0: red\n2: red wine", recall(0, 0), recall(1, 0, 2))
    assert [[e for e, _ in block.entries] for block in made.blocks] == [[0, 2]]


def test_a_run_of_recalls_may_be_listed_as_one_but_not_over_a_gap():
    text = "recalled\n0: red\n1: blue sky"
    made, _ = shown(text, recall(3, 0), recall(4, 1))
    assert [block.entries for block in made.blocks] == [((0, 0), (1, 1))]
    made, _ = shown(text, recall(3, 0), recall(5, 1))
    assert [block.entries for block in made.blocks] == [((0, 0),)]


def test_blocks_that_look_alike_are_of_the_last_recalls_in_their_order():
    same = [recall(turn, 0) for turn in (0, 2, 4)]
    made, _ = shown("recalled\n0: red|recalled\n0: red", *same)
    assert [block.entries for block in made.blocks] == [((0, 1),), ((0, 2),)]


def test_a_recall_that_found_nothing_is_a_place_for_a_memory():
    made, tokenizer = shown("what\nrecalled nothing.", recall(0))
    assert made.blocks[0].entries == ()
    assert made.showing(()) == made.showing_alone("") == made.ids
    alone = tokenizer.decode(made.showing_alone("\n1: blue sky"))
    assert alone == "what\nrecalled\n1: blue sky."


def test_without_a_recall_a_memory_stands_behind_the_observation():
    made, tokenizer = shown("ab what is.", user=" what is ")
    assert made.blocks == []
    assert made.showing_alone("") == made.ids
    alone = tokenizer.decode(made.showing_alone("\n0: red"))
    assert alone == "ab what is\nrecalled\n0: red."
    made, _ = shown("ab what is.", user="never written")
    assert made.showing_alone("\n0: red") is None


def test_blocks_that_the_policy_wrote_or_nobody_recalled_are_left_alone():
    text = "recalled\n0: red|recalled\n0: red"
    made, tokenizer = shown(text, recall(0, 0), own=(0, 5))
    assert [block.start for block in made.blocks] == [16]
    assert tokenizer.decode(made.showing(())) == "recalled\n0: red|recalled nothing"
    assert shown(text, recall(0, 1))[0].blocks == []
    assert shown("recalled\n9: unknown", recall(0, 9))[0].blocks == []
