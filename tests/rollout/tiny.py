"""A tiny nano policy with random weights, and episodes to run it in."""

import jax
import jax.numpy as jnp
import numpy as np

from mempo_jax.core.log_probs import shifted_log_probs
from mempo_jax.envs import Task
from mempo_jax.memory import Bank, BankConfig, OpError, closing_tags, error_message
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.nano import build_nano, nano_config
from mempo_jax.rollout.collect import Collector, Job
from mempo_jax.rollout.engine import Engine
from mempo_jax.rollout.sampler import Decoding, Generation
from tests.envs.scripted_env import EMBEDDER, ScriptedEnv, context, limits, make_episode
from tests.rollout.at_once import AtOnce

WORDS = ("one", "two", "three", "four", "five", "gold", "use", "memory", "find")
TEXTS = (
    "turn 0/0 memory 0 (a, b): \nerror: \nrecalled nothing\n0: text",
    *(error_message(error) for error in OpError),
)
TOKENIZER = build_nano(TEXTS, WORDS)
LONGEST = 160
CONFIG = nano_config(
    TOKENIZER, width=16, layers=1, heads=2, mlp_width=24, max_positions=LONGEST
)
MODEL = LanguageModel(CONFIG, jnp.float32)
LINES = ("one two", "three", "four five", "one", "two three four")
LIKELY = {
    **{"<mem_write>": 1.1, "</mem_write>": 1.0, "<mem>": 0.8, "</mem>": 0.8},
    **{"<mem_recall>": 1.1, "</mem_recall>": 1.0, " one": 1.2, " two": 1.2},
    "<|end|>": 0.6,
}


def make_params(seed=0):
    """Random weights; tags are likely, so that ops happen, well and badly formed."""
    draw = np.random.default_rng(seed).normal
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0))
    params = jax.tree.map(lambda x: draw(0.1, 0.3, x.shape).astype(x.dtype), shapes)
    # The first coordinate of every state is large, and so is that of likely tokens.
    params["final_norm"]["scale"][:] = 1.0
    table = params["embed"]["embedding"]
    table *= 0.3
    table[:, 0] = 1.0
    for text, more in LIKELY.items():
        table[TOKENIZER.encode(text, control=True), 0] += more
    return params


def make_engine(slots=8):
    engine = Engine(
        MODEL,
        TOKENIZER,
        slots=slots,
        max_length=LONGEST,
        prefill_buckets=(32, LONGEST),
        decode_chunk=5,
        row_buckets=(2, slots),
        span_buckets=(LONGEST,),
        closing_tags=closing_tags(),
    )
    engine.set_params(make_params())
    return engine


class ScriptedEngine(AtOnce):
    """Stands for an engine: gives each slot's trajectory the texts of a script.

    ``script``: texts by turn; a text without a closing tag ends with a stop token.
    """

    def __init__(self, script, slots=8):
        self.script, self.slots = script, slots
        self.contexts = []
        self._turns = {}

    def generate(self, requests, *, temperature, top_p, top_k):
        return [self._one(request) for request in requests]

    def _one(self, request):
        self.contexts.append(request.tokens)
        turn = self._turns.get(request.slot, 0)
        self._turns[request.slot] = turn + 1
        text = self.script[turn % len(self.script)]
        closed = any(tag in text for tag in closing_tags())
        ids = TOKENIZER.encode(text) + ([] if closed else [TOKENIZER.stop_ids[0]])
        log_probs = -0.1 * np.arange(1, len(ids) + 1, dtype=np.float32)
        finish = "tag" if closed else "stop"
        return Generation(ids, log_probs, finish, TOKENIZER.decode(ids))


def jobs(count=8, step=0, seed=3, purpose="train"):
    task = Task("scripted", "train", 5, 0)
    return [Job(task, sample, seed, purpose, step) for sample in range(count)]


def make_collector(engine, rules=None, *, turns=6, env=None, timeout_s=20.0, workers=1):
    """``env``: job -> environment."""

    def make(job):
        bank = Bank(BankConfig(retrieval_top_k=3), EMBEDDER, f"{job.sample}")
        return make_episode(
            env(job) if env else ScriptedEnv(LINES),
            bank=bank,
            rules=rules or context(max_context_tokens=120),
            settings=limits(max_turns=turns),
        )

    return Collector(engine, TOKENIZER, make, timeout_s, workers=workers)


def decoding(temperature=1.0, max_new_tokens=10):
    return Decoding(temperature, 1.0, 0, max_new_tokens)


def score(tokens, temperature):
    """The trainer's log-probs [T] of one segment, padded to one fixed length."""
    padded = np.zeros((1, LONGEST), np.int32)
    padded[0, : len(tokens)] = tokens
    mask = np.arange(LONGEST)[None] < len(tokens)
    return np.asarray(_score(make_params(), padded, mask, temperature))[
        0, : len(tokens)
    ]


@jax.jit
def _score(params, tokens, mask, temperature):
    hidden = MODEL.hidden(params, tokens, mask)
    unembed = MODEL.unembed(params)
    return shifted_log_probs(
        hidden, unembed, tokens, temperature=temperature, mask=mask
    )
