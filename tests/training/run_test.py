"""How a run begins: who may begin it, and what it holds on to."""

import weakref

import pytest

from mempo_jax.builders import engines
from mempo_jax.builders.policies import make_nano
from mempo_jax.config import from_config
from mempo_jax.runs.run_dir import RunDir
from mempo_jax.settings import ConfigError
from mempo_jax.training import run
from tests.experiments import tiny


class Reached(Exception):
    pass


def begin(folder):
    config = tiny.get_config()
    config.mesh.data, config.train.cold_start_steps = 1, 0
    config.log.tensorboard = False
    config = config.to_dict()
    return run.run(from_config(config), config, str(folder))


def test_a_server_is_left_alone_while_another_process_runs_there(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(run, "check_engine", lambda *given: asked.append(given))
    refused = pytest.raises(ConfigError, match="another process is running")
    with RunDir(str(tmp_path)).locked(), refused:
        begin(tmp_path)
    assert not asked, "it would have been given other weights"


def test_a_server_that_cannot_be_used_leaves_no_directory(tmp_path, monkeypatch):
    def refuse(*given):
        raise ConfigError("no server")

    monkeypatch.setattr(run, "check_engine", refuse)
    with pytest.raises(ConfigError, match="no server"):
        begin(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.undo()
    monkeypatch.setattr(run, "Trainer", stop)
    with pytest.raises(Reached):
        begin(tmp_path / "run")
    monkeypatch.setattr(run, "check_engine", refuse)
    with pytest.raises(ConfigError, match="no server"):
        begin(tmp_path / "run")
    kept = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.json", "cold_start"} <= kept, "what was made stays this run's"


def stop(*given, **named):
    raise Reached


def test_training_holds_no_second_copy_of_the_policy(tmp_path, monkeypatch):
    first = []

    def made(*given):
        policy = make_nano(*given[:2])
        first.append(weakref.ref(policy))
        return policy

    def trainer(policy, *given, **named):
        alive = first[0]() is not None and first[0]() is not policy
        assert not alive, "the policy before the cold start is still in memory"
        raise Reached

    monkeypatch.setattr(engines, "initial_policy", made)
    monkeypatch.setattr(run, "Trainer", trainer)
    with pytest.raises(Reached):
        begin(tmp_path)
