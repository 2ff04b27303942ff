"""A process that trains with mempo_jax.

python -m benchmarks._train_ours DIR B T THREADS
"""

from __future__ import annotations

import dataclasses
import sys

import jax
import numpy as np

from benchmarks import _train_batches as work
from mempo_jax.core import AdvantageSettings, CreditConfig
from mempo_jax.distributed.placement import make_mesh
from mempo_jax.models import hf
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.training import state as states
from mempo_jax.training.loss import ObjectiveSettings
from mempo_jax.training.step import TrainPrograms
from mempo_jax.types import Rows

SETTINGS = states.OptimiserSettings(
    learning_rate=work.LEARNING_RATE,
    warmup_steps=0,
    decay_steps=0,
    b1=work.BETAS[0],
    b2=work.BETAS[1],
    eps=work.EPS,
    weight_decay=work.DECAY,
    max_grad_norm=work.CLIP,
)


def main() -> None:
    directory, (rows, length, threads) = sys.argv[1], map(int, sys.argv[2:5])
    work.pin(threads)
    config, params, _ = hf.load(directory)
    mesh, optimiser = make_mesh(1, 1, 1), states.make_optimiser(SETTINGS)
    programs = TrainPrograms(
        LanguageModel(config, "float32"), mesh, optimiser, *unused()
    )
    held = [states.state_from_params(params, optimiser, mesh)]

    def step(given: dict) -> float:
        sums = programs.supervised_accumulate(
            held[0].params, programs.supervised_zeros(), as_rows(given)
        )
        held[0], figures = programs.apply(held[0], sums)
        jax.block_until_ready(held[0])
        return float(figures["loss"])

    shape = rows, length, config.vocab_size
    work.serve(step, shape, ["jax", "jaxlib", "optax", "flax"])


def as_rows(given: dict) -> Rows:
    tokens = given["tokens"]
    count, nothing = len(tokens), np.zeros(tokens.shape, np.int32)
    return Rows(
        **given,
        behaviour_log_probs=nothing.astype(np.float32),
        turn_id=nothing,
        op_id=nothing - 1,
        trajectory_index=np.arange(count, dtype=np.int32),
        valid=np.ones(count, bool),
    )


def unused() -> tuple:
    """Settings of reinforcement learning that a supervised step does not look at."""
    objective = ObjectiveSettings(
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=0.0,
        kl_estimator="k3",
        kl_scope="all",
        aggregation="token_mean",
        constant_length=1,
        importance_cap=0.0,
        logit_chunk=2_048,
    )
    credit = {field.name: 0.0 for field in dataclasses.fields(CreditConfig)}
    credit |= {"modes": ("uniform",), "attribution_form": "bonus", "gamma": 1.0}
    credit |= {"attribution_probe": "turn_reward", "counterfactual_evictions": True}
    return (
        objective,
        AdvantageSettings(eps=1e-4, ddof=0, divide_by_std=True, outcome_gate=True),
        CreditConfig(**credit),
    )


if __name__ == "__main__":
    main()
