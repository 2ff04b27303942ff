"""Ledger with 40 facts: told by turn 3, asked at turn 40.

    python -m experiments.train --config=configs/ledger_long.py --workdir=runs/long

The memory holds 12 of 40 facts, so what was told first is pushed out unless the policy
has learnt what not to write. Demonstrations write three facts in ten. About four times
the tokens of configs/base.py; about 12 minutes on two quiet cores. On 512 tasks success
is 0.109 after the cold start, then 0.973 [0.955, 0.984] sampled and 1.000 [0.993, 1]
greedy.
"""

from ml_collections import ConfigDict

from mempo_jax.configs import base


def get_config() -> ConfigDict:
    c = base.get_config()
    c.env.ledger.min_turns = 41  # 40 facts and the question
    c.env.ledger.max_turns = 41
    c.env.ledger.min_delay = 37  # the asked fact is one of the first four
    c.env.ledger.write_rate = 0.3
    c.memory.capacity = 12
    c.sampling.max_turns = 44
    c.sampling.tasks_per_step = 4
    c.sampling.slots = 32
    c.train.demonstrations = 1_024
    c.train.cold_start_steps = 600
    c.train.steps = 280
    c.train.decay_steps = 300
    c.credit.modes = ("ops_only", "counterfactual")
    c.credit.bonus_decay_steps = 140
    return c
