"""Records are read with patience: what is missing, cut off or of another type."""

import json

import pytest

from mempo_jax.report.run_files import Lines, number_of, read_object, read_record
from tests.report import run_case


def read(**changes):
    return read_record("step_000010", run_case.record(**changes))


def test_a_record_is_read():
    made = read(sample=3)
    assert (made.source, made.task, made.sample) == ("step_000010", "ledger/train/0", 3)
    assert made.outcome == "solved"
    assert made.total == 0.95
    assert made.weighted["malformed"] == -0.05
    assert [op.kind for op in made.log][:2] == ["write", "write"]
    assert made.log[3].evicted == (2,)
    assert made.turns[4].reward == 1.0
    assert made.turns[0].runs == ((0, (3, 5, 4)), (-1, (1,)))
    assert made.turns[1].runs is None
    assert made.credit.by_op[0] == (1.0, 0.5, 1.5)
    assert made.credit.by_turn[4] == (0.25, 0.25)


def test_an_older_record_has_no_credit():
    made = read(credit=False)
    assert made.credit is None
    assert all(turn.runs is None for turn in made.turns)


def test_what_deserves_memory_is_found_by_the_turn_that_showed_it():
    made = read(useful_observations=[1, 4])
    assert made.useful == {1}, "the recall of turn 3 shows observation 3 twice"
    assert read(useful_observations=[3]).useful == {3}


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"score": 0.0}, "unsolved"),
        ({"score": 0.5}, "partly"),
        ({"failure": "KeyError"}, "failed"),
        ({"rewards": {}}, "failed"),
    ],
)
def test_outcomes(changes, outcome):
    assert read(**changes).outcome == outcome


@pytest.mark.parametrize("name", sorted(run_case.record()))
@pytest.mark.parametrize("value", [None, 7, "text", [None, 1], {"a": [None]}, 1e999])
def test_a_field_of_another_type_breaks_nothing(name, value):
    made = run_case.record() | {name: value}
    record = read_record("step_1", made)
    assert (record is None) == (name == "turns" and not isinstance(value, list))


def test_what_does_not_fit_together_is_not_used():
    made = run_case.record()
    made["turns"][0]["tokens"] = [[0, [3, 5, 999]]]
    assert read_record("x", made).turns[0].runs is None
    made["turns"][0]["tokens"] = [[0, [-1, 14]]]
    assert read_record("x", made).turns[0].runs is None
    made["credit"]["ops"] = [[1.0, 2.0]]
    assert read_record("x", made).credit is None
    assert read_record("x", {"turns": "none"}) is None


def test_lines_that_are_no_objects_are_counted(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(
        b'{"step": 0}\n\n[1]\n\xff\xfe\n' + b"[" * 100_000 + b'\n{"step": 1}\n{"st'
    )
    lines = Lines(file)
    assert [row["step"] for row in lines] == [0, 1]
    assert lines.unreadable == 4


def test_numbers_that_are_not_finite_are_unknown():
    row = json.loads('{"a": NaN, "b": Infinity, "c": 3, "d": "x", "e": true}')
    assert [number_of(row.get(name)) for name in "abcdef"] == [
        *(None, None, 3.0, None, 1.0, None)
    ]
    assert number_of(10**400) is None


def test_a_file_that_is_no_object(tmp_path):
    assert read_object(tmp_path / "absent.json") is None
    (tmp_path / "half.json").write_text('{"a": ')
    assert read_object(tmp_path / "half.json") is None
