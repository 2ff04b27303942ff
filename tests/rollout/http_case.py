"""An ``HttpEngine`` for the tiny model, and requests for it."""

import numpy as np

from mempo_jax.memory import closing_tags
from mempo_jax.rollout.http_client import JsonClient
from mempo_jax.rollout.http_engine import HttpEngine
from mempo_jax.rollout.http_servers import Servers
from mempo_jax.rollout.sampler import Request
from tests.rollout import http_server, tiny


def make_client(url, **options):
    settings = {"api_key": "", "timeout_s": 20.0, "retries": 2, "pause_s": 0.01}
    return JsonClient(url, **{**settings, **options})


class Publication:
    """A publisher that hands weights to ``write`` and every server to ``send``."""

    served_as = ""

    def __init__(self, write, send=lambda client: None):
        self.write, self.send = write, send


def make_http_engine(url, client=None, *others, publish=None, **options):
    """For servers at ``url`` and at ``others``; ``publish``: a publisher, or what it
    writes with."""
    model = options.pop("model", http_server.NAME)
    if publish is not None and not hasattr(publish, "write"):
        publish = Publication(publish)
    clients = [client or make_client(url), *(make_client(each) for each in others)]
    settings = {
        "slots": 8,
        "max_length": tiny.LONGEST,
        "vocab_size": tiny.CONFIG.vocab_size,
        "closing_tags": closing_tags(),
        "max_concurrent": 4,
    }
    servers = Servers(clients, model, publish)
    engine = HttpEngine(servers, tiny.TOKENIZER, **{**settings, **options})
    if publish is None:
        engine.set_params({"any": 0})
    return engine


def requests(count=6, most=24):
    """Contexts of various lengths; keys below 2^63, which a seed carries whole."""
    ids = tiny.TOKENIZER.encode("one two three <mem_write> four five gold one two")
    return [
        Request(slot, ids[: 2 + slot], np.array([7, slot], np.uint32), most)
        for slot in range(count)
    ]
