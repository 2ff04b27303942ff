"""A run directory whose files were lost or damaged between two runs."""

import errno

import pytest

from mempo_jax.runs.run_dir import RunDir
from mempo_jax.settings import ConfigError

CONFIG = {"seed": 0, "train": {"steps": 2}, "env": {"workers": 1}}


def test_the_same_config_may_come_back_and_another_may_not(tmp_path):
    place = RunDir(str(tmp_path / "run"))
    place.claim(CONFIG)
    place.check(CONFIG | {"train": {"steps": 9}, "env": {"workers": 64}})
    with pytest.raises(ConfigError, match="seed is 0 there and 1 here"):
        place.check(CONFIG | {"seed": 1})


def test_what_a_command_asks_otherwise_is_named(tmp_path):
    place = RunDir(str(tmp_path / "run"))
    place.claim(CONFIG)
    assert place.changes(CONFIG) == {}
    assert place.changes({"train": {"steps": 9}, "env": {"workers": 1}}) == {
        "seed": (0, None),
        "train.steps": (2, 9),
    }
    assert place.ended(2) is None
    place.save_json("summary.json", {"steps": 2})
    assert place.ended(2) == {"steps": 2}
    assert place.ended(9) is None


@pytest.mark.parametrize("result", ["summary.json", "checkpoints"])
def test_results_without_a_config_are_not_taken_for_this_run(tmp_path, result):
    (tmp_path / result).mkdir()
    with pytest.raises(ConfigError, match=f"holds {result} of a run without"):
        RunDir(str(tmp_path)).claim(CONFIG)
    assert not (tmp_path / "config.json").exists()


@pytest.mark.parametrize("text", ["[]", "3", "{", "\xff"])
def test_a_damaged_file_is_named(tmp_path, text):
    place = RunDir(str(tmp_path))
    for name in ("config.json", "summary.json"):
        (tmp_path / name).write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"config\.json: expected"):
        place.check(CONFIG)
    with pytest.raises(ConfigError, match=r"summary\.json: expected a JSON object"):
        place.load_json("summary.json")
    assert place.load_json("absent.json") is None


def test_two_runs_do_not_share_a_directory(tmp_path):
    first, second = RunDir(str(tmp_path)), RunDir(str(tmp_path))
    taken = pytest.raises(ConfigError, match="another process is running")
    with first.locked(), taken, second.locked():
        pass
    with second.locked():
        pass


def test_a_directory_that_could_not_be_filled_leaves_the_one_before(tmp_path):
    place, policy = RunDir(str(tmp_path)), tmp_path / "policy"

    def fill(folder):
        (folder / "weights").write_text("new")

    def fill_the_disk(folder):
        fill(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    place.save_dir(policy, fill)
    with pytest.raises(OSError, match="No space"):
        place.save_dir(policy, fill_the_disk)
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    assert (policy / "weights").read_text() == "new"


@pytest.mark.parametrize("name", ["a[1]", "lr=[0.1]", "[!a]", "a\\b", "a*", "a?", "**"])
def test_a_path_whose_checkpoints_could_not_be_read_again_is_refused(tmp_path, name):
    for path in (tmp_path / name, tmp_path / name / "run"):
        with pytest.raises(ConfigError, match="expected a path without any of"):
            RunDir(str(path)).claim(CONFIG)
        assert not path.exists()


def test_the_run_stays_where_it_began_if_the_current_directory_changes(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    place = RunDir("run")
    place.claim(CONFIG)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    place.save_json("summary.json", {"steps": 2})
    assert (tmp_path / "run" / "summary.json").is_file()
    assert place.checkpoints == tmp_path / "run" / "checkpoints"


def test_a_home_is_expanded_and_a_bucket_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert RunDir("~/run").path == tmp_path / "run"
    with pytest.raises(ConfigError, match="--workdir=gs://bucket/run: expected a dir"):
        RunDir("gs://bucket/run")
