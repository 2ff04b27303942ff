"""What is written down of the machine."""

import datetime
import json
import subprocess

import jax

from mempo_jax.runs import run_dir
from mempo_jax.runs.run_dir import RunDir


def test_versions_and_devices_are_named():
    got = run_dir.describe()
    assert got["jax"] == jax.__version__
    for name in ("transformers", "tokenizers", "orbax-checkpoint"):
        assert got[name][0].isdigit(), "they read text and weights"
    assert (got["backend"], got["devices"]) == ("cpu", jax.device_count())
    assert json.loads(json.dumps(got)) == got


def git(folder, *words):
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_the_commit_of_a_checkout_is_named(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert run_dir._commit(package) is None, "no checkout"
    git(tmp_path, "init")
    assert run_dir._commit(package) is None, "no commit"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    commit = run_dir._commit(package)
    assert len(commit) == 40
    assert set(commit) <= set("0123456789abcdef")
    (package / "__init__.py").write_text("changed = True")
    assert run_dir._commit(package) == f"{commit}-dirty"


def test_without_git_no_commit_is_named(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    (tmp_path / "package").mkdir()
    monkeypatch.setenv("PATH", "")
    assert run_dir._commit(tmp_path / "package") is None


def test_a_machine_is_noted_once_and_a_change_is_kept(monkeypatch):
    here = run_dir.describe()
    assert run_dir.with_this([]) == [here]
    assert run_dir.with_this([here]) == [here]
    other = here | {"jax": "0.1"}
    assert run_dir.with_this([other]) == [other, here]
    monkeypatch.setattr(run_dir, "describe", lambda: other)
    assert run_dir.with_this([other, here]) == [other, here, other]


def test_a_run_notes_it_and_leaves_nothing_where_it_gives_back(tmp_path):
    place, now = RunDir(str(tmp_path / "run")), datetime.datetime.now(datetime.UTC)
    for _ in range(2):
        place.claim({"seed": 1})
        place.note_machine()
    noted = json.loads((place.path / "machines.json").read_text())
    assert noted["machines"] == [run_dir.describe()]
    starts = [datetime.datetime.fromisoformat(each) for each in noted["starts"]]
    assert len(starts) == 2
    assert all(abs(now - each) < datetime.timedelta(minutes=5) for each in starts)
    place.release()
    assert not place.path.exists()
