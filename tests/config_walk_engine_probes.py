"""The probe of ``config_walk_test`` for an engine over HTTP: all that leaves for it."""

import json
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from mempo_jax.builders.engines import make_http_engine
from mempo_jax.builders.policies import Policy
from mempo_jax.rollout import http_client, http_servers
from mempo_jax.rollout.sampler import Request
from tests.rollout import tiny

SERVER = {"engine.http.url": "http://one:1", "engine.http.model": "a"}
SERVER |= {"engine.http.sync_dir": "DATA"}
HTTP = SERVER | {"engine.kind": "http"}
STALE = HTTP | {"objective.importance_cap": 2.0, "train.eval_tasks": 0}
STALE |= {"train.max_log_prob_gap": 0.5}
# as in the table of ``config_walk_test``
ROWS = {
    "engine.kind": ("http", "remote", SERVER),
    "engine.http.url": ("http://two:2/", "remote", HTTP),
    "engine.http.model": ("b", "remote", HTTP),
    "engine.http.api_key_env": ("HOME", "remote", HTTP),
    "engine.http.timeout_s": (9.0, "remote", HTTP),
    "engine.http.retries": (1, "remote", HTTP),
    "engine.http.max_concurrent": (2, "remote", HTTP),
    "engine.http.sync": ("none", "remote", STALE),
    "engine.http.sync_dir": ("OTHER", "remote", HTTP),
    "engine.http.reload": (("/read {}",), "remote", HTTP),
    "engine.http.reload_timeout_s": (9.0, "remote", HTTP),
}


def remote(settings):
    """What a server is sent when weights change and three turns are asked for, each
    of which it refuses, and by how many threads."""
    if settings.engine.kind == "local":
        return "nothing"
    sent, asked = [], threading.Event()

    def exchange(method, url, headers, body, timeout_s):
        turn = url.endswith("/v1/completions")
        if turn:
            asked.wait(10)
        read = json.loads(body) if body else None
        sent.append((url, str(headers), str(read), timeout_s))
        return http_client.Reply(500 if turn else 200, b"")

    clock = SimpleNamespace(sleep=lambda seconds: None, monotonic=time.monotonic)
    written = []

    class Own(Policy):
        def save(self, directory, params, *, repeat_tied):
            written.append(str(directory))

    own = Own(config=tiny.CONFIG, model=None, tokenizer=tiny.TOKENIZER, params=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_client, "exchange", exchange)
        for module in (http_client, http_servers):  # both pause before another try
            patch.setattr(module, "time", clock)
        made = make_http_engine(own, settings)
        made.set_params({"w": np.zeros(1)})
        keys = np.zeros(2, np.uint32)
        made.submit([Request(n, [1, n], keys, 2) for n in range(3)], temperature=1.0)
        threads = made._threads.threads
        asked.set()
        while made.wait():
            pass
    return written, threads, sorted(sent, key=str)
