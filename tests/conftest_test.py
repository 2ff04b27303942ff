"""Which tests run, and how well XLA compiles for them."""

import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

CONFTEST = pathlib.Path(__file__).with_name("conftest.py")
TESTS = """
import pytest

def test_plain():
    pass

@pytest.mark.data
def test_data(data_dir):
    assert (data_dir / "facts.txt").read_text() == "facts"

@pytest.mark.parity
def test_parity():
    pass
"""


@pytest.fixture
def run_pytest(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "sample_test.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\npython_files = *_test.py\nmarkers =\n  data: x\n  parity: y\n"
    )

    def run(*arguments, data=None, **variables):
        ours = ("MEMPO_DATA_DIR", "MEMPO_FULL_COMPILE", "XLA_FLAGS")
        env = {k: v for k, v in os.environ.items() if k not in ours} | variables
        if data is not None:
            env["MEMPO_DATA_DIR"] = str(data)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_by_default_marked_tests_are_deselected_not_skipped(run_pytest):
    code, printed = run_pytest()
    assert code == 0, printed
    assert "1 passed, 2 deselected" in printed
    assert "left out, by their marks: 1 data, 1 parity" in printed


def test_the_workers_of_xdist_leave_out_and_count_the_same(run_pytest):
    code, printed = run_pytest("-n1", "--dist=loadfile")
    assert code == 0, printed
    assert "1 passed" in printed
    assert "left out, by their marks: 1 data, 1 parity" in printed


def test_a_named_folder_turns_data_tests_on(run_pytest, tmp_path):
    (tmp_path / "facts.txt").write_text("facts")
    code, printed = run_pytest(data=tmp_path)
    assert code == 0, printed
    assert "2 passed, 1 deselected" in printed


def test_a_missing_folder_fails(run_pytest, tmp_path):
    code, printed = run_pytest(data=tmp_path / "absent")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "there is no such folder" in printed


def test_parity_on_demand(run_pytest):
    code, printed = run_pytest("-m", "parity")
    assert code == 0, printed
    assert "1 passed, 2 deselected" in printed


@pytest.mark.parametrize(
    ("variables", "levels"),
    [
        ({}, ["0"]),
        ({"MEMPO_FULL_COMPILE": "1"}, []),
        ({"JAX_PLATFORMS": "cuda,cpu"}, []),
        ({"XLA_FLAGS": "--xla_backend_optimization_level=3"}, ["3"]),
    ],
    ids=["by default", "as in training", "on a GPU", "flags of one's own"],
)
def test_how_well_xla_compiles(monkeypatch, variables, levels):
    for name in ("MEMPO_FULL_COMPILE", "XLA_FLAGS", "JAX_PLATFORMS"):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    runpy.run_path(str(CONFTEST))
    flags = os.environ["XLA_FLAGS"]
    assert "--xla_force_host_platform_device_count=8" in flags.split()
    assert re.findall(r"optimization_level=(\d)", flags) == levels
