"""The doctor as a user calls it."""

import json
import os
import subprocess
import sys

import pytest

from tests.doctor.doctor_case import healthy, write
from tests.experiments.process import ROOT

COMMAND = [sys.executable, "-m", "experiments.doctor"]


def doctor(*words):
    command = [*COMMAND, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def rows(**changes):
    columns = healthy(40)
    return [
        {"step": step}
        | {name: values[step] for name, values in columns.items()}
        | changes
        for step in range(40)
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    write(place / "well", rows())
    return place, write(place / "sick", rows(success=0.0, no_outcome_groups=1.0))


def test_a_sick_run_as_json(runs):
    place, sick = runs
    code, out, err = doctor(
        f"--workdir={sick}", f"--against={place / 'well'}", "--json", "--strict"
    )
    assert (code, err) == (1, "")
    report = json.loads(out)
    assert report["steps"] == 40
    assert report["last_step"] == 39
    assert report["verdict"] == "problems"
    names = [finding["name"] for finding in report["findings"]]
    assert names[:2] == ["runs_differ", "tasks_too_hard"]
    hard = report["findings"][1]
    assert hard["severity"] == "problem"
    assert "sampling.group_size" in hard["fields"]
    assert hard["seen"][0] == {
        "what": "success",
        "value": 0.0,
        "first_step": 35,
        "last_step": 39,
        "remark": "",
    }


def test_a_healthy_run_on_screen(runs):
    code, out, err = doctor(f"--workdir={runs[0] / 'well'}", "--strict")
    assert (code, err) == (0, "")
    assert out.startswith("No problems found in 40 steps.")
    code, out, err = doctor(f"--workdir={runs[0] / 'well'}", "--json")
    assert json.loads(out)["verdict"] == "no_problems"


def test_what_is_no_run_is_one_line(tmp_path):
    code, out, err = doctor(f"--workdir={tmp_path}")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "expected the directory of a run" in err


def test_the_option_that_names_no_run_is_named(runs, tmp_path):
    code, out, err = doctor(f"--workdir={runs[0] / 'well'}", f"--against={tmp_path}")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: --against={tmp_path}: expected the directory")


@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_output_that_cannot_be_written_is_one_line(runs, unbuffered):
    with open(__file__) as readable:  # nothing can be written to it
        done = subprocess.run(
            [*COMMAND, f"--workdir={runs[1]}", "--json", "--strict"],
            cwd=ROOT,
            stdout=readable,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 3, "1 would say that something was found"
    assert done.stderr.startswith("error: the output cannot be written: ")
    assert done.stderr.count("\n") == 1
