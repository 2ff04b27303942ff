"""Ledger whose goal names the topics that matter, other ones in each task.

    python -m experiments.train --config=configs/ledger_named.py --workdir=runs/named

To select, the policy has to compare the topic of a fact with the three that the goal
names. A network built from scratch cannot, and outcomes alone did not teach it within
110 steps. So demonstrations show how to compare: their thought repeats the three topics
and the fact's, and says yes or no. They write yes and no alike; that only "yes" is
worth a write is left to the outcomes.
"""

from ml_collections import ConfigDict

from mempo_jax.configs import base


def get_config() -> ConfigDict:
    c = base.get_config()
    c.env.ledger.relevance = "named"
    c.env.ledger.thought = "match"
    c.train.length_buckets = (44, 72, 112)
    c.train.cold_start_steps = 900  # after 450 a quarter of the thoughts say it wrong
    c.credit.modes = ("ops_only", "counterfactual")
    c.credit.bonus_decay_steps = 0
    return c
