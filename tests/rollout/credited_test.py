"""How the tokens of a turn fall to its ops, as a record keeps it."""

import json

import pytest

from mempo_jax.rollout.trajectory import TokenCredit, TokenRun, runs_of
from tests.rollout import tiny
from tests.rollout.assemble_test import trajectory

SCRIPT = ("<mem_write> one two</mem_write>", "<answer> gold</answer>")


@pytest.fixture(scope="module")
def played():
    collector = tiny.make_collector(tiny.ScriptedEngine(SCRIPT), turns=3)
    (made,) = collector.run(tiny.jobs(1), tiny.decoding())
    return made


def runs(played, tokenizer=tiny.TOKENIZER, max_ops=9):
    return runs_of(played.segments, played.actions, tokenizer, max_ops)


def test_runs_spell_the_action_and_name_their_ops(played):
    found = runs(played)
    assert len(found) == len(played.actions)
    assert [[op for op, _ in turn] for turn in found] == [[0, -1], [1]]
    for turn, action in zip(found, played.actions, strict=True):
        pieces, at = [], 0
        for _, lengths in turn:
            for length in lengths:
                pieces.append(action[at : at + length])
                at += length
        ids = tiny.TOKENIZER.encode(action, control=True)
        assert pieces == [tiny.TOKENIZER.decode([one]) for one in ids]


def test_ops_beyond_the_table_have_no_credit_of_their_own(played):
    assert [[op for op, _ in turn] for turn in runs(played, max_ops=1)] == [
        [0, -1],
        [-1],
    ]


def test_a_character_that_tokens_share_is_counted_once(played):
    class Shared:
        decode = tiny.TOKENIZER.decode

        def offsets(self, ids):  # each token begins within the last one's character
            return [(max(a - 1, 0), b) for a, b in tiny.TOKENIZER.offsets(ids)]

    assert runs(played, Shared()) == runs(played)


def test_tokens_that_do_not_spell_the_action_are_left_out(played):
    class Other(type(tiny.TOKENIZER)):
        def __init__(self):
            pass

        def decode(self, ids):
            return "something else"

    assert runs(played, Other()) == [None, None]


def test_a_record_is_rounded_and_reads_as_json():
    credit = TokenCredit(
        advantage=1 / 3,
        trained=True,
        by_op=[(1.0, 0.123456, -2 / 3)],
        by_turn=[(0.1, 1 / 30)] * 2,
        runs=[[TokenRun(0, (4, 2)), TokenRun(-1, (1,))], None],
    )
    made = trajectory([], observations=["a", "b"], actions=["abcdefg", "h"])
    plain = made.to_json()
    made.credit = credit
    read = json.loads(json.dumps(made.to_json()))
    assert read["turns"] == [
        {"observation": "a", "action": "abcdefg", "tokens": [[0, [4, 2]], [-1, [1]]]},
        {"observation": "b", "action": "h"},
    ]
    assert read.pop("credit") == {
        "trained": True,
        "advantage": 0.3333,
        "ops": [[1.0, 0.1235, -0.6667]],
        "turns": [[0.1, 0.0333], [0.1, 0.0333]],
    }
    assert read | {"turns": plain["turns"]} == json.loads(json.dumps(plain))
