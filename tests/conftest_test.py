"""Which tests run: data tests where a folder is named, parity tests on demand."""

import os
import pathlib
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

    def run(*arguments, data=None):
        env = {k: v for k, v in os.environ.items() if k != "MEMPO_DATA_DIR"}
        if data is not None:
            env["MEMPO_DATA_DIR"] = str(data)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        return done.returncode, (done.stdout + done.stderr).strip().splitlines()[-1]

    return run


def test_by_default_both_kinds_are_deselected_not_skipped(run_pytest):
    code, summary = run_pytest()
    assert code == 0
    assert "1 passed, 2 deselected" in summary


def test_a_named_folder_turns_data_tests_on(run_pytest, tmp_path):
    (tmp_path / "facts.txt").write_text("facts")
    code, summary = run_pytest(data=tmp_path)
    assert code == 0
    assert "2 passed, 1 deselected" in summary


def test_a_missing_folder_fails(run_pytest, tmp_path):
    code, summary = run_pytest(data=tmp_path / "absent")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "there is no such folder" in summary


def test_parity_on_demand(run_pytest):
    code, summary = run_pytest("-m", "parity")
    assert code == 0
    assert "1 passed, 2 deselected" in summary
