"""The targets of the Makefile call launchers by options that these have."""

import copy
import importlib
import pathlib
import shlex
import subprocess

import pytest

from experiments import flags

ROOT = pathlib.Path(__file__).parents[1]


def lines_of(*words):
    """What make would run, without running it."""
    command = ["make", "--dry-run", "--no-print-directory", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("target", "option", "value"),
    [
        ("train", "workdir", "my/run"),
        ("report", "workdir", "my/run"),
        ("evaluate", "workdir", "my/run"),
        ("doctor", "workdir", "my/run"),
        ("chat", "policy", "my/run/policy"),
    ],
)
def test_a_target_starts_its_launcher_on_the_named_run(target, option, value):
    start = f"bin/python -m experiments.{target} "
    [line] = [x for x in lines_of(target, "RUN=my/run", "ARGS=--help") if start in x]
    options = copy.deepcopy(importlib.import_module(f"experiments.{target}").OPTIONS)
    flags.parse(shlex.split(line.split(start)[1]), options)
    assert options[option].value == value
    assert options.help


def test_training_ends_by_naming_the_targets_that_follow():
    lines = lines_of("train", "RUN=my/run")
    assert "make report" in lines[-1]
    assert "RUN=my/run" in lines[-1]
    assert "my/run/summary.json" in "\n".join(lines[-2:])


def test_the_environment_has_the_command_and_follows_setup_py():
    lines = lines_of("env", "--assume-new=setup.py")
    [install] = [line for line in lines if "--editable ." in line]
    assert ".venv/bin/python -m pip" in install
