"""Ledger with 40 facts: told by turn 3, asked at turn 40.

    python -m experiments.train --config=configs/ledger_long.py --workdir=runs/long

The memory holds 12 of 40 facts, so what was told first is pushed out unless the policy
has learnt what not to write. Demonstrations write three facts in ten. About four times
the tokens of configs/base.py. With 60 steps, about 12 minutes on one busy core: sampled
success 0.125 after the cold start, 0.875 [0.77, 0.94] trained (greedy 1.0, 64 tasks).
"""

from ml_collections import ConfigDict

from configs import base


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
    c.train.demonstrations = 512
    c.train.eval_tasks = 256
    c.credit.modes = ("ops_only", "counterfactual")
    return c
