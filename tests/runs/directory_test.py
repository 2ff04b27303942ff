"""Reading a run's directory in whatever state it is."""

import json
import math

import numpy as np
import pytest

from mempo_jax.doctor import differences, examine
from mempo_jax.runs import read_config, read_metrics, read_object, read_run
from mempo_jax.settings import ConfigError
from tests.doctor.doctor_case import by_name, write


def rows(number, **more):
    return [
        {"step": step, "success": 0.5 + step / 100} | more for step in range(number)
    ]


def test_columns_and_the_config(tmp_path):
    settings = {"train": {"steps": 4}, "seed": 3}
    got = read_run(write(tmp_path, rows(4), settings))
    assert got.table.steps.tolist() == [0, 1, 2, 3]
    assert got.table.column("success").tolist() == [0.5, 0.51, 0.52, 0.53]
    assert np.isnan(got.table.column("unheard of")).all()
    assert got.number("train.steps") == 4
    assert got.field("train.nothing") is None
    assert got.idle_s < 60


def test_the_last_machine(tmp_path):
    place = write(tmp_path, rows(1))
    assert read_run(place).machine == {}
    machines = {"machines": [{"jax": "1"}, {"jax": "2"}]}
    (place / "machines.json").write_text(json.dumps(machines))
    assert read_run(place).machine == {"jax": "2"}


def test_columns_that_begin_late_or_end_early_are_filled_up(tmp_path):
    some = rows(4)
    del some[0]["success"], some[3]["success"]
    some[1]["kl"] = 0.25
    some[2]["kl"] = None
    got = read_run(write(tmp_path, some)).table
    np.testing.assert_equal(got.column("success"), [np.nan, 0.51, 0.52, np.nan])
    np.testing.assert_equal(got.column("kl"), [np.nan, 0.25, np.nan, np.nan])


def test_a_last_line_that_is_half_written_is_no_damage(tmp_path):
    place = write(tmp_path, rows(3), end='\n{"step": 3, "succ')
    got = read_run(place)
    assert len(got.table) == 3
    assert got.cut_off
    assert got.broken_lines == 0
    assert "damaged_record" not in [f.name for f in examine(got)]


def test_what_cannot_be_read_is_counted_and_the_rest_is_read(tmp_path):
    place = write(tmp_path, rows(3))
    lines = (place / "metrics.jsonl").read_text().splitlines()
    lines[1:1] = ["{oops", "[1, 2]", '{"success": 1}', "", '{"step": "7"}']
    (place / "metrics.jsonl").write_bytes("\n".join(lines).encode() + b"\n\xff\xfe\n")
    got = read_run(place)
    assert len(got.table) == 3
    assert got.broken_lines == 5
    assert "damaged_record" in [f.name for f in examine(got)]


def test_values_that_are_no_finite_numbers(tmp_path):
    wild = rows(6, kl=math.nan, loss=math.inf, note="text", deep={"a": 1})
    wild[2]["huge"] = 10**400
    got = read_run(write(tmp_path, wild))
    assert "NaN" in (tmp_path / "metrics.jsonl").read_text()
    assert len(got.table.measured("kl")) == 0
    assert len(got.table.measured("loss")) == 0
    assert not {"note", "deep"} & got.table.columns.keys()
    examine(got)


def test_the_last_row_of_a_step_counts(tmp_path):
    twice = [*rows(5), {"step": 2, "success": 0.9}, {"step": 3, "success": 0.8}]
    got = read_run(write(tmp_path, twice))
    assert got.table.steps.tolist() == [0, 1, 2, 3, 4]
    assert got.table.column("success")[2:4].tolist() == [0.9, 0.8]
    assert got.repeated_steps == 2


def test_a_run_before_its_first_step(tmp_path):
    place = write(tmp_path, [], {"train": {"steps": 4}}, end="")
    assert len(read_run(place).table) == 0
    (place / "metrics.jsonl").unlink()
    [finding] = examine(read_run(place))
    assert finding.name == "no_steps"
    assert "cold start had not ended" in finding.why


BESIDE = (
    *("config.json", "summary.json", "evaluation_cold_start.json", "machines.json"),
)


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("text", ['{"a', "[1]", '"a"', "", "[" * 100_000, "\xff"])
def test_a_damaged_file_is_named_and_the_rest_is_read(tmp_path, name, text):
    whole = {name: {} for name in BESIDE} | {"config.json": {"seed": 7}}
    place = write(tmp_path, rows(5))
    for each, value in whole.items():
        (place / each).write_text(json.dumps(value))
    (place / name).write_text(text, encoding="latin-1")
    got = read_run(place)
    assert len(got.table) == 5
    assert got.field("seed") == (None if name == "config.json" else 7)
    assert list(got.unread) == [name]
    [finding] = [each for each in examine(got) if each.name == "damaged_record"]
    assert finding.severity == "note"
    assert f"{name} cannot be read: expected a JSON object" in finding.what
    [other, _] = differences(read_run(write(tmp_path / "whole", rows(5))), got)
    assert (other.name, name in other.what) == ("other_damaged", True)


def test_a_config_that_is_nested_too_deeply(tmp_path):
    place = write(tmp_path, rows(1))
    deep = '{"a":' * 2000 + "1" + "}" * 2000
    (place / "config.json").write_text(deep)
    assert list(read_run(place).unread) == ["config.json"]


def test_damaged_lines_and_files_are_named_together(tmp_path):
    place = write(tmp_path, [*rows(3), "[" * 100_000, {"step": 3}])
    lines = (place / "metrics.jsonl").read_text().replace('"[', "[").replace('["', "[")
    (place / "metrics.jsonl").write_text(lines)
    (place / "summary.json").write_text("[1, 2]")
    finding = by_name(read_run(place))["damaged_record"]
    assert finding.severity == "warning"
    assert "1 lines that cannot be read." in finding.what
    assert finding.what.endswith("expected a JSON object, got [1, 2].")


def test_a_run_whose_summary_is_damaged_has_ended(tmp_path):
    place = write(tmp_path, rows(4), {"train": {"steps": 4}})
    assert "unfinished" in [each.name for each in examine(read_run(place))]
    (place / "summary.json").write_text('{"steps": 4, "tra')
    assert "unfinished" not in [each.name for each in examine(read_run(place))]


def test_no_run_at_all(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match=r"--workdir=.*directory of a run"):
            read_run(place)


def test_many_rows(tmp_path):
    number = 20_000
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for step in range(number):
            file.write(json.dumps({"step": step, "success": 0.5, "kl": 0.1}) + "\n")
    got = read_run(tmp_path)
    assert len(got.table) == number
    assert len(got.table.late("kl").values) == 100, "a window does not grow for ever"
    examine(got)


def test_single_files_can_be_read_alone(tmp_path):
    assert read_config(tmp_path) == {}
    assert read_object(tmp_path / "summary.json") is None
    assert len(read_metrics(tmp_path / "metrics.jsonl").table) == 0
    place = write(tmp_path, [*rows(2), {"step": 1}], {"train": {"steps": 2}})
    assert read_config(place) == {"train.steps": 2}
    got = read_metrics(place / "metrics.jsonl")
    assert (len(got.table), got.repeated_steps, got.broken_lines) == (2, 1, 0)
    (place / "summary.json").write_text('{"steps": 2')
    unread = {}
    assert read_object(place / "summary.json", unread) is None
    assert list(unread) == ["summary.json"]


def test_a_last_row_without_a_step_counts_as_cut_off_only_without_its_end(tmp_path):
    for end, expected in (("\n", (1, False)), ("", (0, True))):
        place = write(tmp_path, [*rows(2), {"success": 1}], end=end)
        got = read_metrics(place / "metrics.jsonl")
        assert (got.broken_lines, got.cut_off) == expected
