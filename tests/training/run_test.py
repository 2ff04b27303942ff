"""How a run begins: who may begin it, and what it holds on to."""

import socket
import sys
import types
import weakref

import pytest

from mempo_jax.builders.policies import make_nano
from mempo_jax.config import from_config
from mempo_jax.runs.run_dir import RunDir
from mempo_jax.settings import ConfigError
from mempo_jax.training import run
from tests.experiments import tiny


class Reached(Exception):
    pass


def begin(folder, **changes):
    """Begins a run; ``changes`` by field, with __ for the dot."""
    config = tiny.get_config()
    config.mesh.data, config.train.cold_start_steps = 1, 0
    config.log.tensorboard = False
    config.update_from_flattened_dict(
        {name.replace("__", "."): value for name, value in changes.items()}
    )
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

    monkeypatch.setattr(run, "initial_policy", made)
    monkeypatch.setattr(run, "Trainer", trainer)
    with pytest.raises(Reached):
        begin(tmp_path)


def two_arguments(trajectories, weights):
    """A reward function of the user's that would fail at its first call."""


async def asynchronous(trajectories):
    """Another one."""


NOWHERE = f"{__name__}:nowhere"
OPTIONAL = {
    "no_module": ({"reward__function": "nowhere:f"}, "No module named 'nowhere'"),
    "no_function": ({"reward__function": NOWHERE}, "has no attribute 'nowhere'"),
    "signature": (
        {"reward__function": f"{__name__}:two_arguments"},
        r"of one argument, the list of trajectories, got \(trajectories, weights\)",
    ),
    "async": ({"reward__function": f"{__name__}:asynchronous"}, "asynchronous"),
    "demonstrations": (
        {"train__demonstrations_path": "nowhere.jsonl", "train__cold_start_steps": 1},
        "demonstrations_path: expected a JSONL file",
    ),
    "embedder": (
        {
            "memory__embedder": "sentence_transformers",
            "memory__embedder_model": "/nowhere/model",
        },
        "config.memory.embedder: ",
    ),
    "wandb": ({"log__wandb_project": "runs"}, "wandb is not installed: pip install"),
}


@pytest.mark.parametrize("name", OPTIONAL)
def test_optional_parts_are_tried_before_anything_is_computed(
    tmp_path, monkeypatch, name
):
    changes, message = OPTIONAL[name]
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(run, "make_suite", stop)
    with pytest.raises(ConfigError, match=message):
        begin(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_a_reward_module_that_fails_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken_reward.py").write_text("def reward(")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"'broken_reward:f': it cannot be imported"):
        begin(tmp_path / "run", reward__function="broken_reward:f")


def test_a_server_is_looked_for_before_the_policy_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "make_suite", stop)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    http = {"url": url, "model": "tiny", "sync_dir": str(tmp_path / "served")}
    changes = {f"engine__http__{name}": value for name, value in http.items()}
    with pytest.raises(ConfigError, match=r"config\.engine\.http: .*no answer"):
        begin(tmp_path / "run", engine__kind="http", **changes)


def fake_wandb(monkeypatch, login, mode="online"):
    fake = types.ModuleType("wandb")
    settings = types.SimpleNamespace(mode=mode)
    fake.setup = lambda: types.SimpleNamespace(settings=settings)
    fake.login = login
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr(run, "make_suite", stop)


def no_key(**given):
    raise RuntimeError("api_key not configured\n(no-tty)")


@pytest.mark.parametrize(
    ("login", "why"),
    [
        (no_key, r"api_key not configured \(no-tty\)"),
        (lambda **given: False, "no key is known"),
    ],
)
def test_a_missing_login_is_one_line_at_the_start(tmp_path, monkeypatch, login, why):
    fake_wandb(monkeypatch, login)
    with pytest.raises(ConfigError, match=f"expected a login.*{why}.*wandb login") as e:
        begin(tmp_path / "run", log__wandb_project="runs")
    assert "\n" not in str(e.value)


def test_a_login_that_serves_or_is_not_needed_lets_the_run_begin(tmp_path, monkeypatch):
    for login, mode in ((lambda **given: True, "online"), (no_key, "offline")):
        fake_wandb(monkeypatch, login, mode)
        with pytest.raises(Reached):
            begin(tmp_path / "run", log__wandb_project="runs")
