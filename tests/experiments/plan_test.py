"""The planner as a user starts it."""

import json
import os
import subprocess
import sys

import pytest

from tests.experiments.process import ROOT, TINY, python_m


def refused(*words):
    """The line that a command ends in at once, before jax is loaded or soon after."""
    command = [sys.executable, "-m", "experiments.plan", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = [each for each in done.stderr.splitlines() if "error" in each]
    return line


def test_what_does_not_fit_is_one_line():
    assert "chips: v4, v5e" in refused(TINY, "--device=v9-8")
    missing = refused(TINY, "--device=v5e-1", "--config.policy.path=models/none")
    assert "no config.json there" in missing


@pytest.fixture(scope="module")
def planned(compiled):
    code, out, err = python_m(compiled, "plan", TINY, "--device=v5e-2", "--json")
    assert code == 0, err
    return json.loads(out)


def test_a_plan_as_json(planned):
    assert planned["chips"] == 2
    assert planned["mesh"] == {"data": 2, "fsdp": 1, "tensor": 1}
    assert planned["fits"]
    stays, sums = sum(planned["stays"].values()), planned["gradients"]
    train = stays + sums + planned["programs"]["accumulate"]
    decode = stays + planned["programs"]["decode"]
    assert planned["sum"] >= max(train, decode)
    assert planned["sum"] < planned["usable"]
    assert planned["seconds"]["total"] > 0


def test_parameters_and_optimiser_are_counted_to_the_byte(planned):
    size = 4 * planned["parameters"]
    assert planned["stays"]["parameters"] == size
    # Two moments, and the numbers of the step that optimiser and state keep.
    assert planned["stays"]["optimiser"] == pytest.approx(2 * size, abs=16)
