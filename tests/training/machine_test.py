"""What is written down of the machine."""

import json

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


def test_a_machine_is_noted_once_and_a_change_is_kept(monkeypatch):
    here = run_dir.describe()
    assert run_dir.with_this([]) == [here]
    assert run_dir.with_this([here]) == [here]
    other = here | {"jax": "0.1"}
    assert run_dir.with_this([other]) == [other, here]
    monkeypatch.setattr(run_dir, "describe", lambda: other)
    assert run_dir.with_this([other, here]) == [other, here, other]


def test_a_run_notes_it_and_leaves_nothing_where_it_gives_back(tmp_path):
    place = RunDir(str(tmp_path / "run"))
    for _ in range(2):
        place.claim({"seed": 1})
        place.note_machine()
    noted = json.loads((place.path / "machines.json").read_text())
    assert noted == {"machines": [run_dir.describe()]}
    place.release()
    assert not place.path.exists()
