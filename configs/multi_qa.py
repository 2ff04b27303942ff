"""Several questions as one task, with a local search, over HotpotQA-format files.

    python -m experiments.train --config=configs/multi_qa.py \
        --config.env.data_dir=FOLDER --workdir=runs/multi_qa

FOLDER holds one .json or .jsonl file in HotpotQA's form (Yang et al. 2018); its
paragraphs are what is searched. The policy is `nano`, made here, which learns the form
and reads badly: set --config.policy.path to a language model for answers worth having.
The context is rebuilt each turn, so what was found and not written is gone.
"""

from ml_collections import ConfigDict

from mempo_jax.configs import base


def get_config() -> ConfigDict:
    c = base.get_config()
    c.env.name = "multi_qa"
    c.env.multi_qa.passages = 3
    c.env.multi_qa.passage_chars = 320
    c.env.multi_qa.note_chars = 240
    c.env.multi_qa.vocabulary_words = 6_000
    c.env.multi_qa.write_rate = 0.8
    c.context.instructions = (
        "Answer all questions. Use <act>search: words</act>, write what you need to "
        "memory, recall it, and end with <answer>1: ...; 2: ...</answer>"
    )
    c.context.write_reminder_every = 0
    c.context.summary_titles = 0
    c.context.max_context_tokens = 640
    c.memory.capacity = 16
    c.memory.max_entry_chars = 800
    c.sampling.prefill_buckets = (64, 160, 320, 640)
    c.sampling.max_turns = 24  # 2 questions of 2 hops take their expert at most 17
    c.sampling.max_new_tokens = 96
    c.sampling.tasks_per_step = 4
    c.sampling.slots = 32
    c.train.length_buckets = (320, 736)
    c.train.micro_batch_tokens = 2_944
    c.train.cold_start_rows = 16
    c.train.demonstrations = 512
    c.train.eval_tasks = 128
    return c
