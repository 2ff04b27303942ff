"""A config whose whole run takes seconds: the main job with everything small."""

from ml_collections import ConfigDict

from mempo_jax.configs import base


def get_config() -> ConfigDict:
    c = base.get_config()
    c.env.ledger.min_turns = 2
    c.env.ledger.max_turns = 3
    c.env.ledger.min_delay = 1
    c.memory.embedder = "hashing"
    c.context.max_context_tokens = 64
    c.reward.outcome_gate = False  # so that penalties alone make updates
    c.policy.nano.layers = 1
    c.policy.nano.width = 16
    c.policy.nano.heads = 2
    c.policy.nano.mlp_width = 16
    c.sampling.group_size = 4
    c.sampling.tasks_per_step = 2
    c.sampling.slots = 8
    c.sampling.max_new_tokens = 12
    c.sampling.decode_chunk = 12
    c.sampling.prefill_buckets = (64,)
    c.train.steps = 4
    c.train.micro_batch_tokens = 640
    c.train.length_buckets = (80,)
    c.train.cold_start_steps = 30
    c.train.cold_start_rows = 16
    c.train.demonstrations = 32
    c.train.checkpoint_every = 1
    c.train.eval_tasks = 8
    c.log.trajectories_every = 1
    return c
