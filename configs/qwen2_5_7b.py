"""Qwen2.5-7B-Instruct on the `ledger` in words, for a slice of 16 TPU v5e chips.

    python -m experiments.train --config=configs/qwen2_5_7b.py \
        --config.policy.path=FOLDER --workdir=runs/qwen2_5_7b

FOLDER is the Hugging Face directory of Qwen2.5-7B-Instruct (safetensors, 15 GB); on a
slice of several hosts, each host sees it under the same path. All weights are trained.

Hardware: 16 chips of 16 GiB (v5e-16), as fsdp 4 x tensor 4. On 4 chips of 95 GiB
(v5p-8) add --config.mesh.fsdp=1.

Memory, by experiments.plan with --device=v5e-16 (4 hosts): 15.4 GiB of 15.8 that a chip
has to give, most of it in the train step (an estimate in what the programs make). The
TPU's own compiler, asked about all 28 layers, says 14.8. What is trained takes 14 bytes
a parameter: float32 masters and two moments (12), and the bfloat16 copy that passes
take (2). With train.micro_batch_tokens=16384 it is 16.0 GiB (15.9 by the TPU's
compiler), which does not fit. Nor does fsdp 16: the train step then needs 20.2 GiB
(16.5). Contexts of 8,192 tokens need adapters (policy.lora.rank=32) or more chips.

Sampling: each host samples on its own four chips, which tensor 4 makes one copy of the
weights, so no weight is gathered to decode a token. mesh.sampling would change nothing
here: the plan is the same with it, 89 s a step. One host with eight chips (h100-8)
trains as fsdp 2 x tensor 4, and there --config.mesh.sampling.fsdp=1 saves the gathers.

Result: not run.
"""

from ml_collections import ConfigDict

from mempo_jax.configs import base, smollm2_135m


def get_config() -> ConfigDict:
    c = base.get_config()
    c.policy.path = "models/Qwen2.5-7B-Instruct"
    c.policy.param_dtype = "bfloat16"
    c.policy.compute_dtype = "bfloat16"
    c.policy.remat = True
    c.mesh.fsdp = 4
    c.mesh.tensor = 4

    c.env.ledger.min_turns = 8
    c.env.ledger.max_turns = 16
    c.context.reminder = smollm2_135m.REMINDER
    c.context.max_context_tokens = 832
    c.sampling.max_new_tokens = 128
    c.sampling.prefill_buckets = (64, 192, 832)
    c.train.length_buckets = (256, 512, 960)

    c.sampling.group_size = 8
    c.sampling.tasks_per_step = 16
    c.sampling.slots = 64
    c.train.micro_batch_tokens = 7_680  # more does not fit a chip of 16 GiB
    c.train.learning_rate = 1e-6
    c.train.warmup_steps = 5
    c.train.decay_steps = 0
    c.train.steps = 200
    c.train.demonstrations = 512
    c.train.cold_start_steps = 20  # it can follow the instructions already
    c.train.cold_start_learning_rate = 1e-6
    return c
