"""Commands as they are printed: they can be typed in the place where this ran."""

import os
import shlex
import subprocess
import sys

import pytest

from experiments import naming
from experiments.summary import next_commands
from tests.experiments.process import ROOT
from tests.policy_case import save_run


def program(folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)
    return folder / name


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """The folder of the programs of an environment that this process runs in."""
    monkeypatch.setattr(sys, "executable", str(program(tmp_path / "env/bin", "python")))
    monkeypatch.setenv("PATH", os.fspath(tmp_path / "system"))
    monkeypatch.chdir(tmp_path)
    program(tmp_path / "system", "python")
    return tmp_path / "env" / "bin"


def test_in_a_checkout_it_is_a_module_of_this_python(environment, monkeypatch):
    line = naming.command_line("report", "--workdir=my run")
    assert line == "env/bin/python -m experiments.report '--workdir=my run'"
    monkeypatch.chdir(environment)
    assert naming.command_line().startswith(f"{environment}/python -m experiments")
    monkeypatch.setenv("PATH", str(environment))
    assert naming.command_line("chat") == "python -m experiments.chat"
    program(environment, "python3.11").rename(environment / "python3")
    (environment / "python").unlink()
    assert naming.command_line("chat") == "python3 -m experiments.chat"


def test_of_an_installed_package_it_is_the_command_mempo(environment, monkeypatch):
    monkeypatch.setattr(naming, "IN_CHECKOUT", False)
    monkeypatch.setattr(naming, "__package__", "mempo_jax.launchers")
    line = naming.command_line("chat")
    assert line == "env/bin/python -m mempo_jax.launchers.chat"
    program(environment.parents[1] / "system", "mempo")
    assert naming.command_line("chat") == "mempo chat"
    program(environment, "mempo")
    assert naming.command_line("chat") == "env/bin/mempo chat", "another one is on PATH"
    monkeypatch.setenv("PATH", str(environment))
    assert naming.command_line("chat", "--policy=a") == "mempo chat --policy=a"


def test_texts_name_launchers_as_they_are_typed(monkeypatch):
    text = "python -m experiments.train --config=x; see experiments.cold_start."
    assert naming.as_started(text) == text
    monkeypatch.setattr(naming, "IN_CHECKOUT", False)
    assert naming.as_started(text) == "mempo train --config=x; see mempo cold_start."


def test_what_comes_after_a_run_are_commands_that_there_are():
    lines = next_commands("some where/run")
    assert "some where/run/report.html" in lines[0]
    commands = [shlex.split(line) for line in lines if line.startswith("  ")]
    assert len(commands) == 3
    for command in commands:
        assert any("some where/run" in word for word in command)
        done = subprocess.run([*command, "--help"], cwd=ROOT, capture_output=True)
        assert done.returncode == 0


def test_the_first_of_them_runs_as_it_is_printed(tmp_path):
    page = save_run(tmp_path / "my run") / "report.html"
    head, command, *_ = next_commands(str(page.parent))
    assert head == f"next, see the run as one page, {page}:"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{page}: " in done.stdout
    assert page.is_file()
