"""The report as a user asks for it: one file, or one line about what is wrong."""

import contextlib
import hashlib
import io
import os
import subprocess
import sys

import pytest

from experiments import report
from experiments.launch import launch
from mempo_jax.report import run_files
from mempo_jax.report.page import START
from tests.report import run_case

BEFORE = f"{START}the one before"


def run(*words):
    """Exit code, output and error output."""
    for name in report.OPTIONS:  # what an earlier test gave
        report.OPTIONS[name].unparse()
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        launch(report.main, report.OPTIONS, required=("workdir",), argv=list(words))
    return ended.value.code or 0, out.getvalue(), err.getvalue()


@pytest.fixture
def folder(tmp_path):
    return run_case.write(tmp_path / "run")


def contents(folder):
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_one_file_and_nothing_else_is_touched(folder):
    before = contents(folder)
    code, out, err = run(f"--workdir={folder}")
    assert (code, err) == (0, "")
    page = folder / "report.html"
    assert f"{page}: 0.2 MB" in out
    assert "20 of 20 recorded trajectories" in out
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    after = contents(folder)
    del after[page]
    assert after == before


def test_how_many_trajectories(folder):
    code, out, _ = run(f"--workdir={folder}", "--trajectories=10")
    assert code == 0
    assert "10 of 20 recorded trajectories" in out
    assert "--trajectories=N shows more." in out


def test_another_file(folder, tmp_path):
    code, _, _ = run(f"--workdir={folder}", f"--out={tmp_path / 'other.html'}")
    assert code == 0
    assert (tmp_path / "other.html").is_file()
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "--workdir is missing"),
        (("--workdir={}/absent",), "expected the directory of a run"),
        (("--workdir={}",), "expected the directory of a run"),
        (("--workdir={}/run", "--trajectories=0"), "expected at least 1"),
        (("--workdir={}/run", "--config=configs/base.py"), "--config: leave it out"),
        (("--workdir={}/run", "--out={}/absent/page.html"), "absent/page.html"),
        (("--workdir={}/run/config.json",), "expected the directory of a run"),
    ],
)
def test_what_does_not_fit_ends_in_one_line(folder, tmp_path, words, told):
    before = contents(tmp_path)
    code, out, err = run(*(word.format(tmp_path) for word in words))
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1
    assert contents(tmp_path) == before


def test_only_a_file_is_replaced(folder, tmp_path):
    pipe, loop = tmp_path / "pipe", tmp_path / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    (tmp_path / "link").symlink_to(pipe)
    for name in ("pipe", "link", "loop", "run"):
        code, out, err = run(f"--workdir={folder}", f"--out={tmp_path / name}")
        assert (code, out) == (2, "")
        assert "expected a regular file or nothing there" in err
        assert err.count("\n") == 1
    assert pipe.is_fifo()
    assert loop.is_symlink()


@pytest.mark.parametrize(
    "name", ["config.json", "metrics.jsonl", "summary.json", "lock", "link"]
)
def test_no_file_but_a_page_is_replaced(folder, name, monkeypatch):
    (folder / "lock").touch()  # empty, and held by a run
    (folder / "link").symlink_to(folder / "config.json")
    before = contents(folder)
    monkeypatch.setattr(run_files, "read_run", None)  # before any work
    code, out, err = run(f"--workdir={folder}", f"--out={folder / name}")
    assert (code, out) == (2, "")
    assert f"--out={folder / name}: expected nothing there or a page" in err
    assert err.count("\n") == 1
    assert contents(folder) == before


def test_a_name_that_is_too_long_is_refused(folder, tmp_path):
    code, _, err = run(f"--workdir={folder}", f"--out={tmp_path / ('x' * 300)}")
    assert code == 2
    assert "too long" in err
    assert "Traceback" not in err


def test_what_stands_beside_the_page_is_left_alone(folder, tmp_path):
    own = tmp_path / "mine"
    own.write_text("mine")
    (folder / "report.html.writing").symlink_to(own)
    assert run(f"--workdir={folder}")[0] == 0
    assert own.read_text() == "mine"
    assert not (folder / "report.html").is_symlink()
    assert [path.name for path in folder.glob("*.writing")] == ["report.html.writing"]


def test_a_page_is_replaced(folder):
    for trajectories, shown in (("10", "10 of 20"), ("20", "20 of 20")):
        code, _, err = run(f"--workdir={folder}", f"--trajectories={trajectories}")
        assert (code, err) == (0, "")
        assert shown in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_file_is_written(folder, tmp_path, there):
    page, link = tmp_path / "elsewhere.html", tmp_path / "link.html"
    link.symlink_to(page)
    if there:
        page.write_text(BEFORE)
    assert run(f"--workdir={folder}", f"--out={link}")[0] == 0
    assert link.is_symlink()
    text = page.read_text(encoding="utf-8")
    assert text.startswith(START)
    assert "the one before" not in text


def ended(folder, output, unbuffered="1"):
    """The exit code and the error output of a process with this standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "experiments.report", f"--workdir={folder}"],
        stdout=output,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        encoding="utf-8",
        check=False,
    )
    os.close(output)
    return done.returncode, done.stderr


def test_a_reader_that_has_gone_is_no_fault(folder):
    reads, writes = os.pipe()
    os.close(reads)
    assert ended(folder, writes) == (0, "")
    assert (folder / "report.html").is_file()


def test_an_output_that_takes_nothing_ends_in_one_line(folder, tmp_path):
    (tmp_path / "read only").touch()
    output = os.open(tmp_path / "read only", os.O_RDONLY)
    code, err = ended(folder, output, unbuffered="")
    assert code == 3
    assert "the output cannot be written" in err
    assert err.count("\n") == 1
    assert (folder / "report.html").is_file()


def test_a_page_that_was_there_survives_a_failed_writing(folder, monkeypatch):
    (folder / "report.html").write_text(BEFORE)

    def fail(*given):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    code, _, err = run(f"--workdir={folder}")
    assert code == 2
    assert "no space left" in err
    assert (folder / "report.html").read_text() == BEFORE
    assert not list(folder.glob("*.writing"))
