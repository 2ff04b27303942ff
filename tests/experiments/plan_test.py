"""The planner as a user starts it."""

import json
import os
import subprocess
import sys

import jax
import pytest

from experiments import plan
from experiments.flags import load_config
from mempo_jax.planning import plan as planning
from mempo_jax.planning.devices import device as read_device
from mempo_jax.planning.memory import Estimator
from mempo_jax.planning.plan import Planner
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


def test_a_mesh_for_more_chips_is_planned_as_the_nearest_one():
    """An example of the help text, without the compiler, which takes minutes for it."""
    words = "--config=configs/qwen2_5_7b.py --device=h100-8"
    assert f"experiments.plan {words}\n" in plan.__doc__
    device = read_device("h100-8")
    planner = Planner(device, jax.devices(), compiler="CPU", narrow=True)
    config = load_config(str(ROOT / "configs/qwen2_5_7b.py")).to_dict()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Estimator, "made", lambda *given: 0)
        made = planner.plan(config)
    assert made.axes == {"data": 1, "fsdp": 2, "tensor": 4}
    [line] = [x for x in planning.as_text(made).splitlines() if x.startswith("mesh ")]
    assert "does not fit 8 chips; planned with --config.mesh.fsdp=2" in line
    assert planning.as_json(made)["mesh_change"] == {"mesh.fsdp": 2}
