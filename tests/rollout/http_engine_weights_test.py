"""New weights reach a server through a directory that it is told to read."""

import json
import subprocess
import sys

import numpy as np
import pytest

from mempo_jax.models import hf
from mempo_jax.rollout.http_client import Call, ServerError, read_call
from mempo_jax.rollout.http_servers import LOCK, DirectoryPublisher, check_directory
from tests.rollout import http_server, tiny
from tests.rollout.http_case import make_http_engine, requests


def save(directory, params):
    hf.save(directory, tiny.CONFIG, params, tiny.TOKENIZER)


def publisher(directory):
    return DirectoryPublisher(directory, save, [read_call(http_server.RELOAD)], 20.0)


def test_the_server_samples_with_the_new_weights(local, tmp_path):
    engine = local
    with http_server.serve(engine, hf.load_params) as server:
        remote = make_http_engine(server.url, publish=publisher(tmp_path / "w"))
        remote.set_params(tiny.make_params(seed=1))
        got = remote.generate(requests(3), temperature=0.9)
    engine.set_params(tiny.make_params(seed=1))
    expected = engine.generate(requests(3), temperature=0.9)
    assert [made.tokens for made in got] == [made.tokens for made in expected]
    for made, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(made.log_probs, other.log_probs, atol=1e-4)
    engine.set_params(tiny.make_params())
    before = engine.generate(requests(3), temperature=0.9)
    assert [made.tokens for made in got] != [made.tokens for made in before]


def test_calls_are_made_in_order_with_the_path_filled_in(tmp_path):
    calls = []

    class Client:
        url = "http://x"

        def post(self, path, body, *, timeout_s):
            calls.append((path, body, timeout_s))

    wrote = []
    lines = ('/a {"in": ["{directory}/x", 3]}', "/b")
    publish = DirectoryPublisher(
        tmp_path / "w",
        lambda directory, params: wrote.append((directory, params, len(calls))),
        [read_call(line) for line in lines],
        7.0,
    )
    publish.write("params")
    publish.send(Client())
    assert wrote == [(tmp_path / "w", "params", 0)]
    assert calls == [
        ("/a", {"in": [f"{tmp_path}/w/x", 3]}, 7.0),
        ("/b", None, 7.0),
    ]


def test_a_server_that_does_not_take_them_is_an_error(tmp_path):
    class Client:
        url = "http://x"

        def post(self, path, body, *, timeout_s):
            return {"success": False, "message": "shapes differ"}

    calls = [Call("/reload", None)]
    publish = DirectoryPublisher(tmp_path, lambda *_: None, calls, 1.0)
    with pytest.raises(ServerError, match=r"did not take the .*shapes differ"):
        publish.send(Client())


HOLD = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_process_alone_writes_to_a_directory(tmp_path):
    wrote = []

    def make():
        save = lambda *given: wrote.append(given)  # noqa: E731
        return DirectoryPublisher(tmp_path, save, [], 1.0)

    publish, again = make(), make()
    command = [sys.executable, "-S", "-c", HOLD, tmp_path / LOCK]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ServerError, match="another process writes its weights"):
            publish.write("mine")
        assert not wrote
        other.communicate("")
    publish.write("mine")
    again.write("mine too")
    assert len(wrote) == 2
    code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | 4)"
    late = [sys.executable, "-S", "-c", code, tmp_path / LOCK]
    assert subprocess.run(late, capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize("line", ["reload", "", "/reload {", "/reload model"])
def test_a_call_that_cannot_be_read(line):
    with pytest.raises(ValueError, match=r"expected '/path'|no JSON"):
        read_call(line)


def test_weights_that_would_stand_beside_ours_are_refused(tmp_path):
    check_directory(tmp_path / "new")
    (tmp_path / "config.json").write_text(json.dumps({}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    check_directory(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="model-00001-of-00002"):
        check_directory(tmp_path)
