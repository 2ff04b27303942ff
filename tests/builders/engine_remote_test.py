"""A run whose turns a server samples: its start, its weights, its errors."""

import json
import pathlib
import shutil
import socket

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from benchmarks import _processes
from experiments import train
from experiments.launch import launch
from mempo_jax.builders import engines
from mempo_jax.builders.engines import make_run_mesh
from mempo_jax.builders.policies import make_nano
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.memory import closing_tags
from mempo_jax.models import hf
from mempo_jax.rollout.engine import Engine
from mempo_jax.rollout.http_client import ServerError
from mempo_jax.rollout.sampler import Request
from mempo_jax.runs.metrics_writer import read_metric_rows
from mempo_jax.settings import ConfigError
from mempo_jax.training import run
from tests.experiments import tiny
from tests.experiments.process import TINY, environment
from tests.rollout import http_server

NOISE = 0.02  # by which the server's log-probs are off


def config(url, folder, **changes):
    c = tiny.get_config()
    c.mesh.data, c.log.tensorboard = 1, False
    c.engine.kind, c.engine.http.url = "http", url
    c.engine.http.model = http_server.NAME
    c.engine.http.sync_dir = str(folder / "served")
    c.engine.http.reload = (http_server.RELOAD,)
    c.engine.http.retries = 0
    c.train.steps, c.train.cold_start_steps = 2, 0
    c.train.eval_tasks, c.train.learning_rate = 0, 0.01
    for name, value in changes.items():
        *path, last = name.split("__")
        section = c
        for part in path:
            section = section[part]
        section[last] = value
    return c.to_dict()


@pytest.fixture(scope="module")
def running():
    """A server of the tiny config's policy, which it does not hold yet."""
    c = tiny.get_config()
    c.mesh.data = 1
    settings = from_config(c.to_dict())
    suite = make_suite(settings)
    policy = make_nano(suite, settings)
    engine = Engine(
        policy.model,
        policy.tokenizer,
        slots=8,
        max_length=settings.max_segment_tokens,
        prefill_buckets=(64,),
        decode_chunk=12,
        closing_tags=closing_tags(),
        row_buckets=(8,),
        span_buckets=(80,),
    )
    engine.set_params(jax.tree.map(lambda x: x + 1.0, policy.params))
    with http_server.serve(engine, hf.load_params) as server:
        yield server, suite, policy


@pytest.fixture
def world(running):
    yield running
    running[0].restore()


@pytest.fixture
def server(world):
    return world[0]


def shifted(answer):
    """Log-probs that are a little too low, as of another kernel or dtype."""
    for choice in answer["choices"]:
        entries = choice["logprobs"]
        entries["token_logprobs"] = [v - NOISE for v in entries["token_logprobs"]]
    return answer


def test_a_whole_run_over_a_server_that_is_a_little_off(server, tmp_path):
    server.change = shifted
    cap = {"objective__importance_cap": 2.0, "train__max_log_prob_gap": 0.1}
    given = config(server.url, tmp_path, **cap)
    summary = run.run(from_config(given), given, str(tmp_path / "run"))
    rows = read_metric_rows(tmp_path / "run" / "metrics.jsonl")
    assert summary["steps"] == len(rows) == 2
    assert sum(row["updates"] for row in rows) >= 2
    # A server with weights of the step before would be off by more than its noise.
    for row in rows:
        assert row["log_prob_gap"] == pytest.approx(NOISE, abs=1e-3)
    served = hf.load_params(tmp_path / "served")
    trained = hf.load_params(tmp_path / "run" / "policy")
    jax.tree.map(np.testing.assert_array_equal, served, trained)
    heads = [
        "lm_head.weight" in load_file(tmp_path / place / "model.safetensors")
        for place in ("served", "run/policy")
    ]
    assert heads == [True, False], "a server gets what is tied twice"
    paths = [path for path, _, _ in server.asked]
    assert paths.count("/reload") == 5  # at its start, and before what samples
    seeds = [body["seed"] for path, _, body in server.asked if path != "/reload"]
    assert len(set(seeds)) == len(seeds) > 16, "each turn of each sample has its own"
    text = (tmp_path / "run" / "config.json").read_text()
    assert json.loads(text)["engine"]["kind"] == "http"


def test_without_a_cap_and_room_such_a_server_is_refused_at_the_start(world, tmp_path):
    server, _, policy = world
    server.change = shifted
    given = config(server.url, tmp_path)
    settings = from_config(given)
    with pytest.raises(ConfigError, match=r"differ .* by up to 0\.02"):
        engines.check_engine(policy, settings, make_run_mesh(settings))


def test_log_probs_of_another_temperature_are_told_apart(world, tmp_path, monkeypatch):
    """As vLLM gives them as long as nobody asks for processed ones."""
    server, _, policy = world
    plain = type(server).completion
    raw = lambda body: plain(server, body | {"temperature": 1.0})  # noqa: E731
    monkeypatch.setattr(server, "completion", raw)
    settings = from_config(config(server.url, tmp_path, sampling__temperature=0.5))
    with pytest.raises(ConfigError, match=r"at temperature 1, .*processed_logprobs"):
        engines.check_engine(policy, settings, make_run_mesh(settings))


@pytest.mark.parametrize(
    ("sync", "reload", "words"),
    [
        ("directory", "/health", "404"),
        ("directory", '/v1/completions {"model": "x"}', "404"),
        ("none", http_server.RELOAD, "serves other weights"),
    ],
)
def test_weights_that_do_not_arrive_are_noticed(world, tmp_path, sync, reload, words):
    server, _, policy = world
    server.engine.set_params(jax.tree.map(lambda x: x + 1.0, policy.params))
    given = config(server.url, tmp_path, engine__http__reload=(reload,))
    given["engine"]["http"]["sync"] = sync
    given["objective"]["importance_cap"], given["train"]["eval_tasks"] = 2.0, 0
    given["train"]["max_log_prob_gap"] = 0.1
    settings = from_config(given)
    with pytest.raises(ConfigError, match=words):
        engines.check_engine(policy, settings, make_run_mesh(settings))


def test_a_reload_that_does_nothing_is_noticed(world, tmp_path, monkeypatch):
    server, _, policy = world
    server.engine.set_params(policy.params)  # it even began with the right ones
    monkeypatch.setattr(server, "reload", lambda body: {"success": True})
    settings = from_config(config(server.url, tmp_path))
    with pytest.raises(ConfigError, match="has not read the weights"):
        engines.check_engine(policy, settings, make_run_mesh(settings))


def test_a_server_that_keeps_its_weights_is_never_told_to_read_any(world, tmp_path):
    server, _, policy = world
    server.engine.set_params(policy.params)
    given = config(server.url, tmp_path, engine__http__sync="none")
    given["objective"]["importance_cap"], given["train"]["eval_tasks"] = 2.0, 0
    given["train"]["max_log_prob_gap"] = 0.1
    settings = from_config(given)
    engines.check_engine(policy, settings, make_run_mesh(settings))
    assert [path for path, _, _ in server.asked] == ["/v1/completions"]


STALE = {"engine.http.sync": "none"}
ROOM = STALE | {"train.max_log_prob_gap": 0.5}
ADAPTER = {"engine.http.sync": "adapter", "policy.lora.rank": 2}
CAP = ROOM | {"objective.importance_cap": 2.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (STALE, "objective.importance_cap: expected above 0"),
        (STALE | {"objective.importance_cap": 2.0}, "train.max_log_prob_gap"),
        (CAP | {"train.eval_tasks": 4}, "train.eval_tasks: expected 0"),
        ({"engine.kind": "grpc"}, "engine.kind: expected one of"),
        ({"engine.http.url": "host:8000"}, "expected 'http://host:port'"),
        ({"engine.http.url": "http://me:secret@host"}, "no user, password or query"),
        ({"engine.http.model": ""}, "engine.http.model"),
        ({"engine.http.api_key_env": "NOT_THERE"}, "'NOT_THERE': expected an env"),
        ({"engine.http.timeout_s": 0.0}, "timeout_s: expected > 0"),
        ({"engine.http.reload_timeout_s": 0.0}, "reload_timeout_s: expected > 0"),
        ({"engine.http.retries": -1}, "retries: expected at least 0"),
        ({"engine.http.max_concurrent": 0}, "max_concurrent: expected at least 1"),
        ({"engine.http.url": "http://a:1, host:8000"}, "separated by commas"),
        ({"engine.http.url": "http://a:1,"}, "separated by commas"),
        ({"engine.http.url": "http://a:1,http://a:1/v1"}, "each address once"),
        ({"engine.http.sync": "adapter"}, "policy.lora.rank: expected at least 1"),
        (
            ADAPTER | {"train.cold_start_steps": 1},
            "train.cold_start_steps: expected 0 as .*'adapter'",
        ),
        (ADAPTER | {"engine.http.sync_dir": ""}, "sync_dir: expected .*'adapter'"),
        ({"engine.http.sync": "ftp"}, "sync: expected one of"),
        ({"engine.http.sync_dir": ""}, "sync_dir: expected a directory"),
        ({"engine.http.reload": ()}, "reload: expected calls"),
        ({"engine.http.reload": ("reload",)}, "reload: expected '/path'"),
    ],
)
def test_settings_that_cannot_work(tmp_path, changes, words):
    changes = {name.replace(".", "__"): value for name, value in changes.items()}
    with pytest.raises(ConfigError, match=words) as caught:
        from_config(config("http://127.0.0.1:9", tmp_path, **changes))
    assert "secret" not in str(caught.value)


def adapter_config(url, folder, **changes):
    lora = {"policy__lora__rank": 2, "engine__http__sync": "adapter"}
    return config(url, folder, **lora, engine__http__reload=(), **changes)


def with_adapters(base):
    """Directory of adapters -> parameters of the base with them added, as HF's names
    and matrices say, without any code of ours for adapters."""

    def load(directory):
        folder = pathlib.Path(directory)
        said = json.loads((folder / "adapter_config.json").read_text())
        pairs = load_file(folder / "adapter_model.safetensors")
        weights = load_file(base / "model.safetensors")
        for name in [name for name in pairs if name.endswith(".lora_A.weight")]:
            kernel = name.removeprefix("base_model.model.").replace(".lora_A", "")
            product = pairs[name.replace("lora_A", "lora_B")] @ pairs[name]
            weights[kernel] = weights[kernel] + said["lora_alpha"] / said["r"] * product
        whole = folder.parent.parent / "whole"
        shutil.copytree(base, whole, dirs_exist_ok=True)
        save_file(weights, whole / "model.safetensors")
        return hf.load_params(whole)

    return load


@pytest.fixture
def adapting(world, tmp_path, monkeypatch):
    """The server with the policy as its base, which loads adapters."""
    server, _, policy = world
    policy.save(tmp_path / "base", policy.params)
    server.engine.set_params(policy.params)
    monkeypatch.setattr(server, "load", with_adapters(tmp_path / "base"))
    return server, policy


def test_a_whole_run_whose_server_gets_adapters(adapting, tmp_path):
    server, _ = adapting
    given = adapter_config(server.url, tmp_path)
    summary = run.run(from_config(given), given, str(tmp_path / "run"))
    rows = read_metric_rows(tmp_path / "run" / "metrics.jsonl")
    assert summary["steps"] == len(rows) == 2
    assert sum(row["updates"] for row in rows) >= 2
    assert all(row["log_prob_gap"] < 1e-4 for row in rows)
    assert [row["server_faults"] for row in rows] == [0, 0]
    assert [row["servers_set_aside"] for row in rows] == [0, 0]
    asked = [body for path, _, body in server.asked if path == "/v1/completions"]
    loads = [body for path, _, body in server.asked if path == "/v1/load_lora_adapter"]
    names = [body["lora_name"] for body in loads]
    assert len(set(names)) == len(names) >= 4, (
        "the check's, fresh ones, and each step's"
    )
    assert {body["model"] for body in asked} <= set(names), "never the base"
    assert list(server.adapters) == names[-1:], "older ones were unloaded"
    trained = load_file(tmp_path / "run" / "adapters" / "adapter_model.safetensors")
    sent = load_file(f"{loads[-1]['lora_path']}/adapter_model.safetensors")
    assert trained.keys() == sent.keys()
    for name, value in trained.items():
        np.testing.assert_array_equal(sent[name], value)
    kept = [path.name for path in (tmp_path / "served").iterdir() if path.is_dir()]
    assert sorted(kept) == sorted(names[-2:]), "those in use, and those before"


def test_a_server_that_adds_no_adapters_is_noticed(adapting, tmp_path, monkeypatch):
    server, policy = adapting
    base = policy.params
    monkeypatch.setattr(server, "load", lambda directory: base)
    settings = from_config(adapter_config(server.url, tmp_path))
    with pytest.raises(ConfigError, match="has not loaded the adapters"):
        engines.check_engine(policy, settings, make_run_mesh(settings))


def test_a_server_that_loads_no_adapters_names_what_is_needed(
    adapting, tmp_path, monkeypatch
):
    server, policy = adapting
    refusal = 404, {"error": {"message": "Not Found"}}
    monkeypatch.setattr(server, "load_adapter", lambda body: refusal)
    settings = from_config(adapter_config(server.url, tmp_path))
    with pytest.raises(ConfigError, match=r"404: Not Found.*--enable-lora"):
        engines.check_engine(policy, settings, make_run_mesh(settings))


def test_a_server_that_starts_anew_gets_its_adapters_again(adapting, tmp_path):
    server, policy = adapting
    settings = from_config(adapter_config(server.url, tmp_path))
    mesh = make_run_mesh(settings)
    policy = engines._changed(policy, settings, mesh)
    engine = engines.make_http_engine(policy, settings)
    engine.set_params(policy.params)
    asked = [Request(0, [1, 2, 3], np.array([0, 1], np.uint32), 8)]
    [expected] = engine.generate(asked, temperature=1.0)
    server.adapters.clear()
    server.using = "none"
    with pytest.warns(UserWarning, match="gets no requests for now"):
        [made] = engine.generate(asked, temperature=1.0)
    assert made.tokens == expected.tokens
    assert len(server.adapters) == 1


def test_each_of_several_servers_must_be_the_policy(world, tmp_path):
    server, _, policy = world
    other = Engine(
        policy.model,
        policy.tokenizer,
        slots=8,
        max_length=server.engine.max_length,
        prefill_buckets=(64,),
        decode_chunk=12,
        closing_tags=closing_tags(),
    )
    other.set_params(jax.tree.map(lambda x: x + 1.0, policy.params))
    with http_server.serve(other, hf.load_params) as second:
        urls = f"{server.url}, {second.url}"
        settings = from_config(config(urls, tmp_path))
        mesh = make_run_mesh(settings)
        engines.check_server(settings)
        engines.check_engine(policy, settings, mesh)
        for each in (server, second):
            paths = [path for path, _, _ in each.asked]
            assert paths == ["/reload", "/v1/completions"]
        second.reload = lambda body: {"success": True}
        other.set_params(policy.params)
        with pytest.raises(ConfigError, match=f"log-probs of {second.url} differ"):
            engines.check_engine(policy, settings, mesh)
        second.die()
        with pytest.raises(ConfigError, match=f"{second.url}.*no answer"):
            engines.check_server(settings)


def refused(capsys, *said):
    """The one line with which a command is refused, and its exit code."""
    with pytest.raises(SystemExit) as caught:
        launch(train.main, train.OPTIONS, required=("config", "workdir"), argv=said)
    lines = capsys.readouterr().err.splitlines()
    [error] = [line for line in lines if not line.startswith("warning: ")]
    return caught.value.code, error


def words_for(url, folder, model=http_server.NAME):
    return (
        *(TINY, f"--workdir={folder / 'run'}", "--config.engine.kind=http"),
        *(f"--config.engine.http.url={url}", f"--config.engine.http.model={model}"),
        f"--config.engine.http.sync_dir={folder / 'served'}",
    )


def test_nobody_listens(capsys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    code, error = refused(capsys, *words_for(url, tmp_path))
    assert code == 2
    assert all(word in error for word in ("no answer", "engine.http", url))
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


def test_another_model_is_served(world, tmp_path):
    server, _, policy = world
    settings = from_config(config(server.url, tmp_path, engine__http__model="qwen"))
    with pytest.raises(ConfigError, match=r"serves \['tiny'\], not 'qwen'"):
        engines.check_engine(policy, settings, make_run_mesh(settings))


def test_a_key_is_read_from_the_environment(world, tmp_path, monkeypatch):
    server, _, policy = world
    monkeypatch.setenv("SERVER_KEY", "key-of-mine")
    monkeypatch.setattr(server, "key", "key-of-another")
    name = {"engine__http__api_key_env": "SERVER_KEY"}
    given = config(server.url, tmp_path, **name)
    assert "key-of-mine" not in str(given)
    settings = from_config(given)
    with pytest.raises(ConfigError, match=r"status 401.*api_key_env") as caught:
        engines.check_engine(policy, settings, make_run_mesh(settings))
    assert "key-of-mine" not in str(caught.value)
    assert "key-of-mine" not in repr(settings)


def test_a_server_that_goes_away_stops_the_run(capsys, tmp_path, monkeypatch):
    def gone(*args):
        raise ServerError("8 requests in a row failed")

    monkeypatch.setattr(run, "run", gone)
    words = words_for("http://127.0.0.1:9", tmp_path)
    assert refused(capsys, *words) == (3, "error: 8 requests in a row failed")


def test_two_processes_sample_from_the_same_servers(world, tmp_path, compiled):
    """One publishes, the other waits; each asks for its share of the trajectories."""
    server, _, _ = world
    second = http_server.serve(server.engine, hf.load_params)
    with second as other:
        other.lock = server.lock  # they share an engine
        given = {
            "mesh.data": -1,
            "engine.kind": "http",
            "engine.http.url": f"{server.url},{other.url}",
            "engine.http.model": http_server.NAME,
            "engine.http.sync_dir": tmp_path / "served",
            "engine.http.reload": f"({http_server.RELOAD!r},)",
            "train.cold_start_steps": 0,
            "train.eval_tasks": 0,
            "train.steps": 1,
            "log.tensorboard": "false",
        }
        fields = [f"--config.{name}={value}" for name, value in given.items()]
        words = (TINY, f"--workdir={tmp_path / 'run'}", *fields)
        env = environment(compiled, devices=1)
        started = _processes.start("experiments.train", words, 2, env)
        for code, _, err in _processes.finish(started, timeout_s=200):
            assert code == 0, err
    [row] = read_metric_rows(tmp_path / "run" / "metrics.jsonl")
    assert row["log_prob_gap"] < 1e-4
    assert row["updates"] >= 1
    assert row["server_faults"] == 0
    turns = []
    for each in (server, other):
        paths = [path for path, _, _ in each.asked]
        # At the start, before compiling, and before each of three that could sample.
        assert paths.count("/reload") == 5, "by one process for both"
        turns += [body["seed"] for path, _, body in each.asked if path != "/reload"]
    # The check asks each server once for each process, with one key.
    assert len(turns) - len(set(turns)) == 3
