"""A finished run's directory, made in no time: a policy that nobody trained."""

import json

from mempo_jax.builders.policies import write_config
from mempo_jax.models import hf
from tests.experiments import tiny as tiny_config
from tests.rollout import tiny


def config():
    """Small, on one device, for the policy of ``rollout.tiny``."""
    c = tiny_config.get_config()
    c.context.max_context_tokens = 120
    c.sampling.prefill_buckets = (120,)
    c.sampling.max_turns = 8
    c.sampling.max_new_tokens = 32
    c.train.length_buckets = (152,)
    c.train.micro_batch_tokens = 1_216
    c.mesh.data = 1
    return c


def save_policy(directory, seed=0, with_config=True):
    """A Hugging Face directory whose policy acts at random, tags being likely."""
    hf.save(directory, tiny.CONFIG, tiny.make_params(seed), tiny.TOKENIZER)
    if with_config:
        write_config(directory, config().to_dict())
    return directory


def save_run(directory):
    """What ``experiments.train`` leaves of a run, as far as others read it."""
    save_policy(directory / "policy", 0)
    save_policy(directory / "cold_start", 1, with_config=False)
    (directory / "config.json").write_text(json.dumps(config().to_dict()))
    return directory
