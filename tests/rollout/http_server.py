"""A small server with the completions API of vLLM, backed by an engine of ours.

It stands for a real one in tests: it samples with the same compiled programs, reads
new weights or adapters from a directory when told to, and can be told to misbehave or
to die.
"""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from mempo_jax.rollout.sampler import Request

NAME = "tiny"
RELOAD = '/reload {"model_path": "{directory}"}'


class Server(ThreadingHTTPServer):
    """Serves ``engine`` as the model "tiny" at ``url``.

    load: directory -> parameters, for POST /reload {"model_path": ...}, and for
    adapters, which it serves as vLLM does, each under its own name. port: 0 for any.
    ids: what the answers say of token ids: "ids" (as return_token_ids asks), "names"
    ("token_id:17") or "none". key: a bearer token that it wants. change: answer ->
    answer, made before it is sent. refusals: statuses of the next answers, which then
    do nothing else. retry_after: sent with them. slow_s: seconds before it answers.
    cut: bytes of the answer that are left out. dies_with: number of requests under way
    with which it dies, as if it were killed.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, engine, load=None, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.engine, self.load = engine, load
        self.lock = threading.Lock()
        self.dead = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked = []  # (path, headers, body) of each POST
        self.live = self.most_live = 0
        self.restore()

    def restore(self):
        """Behaves well again, and forgets what was asked."""
        self.ids, self.key, self.slow_s, self.cut = "ids", None, 0.0, 0
        self.change, self.refusals = lambda answer: answer, []
        self.retry_after, self.dies_with = None, 0
        self.adapters, self.using = {}, NAME  # by name; what the engine holds
        self.asked.clear()
        self.most_live = 0

    def die(self):
        """Answers nobody any more, not even who waits, and refuses connections."""
        self.dead.set()
        self.shutdown()
        self.server_close()

    def completion(self, body):
        prompt, seed = body["prompt"], body["seed"]
        if prompt and isinstance(prompt[0], list):
            each = [self.completion(body | {"prompt": one}) for one in prompt]
            choices = [{**a["choices"][0], "index": i} for i, a in enumerate(each)]
            return each[0] | {"choices": choices}
        key = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)
        with self.lock:
            if body["model"] != self.using:
                self.engine.set_params(self.adapters[body["model"]])
                self.using = body["model"]
            [made] = self.engine.generate(
                [Request(0, prompt, key, body["max_tokens"])],
                temperature=body["temperature"],
                top_p=body["top_p"],
                top_k=max(0, body["top_k"]),
            )
        names = [f"token_id:{t}" for t in made.tokens]
        if self.ids == "none" or not body.get("return_tokens_as_token_ids"):
            names = [f"piece {t}" for t in made.tokens]
        choice = {
            "index": 0,
            "text": made.text,
            "finish_reason": "length" if made.finish == "length" else "stop",
            "logprobs": {
                "tokens": names,
                "token_logprobs": [float(value) for value in made.log_probs],
            },
        }
        if self.ids == "ids" and body.get("return_token_ids"):
            choice |= {"token_ids": made.tokens, "prompt_token_ids": prompt}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(made.tokens)}
        return {"object": "text_completion", "choices": [choice], "usage": usage}

    def reload(self, body):
        with self.lock:
            self.engine.set_params(self.load(body["model_path"]))
        return {"success": True}

    def load_adapter(self, body):
        name = body["lora_name"]
        if name in self.adapters:
            return 400, {"error": {"message": f"'{name}' has already been loaded"}}
        self.adapters[name] = self.load(body["lora_path"])
        return 200, "Success: added."

    def unload_adapter(self, body):
        if self.adapters.pop(body["lora_name"], None) is None:
            return 404, {"error": {"message": "cannot be found"}}
        return 200, "Success: removed."


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def do_GET(self):
        names = [NAME, *self.server.adapters]
        data = [{"id": name, "object": "model"} for name in names]
        models = {"object": "list", "data": data}
        known = {"/health": None, "/v1/models": models}
        if self.path not in known:
            return self.send(404, {"error": {"message": "Not Found", "code": 404}})
        return self.send(200, known[self.path])

    def do_POST(self):
        size = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(size) or b"null")
        server = self.server
        server.asked.append((self.path, dict(self.headers), body))
        with server.lock:
            server.live += 1
            server.most_live = max(server.most_live, server.live)
            dies = server.live == server.dies_with
        if dies:
            server.die()
        if server.dies_with and not server.dead.wait(10):
            raise RuntimeError("nobody else came, so it did not die")
        time.sleep(server.slow_s)
        if server.dead.is_set():
            self.close_connection = True
            return
        status, answer = self.answer(body)
        with server.lock:
            server.live -= 1
        self.send(status, answer)

    def answer(self, body):
        server = self.server
        with server.lock:
            refusal = server.refusals.pop(0) if server.refusals else None
        if refusal:
            return refusal, {"error": {"message": "as told", "code": refusal}}
        if server.key and self.headers["Authorization"] != f"Bearer {server.key}":
            return 401, {"error": {"message": f"not {self.headers['Authorization']}"}}
        if self.path == "/reload":
            return 200, server.reload(body)
        if self.path == "/v1/load_lora_adapter":
            return server.load_adapter(body)
        if self.path == "/v1/unload_lora_adapter":
            return server.unload_adapter(body)
        if self.path != "/v1/completions":
            return 404, {"error": {"message": "Not Found"}}
        if body["model"] not in {NAME, *server.adapters}:
            message = f"The model `{body['model']}` does not exist."
            return 404, {"error": {"message": message, "code": 404}}
        return 200, server.change(server.completion(body))

    def send(self, status, content):
        text = content if isinstance(content, str) else json.dumps(content)
        data = b"" if content is None else text.encode()
        sent = data[: len(data) - self.server.cut]
        with contextlib.suppress(OSError):  # the client may have given up
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            if status != 200 and self.server.retry_after:
                self.send_header("Retry-After", self.server.retry_after)
            self.end_headers()
            self.wfile.write(sent)
            if self.server.cut:
                self.close_connection = True


@contextlib.contextmanager
def serve(engine, load=None, port=0):
    """A running ``Server``."""
    server = Server(engine, load, port)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        if not server.dead.is_set():
            server.shutdown()
            server.server_close()
