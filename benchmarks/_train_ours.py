"""A process that trains with mempo_jax.

python -m benchmarks._train_ours DIR B T THREADS
"""

from __future__ import annotations

import sys

import jax
import numpy as np

from benchmarks import _train_batches as work
from configs.base import get_config
from mempo_jax.config import RunConfig, from_config
from mempo_jax.distributed.placement import make_mesh
from mempo_jax.models import hf
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.training import state as states
from mempo_jax.training.step import TrainPrograms
from mempo_jax.types import Rows


def main() -> None:
    directory, (rows, length, threads) = sys.argv[1], map(int, sys.argv[2:5])
    work.pin(threads)
    config, params, _ = hf.load(directory)
    settings = base()
    mesh, optimiser = make_mesh(1, 1, 1), states.policy_optimiser(settings.train)
    programs = TrainPrograms(
        LanguageModel(config, "float32"),
        mesh,
        optimiser,
        settings.objective,
        settings.credit,
        outcome_gate=settings.reward.outcome_gate,
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


def base() -> RunConfig:
    """configs/base.py with the optimiser of this comparison."""
    config = get_config()
    train = {"learning_rate": work.LEARNING_RATE, "warmup_steps": 0, "decay_steps": 0}
    train |= {"adam_b1": work.BETAS[0], "adam_b2": work.BETAS[1], "adam_eps": work.EPS}
    train |= {"weight_decay": work.DECAY, "grad_clip": work.CLIP, "minibatches": 1}
    config.train.update(train)
    return from_config(config.to_dict())


if __name__ == "__main__":
    main()
