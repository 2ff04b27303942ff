"""Ledger with one block that is rewritten, in place of a memory bank.

    python -m experiments.train --config=configs/ledger_rolling.py \
        --workdir=runs/rolling

The task and the policy of configs/base.py; the context holds the goal, one `<mem>`
block and the last observation (after MEM1 and MemAgent). The block has room for four
facts as the bank of configs/base.py has, so the same selection has to be learnt; every
rewrite spells all facts again.
"""

from ml_collections import ConfigDict

from mempo_jax.configs import base


def get_config() -> ConfigDict:
    c = base.get_config()
    c.context.rule = "rolling"
    c.sampling.max_new_tokens = 32  # a thought and a block of four facts
    c.train.length_buckets = (48, 64, 128)
    c.credit.modes = ("ops_only", "answer_probability")
    c.credit.bonus_decay_steps = 0
    return c
