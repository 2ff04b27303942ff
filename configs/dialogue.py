"""Long conversations in LoCoMo's form (Maharana et al. 2024), then their questions.

    python -m experiments.train --config=configs/dialogue.py \
        --config.env.data_dir=FILE.json --config.policy.path=DIR --workdir=runs/dialogue

FILE.json, or a folder of such files, holds the conversations; the later half of them is
held out. DIR is a policy that can read English; without it the built-in `nano` is made,
which learns the form of note-keeping and answers hardly any question. A conversation
takes 70 to 280 turns. The summary reports each category of questions apart.
"""

from ml_collections import ConfigDict

from mempo_jax.configs import base


def get_config() -> ConfigDict:
    c = base.get_config()
    c.env.name = "dialogue"
    c.env.dialogue.chunk_chars = 600
    c.context.instructions = "remember what is said, answer questions with act"
    c.context.max_context_tokens = 640
    c.context.write_reminder_every = 0
    c.memory.capacity = 0
    c.sampling.max_turns = 400
    c.sampling.max_new_tokens = 192  # four notes
    c.sampling.tasks_per_step = 2
    c.sampling.slots = 16
    c.sampling.prefill_buckets = (64, 256, 640)
    c.train.length_buckets = (256, 512, 832)
    c.train.micro_batch_tokens = 8_192
    c.train.demonstrations = 16
    c.train.cold_start_steps = 200
    c.train.cold_start_rows = 16
    c.train.steps = 40
    c.train.decay_steps = 0
    c.train.minibatches = 1
    c.train.eval_tasks = 64
    return c
