"""bAbI stories (Weston et al. 2015), tasks 1, 2 and 6 mixed, a sentence a turn.

    python -m experiments.train --config=configs/babi.py \
        --config.env.data_dir=FOLDER --workdir=runs/babi

FOLDER holds the official files, qa1_*_train.txt, qa1_*_test.txt and so on. The policy
is `nano`, made here; the context is rebuilt each turn, so what is not in memory is
gone. README has the expected figures.
"""

from ml_collections import ConfigDict

from mempo_jax.configs import base


def get_config() -> ConfigDict:
    c = base.get_config()
    c.env.name = "babi"
    # Names and places differ in one word: word overlap tells them apart, and an update
    # ("John now at office" after "John now at garden") has 3 of 4 words in common.
    c.memory.embedder = "hashing"
    c.memory.merge_threshold = 0.6
    c.memory.capacity = 12
    c.memory.retrieval_top_k = 4
    c.context.write_reminder_every = 0
    c.context.max_context_tokens = 120
    c.sampling.prefill_buckets = (32, 64, 120)
    c.train.length_buckets = (36, 64, 88, 136)
    c.sampling.max_turns = 240  # stories have up to 130 lines; a question takes 2 or 3
    c.train.micro_batch_tokens = 1_024
    c.train.cold_start_steps = 500
    c.train.demonstrations = 512
    c.train.steps = 40
    c.train.decay_steps = 40
    c.credit.bonus_decay_steps = 0
    c.train.eval_tasks = 600
    return c
