"""A trajectory as a table: each turn, its ops, and the truth about its observations."""

import dataclasses
import re

from mempo_jax.envs import Question
from mempo_jax.memory import OpRecord
from mempo_jax.report.turns import HEADS, STAR, trajectory_html
from tests.report.reading import Read
from tests.rollout.assemble_test import note, recall, trajectory, write

LOG = [
    write(0, 0, text="one <two>"),
    write(1, 1, evicted=(0,)),
    note(1, "malformed", "error"),
    note(2, "skip"),
    recall(3, 1, 0),
    OpRecord(4, "answer", "noted", text="gold"),
]


def made(**changes):
    values = {
        "observations": ["one <two>", "three\nfour", "five", "six", "six again"],
        "actions": ["<mem_write> one</mem_write>", "b", "", "d", "e"],
        "turn_observation": [0, 1, 2, 3, 3],
        "turn_reward": [0.0, 0.0, 0.0, 0.0, 1.0],
        "useful": frozenset({0, 3}),
        "answers": ["gold"],
        "questions": (Question(3, "gold", frozenset({0})),),
    }
    return trajectory(LOG, **(values | changes))


def test_a_row_a_turn_with_its_ops():
    read = Read(trajectory_html(made(), caption="the first"))
    assert read.rows[0] == list(HEADS)
    assert read.rows[1] == [
        *("0", f"one <two> {STAR}", "<mem_write> one</mem_write>"),
        *("write", "new", "0", "0.00"),
    ]
    assert read.rows[2] == [
        *("1", "three\nfour", "b", "write\nmalformed"),
        *("new, evicts 0\nerror", "1\n–", "0.00"),
    ]
    assert [row[3] for row in read.rows[3:]] == ["skip", "recall", "answer"]
    assert read.rows[4][5] == "1, 0"
    assert read.rows[5][-1] == "1.00"
    assert read.text.startswith("the first")
    assert "answers: gold · gold answer: gold · reward: 0.50" in read.text


def test_a_star_where_an_observation_is_first_shown():
    read = Read(trajectory_html(made()))
    assert [STAR in row[1] for row in read.rows[1:]] == [
        True,
        False,
        False,
        True,
        False,
    ]


def test_what_was_said_is_coloured_by_a_number():
    said = [[("<mem", 2.0), (" one", -1.0)], [("b", 0.0)], [], [("d", 1.0)], []]
    page = trajectory_html(made(), said=said)
    read = Read(page)
    spans = {a["title"]: a["style"] for n, a in read.elements if "title" in a}
    assert list(spans) == ["+2.000", "-1.000", "+0.000", "+1.000"]
    assert "0.75)" in spans["+2.000"]
    assert "0.38)" in spans["-1.000"]
    assert read.rows[1][2] == "<mem one"
    assert read.rows[5][2] == ""


def test_colours_tell_sign_and_size():
    pieces = [("strong", 2.0), ("weak", 1.0), ("against", -2.0), ("none", 0.0)]
    page = trajectory_html(made(), said=[pieces])
    spans = re.findall(r"background:(rgba\([^)]*\))[^>]*>(\w+)</span>", page)
    shades = {name: colour for colour, name in spans}
    assert shades["strong"].endswith("0.75)")
    assert shades["weak"].endswith("0.38)")
    assert shades["strong"] != shades["against"]
    assert shades["none"].endswith("0.00)")
    assert "0.00)" in trajectory_html(made(), said=[[("a", 0.0)]]), "none beside it"


def test_a_trajectory_that_failed_or_stopped_early():
    short = made(actions=["a"], turn_reward=[], turn_observation=[0], reward=None)
    short = dataclasses.replace(short, failure="KeyError: <x>", answers=[])
    read = Read(trajectory_html(short))
    assert [row[2] for row in read.rows[1:]] == ["a", "", "", "", ""]
    assert {row[-1] for row in read.rows[1:]} == {""}
    assert "KeyError: <x> · answers: none" in read.text
