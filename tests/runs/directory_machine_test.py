"""What is written down of the machine."""

import json

import jax

from mempo_jax.runs import directory
from mempo_jax.runs.directory import RunDir


def test_versions_and_devices_are_named():
    got = directory.describe()
    assert got["jax"] == jax.__version__
    assert (got["backend"], got["devices"]) == ("cpu", jax.device_count())
    assert json.loads(json.dumps(got)) == got


def test_a_machine_is_noted_once_and_a_change_is_kept(monkeypatch):
    here = directory.describe()
    assert directory.with_this([]) == [here]
    assert directory.with_this([here]) == [here]
    other = here | {"jax": "0.1"}
    assert directory.with_this([other]) == [other, here]
    monkeypatch.setattr(directory, "describe", lambda: other)
    assert directory.with_this([other, here]) == [other, here, other]


def test_a_run_notes_it_and_leaves_nothing_where_it_gives_back(tmp_path):
    place = RunDir(str(tmp_path / "run"))
    for _ in range(2):
        place.claim({"seed": 1})
        place.note_machine()
    noted = json.loads((place.path / "machines.json").read_text())
    assert noted == {"machines": [directory.describe()]}
    place.release()
    assert not place.path.exists()
