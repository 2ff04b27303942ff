"""Time-outs, retries, and errors that say what came."""

import datetime
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from mempo_jax.rollout import http_client
from mempo_jax.rollout.http_client import (
    LONGEST_ASKED_PAUSE_S,
    ServerError,
    ServerFaultError,
)
from tests.rollout import http_server
from tests.rollout.http_case import make_client


class Plain(http_server.Server):
    """Answers /v1/completions with what it was asked, without any engine."""

    def completion(self, body):
        return body


@pytest.fixture(scope="module")
def running():
    server = Plain(None)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def server(running):
    yield running
    running.restore()


BODY = {"model": http_server.NAME, "prompt": [1, 2]}
PATH = "/v1/completions"


def test_an_answer_comes_back_as_it_is(server):
    for url in (server.url, server.url + "/", server.url + "/v1"):
        assert make_client(url).post(PATH, BODY) == BODY
    assert make_client(server.url).get("/health") is None


@pytest.mark.parametrize("status", [429, 500, 503])
def test_two_failures_are_retried(server, status):
    server.refusals = [status, status]
    assert make_client(server.url).post(PATH, BODY) == BODY
    assert len(server.asked) == 3


@pytest.mark.parametrize("status", [400, 403, 404, 422])
def test_a_refusal_is_not_retried(server, status):
    server.refusals = [status]
    with pytest.raises(ServerError, match=f"status {status}: as told") as caught:
        make_client(server.url).post(PATH, BODY)
    assert not isinstance(caught.value, ServerFaultError)
    assert len(server.asked) == 1


def test_pauses_grow(server, monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", lambda s: pauses.append(s) if s else None)
    server.refusals = [500] * 9
    with pytest.raises(ServerFaultError, match="9 tries"):
        make_client(server.url, retries=8, pause_s=1.0).post(PATH, BODY)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]


LATER = "Tue, 01 Dec 2026 12:00:{:02d} GMT"


@pytest.mark.parametrize(
    ("status", "retry_after", "pause_s"),
    [
        (429, "7", 7),
        (503, "7", 7),
        (503, LATER.format(12), 7),
        (503, LATER.format(12).replace("GMT", "-0000"), 7),
        (503, "0", 1),  # the client's own pause is the least
        (503, LATER.format(0), 1),  # over
        (429, "3600", LONGEST_ASKED_PAUSE_S),
        (429, "9" * 5000, LONGEST_ASKED_PAUSE_S),
        (429, LATER.format(0).replace("2026", "2036"), LONGEST_ASKED_PAUSE_S),
        (429, "soon", 1),
        (429, "-5", 1),
        (500, "7", 1),  # means nothing there
    ],
)
def test_a_pause_that_the_server_asks_for(
    server, monkeypatch, status, retry_after, pause_s
):
    pauses = []
    now = datetime.datetime(2026, 12, 1, 12, 0, 5, tzinfo=datetime.UTC).timestamp()
    clock = {"sleep": pauses.append, "time": lambda: now, "monotonic": time.monotonic}
    monkeypatch.setattr(http_client, "time", SimpleNamespace(**clock))
    server.refusals, server.retry_after = [status], retry_after
    assert make_client(server.url, pause_s=1.0).post(PATH, BODY) == BODY
    assert pauses == [pause_s]


def test_a_slow_server_runs_out_of_time(server):
    server.slow_s = 0.6
    with pytest.raises(ServerFaultError, match=r"no answer within 0\.1 s .*2 tries"):
        make_client(server.url, timeout_s=0.1, retries=1).post(PATH, BODY)


def test_bytes_that_drip_in_run_out_of_time_too():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip():
            connection, _ = listener.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
                for _ in range(98):  # of the 99 that it promised
                    time.sleep(0.05)
                    try:
                        connection.sendall(b" ")
                    except OSError:
                        return

        threading.Thread(target=drip, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ServerFaultError, match="no answer within"):
            make_client(url, timeout_s=0.2, retries=0).post(PATH, BODY)


def test_headers_that_drip_in_run_out_of_time_too():
    """Each comes in time, all together do not."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            connection, _ = listener.accept()
            with connection:
                try:
                    connection.recv(1 << 16)
                    connection.sendall(b"HTTP/1.1 200 OK\r\n")
                    for number in range(40):
                        time.sleep(0.1)
                        connection.sendall(b"X-%d: y\r\n" % number)
                except OSError:
                    pass  # the client has given up

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        client = make_client(
            f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.4, retries=0
        )
        with pytest.raises(ServerFaultError, match=r"no answer within 0\.4 s"):
            client.get("/health")
        thread.join(5)


def test_json_that_is_cut_off(server):
    server.cut = 5
    with pytest.raises(ServerFaultError, match=r"no whole JSON|no answer"):
        make_client(server.url, retries=1).post(PATH, BODY)
    assert len(server.asked) == 2


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ServerFaultError, match=r"no answer: .*refused.*1 try"):
        make_client(f"http://127.0.0.1:{port}").get("/v1/models", retries=0)


def test_the_key_is_sent_and_never_shown(server):
    server.key = "right-secret"
    assert make_client(server.url, api_key="right-secret").post(PATH, BODY) == BODY
    with pytest.raises(ServerError, match="api_key_env") as caught:
        make_client(server.url, api_key="wrong-secret").post(PATH, BODY)
    assert "secret" not in str(caught.value)
    assert "***" in str(caught.value)
