"""How many more steps an hour does sampling one step ahead give?

    python -m benchmarks.steps_ahead [--steps=7] [--rounds=3]

The gain is the time in which sampling waits for others, so two HTTP servers and the
environments are stubs here that make it wait: each turn takes a server a while, and
each answer an environment. The servers compute nothing, a turn is one of a few fixed
texts; so what competes with training for the processor is the host's work alone.

The waits are chosen so that sampling takes about as long as training, where one step
ahead can gain most: twice the steps. ``sampling.steps_ahead`` 0 and 1 are measured in
turns, block by block. The first step of a block has nothing to overlap with and its
last one nothing to begin, so neither counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jax
import numpy as np

from benchmarks import _machine
from benchmarks.concurrent_environments import WORDS, Waiting
from mempo_jax.builders.policies import make_nano
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import RunConfig, from_config
from mempo_jax.configs import base
from mempo_jax.distributed.placement import make_mesh
from mempo_jax.training.loop import Trainer

TRAJECTORIES, TURNS = 32, 6
WIDTH, LAYERS = 256, 4  # of the policy: training outweighs the host's work
MODEL, RELOAD = "stub", "/reload"
ANY_GAP = 1e9  # nats; the log-probs of a stub are not the policy's


class Stub(ThreadingHTTPServer):
    """A completions server that waits, and then says one of a few texts.

    Args:
      tokenizer: of the policy.
    """

    daemon_threads = True
    request_queue_size = 2 * TRAJECTORIES

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seconds = 0.0
        texts = [f"<act> {word}</act>" for word in WORDS]
        self._turns = [(text, tokenizer.encode(text)) for text in texts]
        self.url = f"http://127.0.0.1:{self.server_port}"

    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        time.sleep(self.seconds)
        text, ids = self._turns[body["seed"] % len(self._turns)]
        ids = ids[: body["max_tokens"]]
        choice = {
            "index": 0,
            "text": text,
            "finish_reason": "stop",
            "token_ids": ids,
            "prompt_token_ids": body["prompt"],
            "logprobs": {
                "tokens": [f"token_id:{each}" for each in ids],
                "token_logprobs": [-1.0] * len(ids),
            },
        }
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        return {"object": "text_completion", "choices": [choice], "usage": usage}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: Any) -> None:
        """Prints nothing."""

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(size))
        reloads = self.path == RELOAD  # it takes any weights, and uses none
        answer = {"success": True} if reloads else self.server.completion(body)
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextlib.contextmanager
def stubs(tokenizer: Any, count: int = 2) -> Iterator[list[Stub]]:
    """Running servers."""
    servers = [Stub(tokenizer) for _ in range(count)]
    for server in servers:
        serve = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        serve.start()
    try:
        yield servers
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def settings_of(steps_ahead: int, urls: str = "", folder: str = "") -> RunConfig:
    """The main job on the waiting environment.

    Args:
      steps_ahead: as in the config.
      urls: of servers, with commas; "" for the local engine.
      folder: where weights are written for the servers.
    """
    config = base.get_config()
    config.env.name = f"{Waiting.__module__}:{Waiting.__name__}"
    config.sampling.group_size = 8
    config.sampling.tasks_per_step = TRAJECTORIES // 8
    config.sampling.slots = TRAJECTORIES
    config.sampling.drop_degenerate = False
    config.sampling.max_resample_rounds = 0
    config.sampling.max_turns = TURNS + 2
    config.sampling.steps_ahead = steps_ahead
    config.policy.nano.width = WIDTH
    config.policy.nano.mlp_width = 4 * WIDTH
    config.policy.nano.layers = LAYERS
    config.mesh.data = 1
    if steps_ahead or urls:
        config.objective.importance_cap = 2.0
    if urls:
        config.engine.kind = "http"
        config.engine.http.url, config.engine.http.model = urls, MODEL
        config.engine.http.sync_dir = folder
        config.engine.http.reload = (f'{RELOAD} {{"model_path": "{{directory}}"}}',)
        config.train.max_log_prob_gap = ANY_GAP
        config.train.eval_tasks = 0
    return from_config(config.to_dict())


def trainer_of(settings: RunConfig) -> Trainer:
    """A compiled trainer."""
    Waiting.seconds, Waiting.turns = 0.0, TURNS
    suite = make_suite(settings)
    policy = make_nano(suite, settings)
    trainer = Trainer(policy, suite, settings, make_mesh(1, 1, 1))
    trainer.warm_up()
    return trainer


def block(trainer: Trainer, first: int, steps: int) -> list[dict[str, float]]:
    """Runs steps ``first`` on; seconds of those between the first and the last."""
    rows, began = [], time.perf_counter()
    for metrics, _ in trainer.run(first, first + steps):
        ended = time.perf_counter()
        names = ("seconds_sampling", "seconds_waiting", "seconds_training")
        rows.append({"step": ended - began} | {name: metrics[name] for name in names})
        began = ended
    return rows[1:-1]


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.median([row[name] for row in rows])) for name in rows[0]}


def measure(
    trainers: dict[int, Trainer], wait: Callable[[float], None], steps: int, rounds: int
) -> float:
    """Prints seconds of a step at 0 and 1 ahead; the ratio of the steps an hour.

    Args:
      trainers: by ``steps_ahead``.
      wait: sets the seconds that a server and an environment wait together.
      steps: of a block.
      rounds: blocks of each, and one before that is not counted.
    """
    wait(0.0)
    block(trainers[0], 0, 3)
    base_s = medians(block(trainers[0], 3, 5))
    # All trajectories wait at the same time, once in each turn.
    spare_s = max(0.0, base_s["seconds_training"] - base_s["seconds_sampling"])
    answer_s = spare_s / TURNS
    wait(answer_s)
    seen: dict[int, list[dict[str, float]]] = {0: [], 1: []}
    number = 8
    for round_number in range(rounds + 1):
        for ahead, trainer in trainers.items():
            rows = block(trainer, number, steps)
            if round_number:
                seen[ahead] += rows
        number += steps
    print(
        f"{TRAJECTORIES} trajectories of {TURNS} turns, {answer_s:.3f} s of waiting in "
        f"each; {len(seen[0])} steps of each"
    )
    found = {ahead: medians(rows) for ahead, rows in seen.items()}
    for ahead, each in found.items():
        parts = ", ".join(
            f"{name.removeprefix('seconds_')} {each[name]:.2f}"
            for name in ("seconds_sampling", "seconds_waiting", "seconds_training")
        )
        print(
            f"  steps_ahead={ahead}: {each['step']:.2f} s a step, "
            f"{3600 / each['step']:,.0f} an hour ({parts} s)"
        )
    gain = found[0]["step"] / found[1]["step"]
    longest = max(found[0]["seconds_sampling"], found[0]["seconds_training"])
    most = found[0]["step"] / longest
    print(f"  x {gain:.2f}; x {most:.2f} if the shorter part cost nothing")
    return gain


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=7, help="of a block, at least 3")
    parser.add_argument("--rounds", type=int, default=3, help="blocks of each")
    args = parser.parse_args()
    facts = _machine.facts()
    print(f"jax {jax.__version__}; {facts['cores']} cores, load {_machine.load()}")

    settings = settings_of(0)
    tokenizer = make_nano(make_suite(settings), settings).tokenizer
    with stubs(tokenizer) as servers, tempfile.TemporaryDirectory() as folder:

        def wait(seconds: float) -> None:
            Waiting.seconds = seconds / 2
            for server in servers:
                server.seconds = seconds / 2

        urls = ",".join(server.url for server in servers)
        trainers = {
            ahead: trainer_of(settings_of(ahead, urls, f"{folder}/{ahead}"))
            for ahead in (0, 1)
        }
        measure(trainers, wait, args.steps, args.rounds)


if __name__ == "__main__":
    main()
