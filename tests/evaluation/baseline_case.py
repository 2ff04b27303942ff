"""Rules on a small ledger: what one needs to run them, without a model."""

import functools

from configs import base
from mempo_jax.config import from_config
from mempo_jax.envs import Episode
from mempo_jax.envs.ledger import LedgerSuite
from mempo_jax.evaluation import baselines
from mempo_jax.evaluation.baseline_readers import LedgerReader
from mempo_jax.evaluation.baselines import run_rule
from mempo_jax.memory import Bank, make_embedder
from mempo_jax.models.nano import build_nano

EMBEDDER = make_embedder("hashing")


@functools.cache
def settings(turns=14, capacity=4, context_tokens=96):
    c = base.get_config()
    c.env.ledger.min_turns = c.env.ledger.max_turns = turns
    c.env.ledger.min_delay = turns - 2  # the asked fact is the first or the second
    c.memory.capacity = capacity
    c.context.max_context_tokens = context_tokens
    c.sampling.prefill_buckets = (context_tokens,)
    c.train.length_buckets = (context_tokens + c.sampling.max_new_tokens,)
    c.train.micro_batch_tokens = 8 * c.train.length_buckets[0]
    return from_config(c.to_dict())


@functools.cache
def suite():
    return LedgerSuite(settings().env.ledger, 0)


@functools.cache
def tokenizer():
    texts = [
        settings().context.instructions,
        "turn 0/0 memory 0 :\n recalled nothing ;",
    ]
    numbers = [str(n) for n in range(60)]
    return build_nano(texts, [*suite().vocabulary(), *numbers])


def episode(name, task, s, env=None):
    context = baselines.context_of(name, s.context)
    bank = Bank(baselines.bank_of(name, s.memory), EMBEDDER, name)
    env = env or suite().make(task)
    return Episode(env, task, bank, s.sampling.max_turns, context, s.reward)


def make_rule(name, s, reader=None, rule=None, **more):
    rule = rule or baselines.RULES[name]
    context = baselines.context_of(name, s.context)

    def count(text):
        return len(tokenizer().encode(text))

    return rule(reader or LedgerReader(), s.memory, context, count, **more)


def run(name, index=0, s=None, *, env=None, reader=None, rule=None, speak=None, **more):
    """One trajectory of a rule on a held-out ledger task."""
    s = s or settings()
    task = suite().task("test", index)
    return run_rule(
        task,
        lambda: episode(name, task, s, env),
        lambda: make_rule(name, s, reader, rule, **more),
        tokenizer(),
        20.0,
        speak,
    )
