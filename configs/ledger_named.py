"""Ledger whose goal names the topics that matter, other ones in each task.

    python -m experiments.train --config=configs/ledger_named.py --workdir=runs/named

Nothing is labelled relevant. The policy has to compare the topic of a fact with the
three that the goal names; its thought, as demonstrated, repeats both. A wider network
than configs/base.py has. So far it learns nothing: sampled success 0.43 after the cold
start, 0.41 after 110 steps.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c = base.get_config()
    c.env.ledger.relevance = "named"
    c.policy.nano.width = 96
    c.policy.nano.mlp_width = 192
    c.credit.modes = ("ops_only", "counterfactual")
    return c
