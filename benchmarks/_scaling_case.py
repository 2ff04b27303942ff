"""Three updates of a small decoder on one mesh; prints figures as one line of JSON.

python -m benchmarks._scaling_case --axes=2,2,2 --params=FILE [--coordinator=...]
"""

from __future__ import annotations

import argparse
import dataclasses
import json

import jax
import numpy as np

from benchmarks import _collectives, _train_batches
from benchmarks._train_ours import SETTINGS, as_rows, unused
from mempo_jax.distributed import hosts, placement
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.training import state as states
from mempo_jax.training.step import TrainPrograms, dummy_rows

ROWS, LENGTH, STEPS = 16, 64, 3
# The first steps of Adam are the sign of the gradient; of one that is 0 up to rounding
# that is a toss, unless eps is above the rounding.
EPS = 1e-5
CONFIG = DecoderConfig(
    vocab_size=512,
    width=64,
    layers=8,
    heads=8,
    kv_heads=8,
    head_dim=8,
    mlp_width=128,
    rope_theta=1e4,
    norm_eps=1e-6,
    tied=True,
    qkv_bias=False,
    qk_norm=False,
    max_positions=LENGTH,
)


def run(axes: tuple[int, int, int]) -> tuple[dict, dict]:
    """Losses, and what each program sends; and the parameters at the end."""
    mesh = placement.make_mesh(*axes)
    model = LanguageModel(CONFIG, "float32")
    optimiser = states.make_optimiser(dataclasses.replace(SETTINGS, eps=EPS))
    programs = TrainPrograms(model, mesh, optimiser, *unused())
    state = states.init_state(model.init, jax.random.key(0), optimiser, mesh)
    traffic = _traffic(programs, state)
    losses = []
    for step in range(STEPS):
        sums = programs.supervised_zeros()
        for part in range(2):
            given = _train_batches.batch(
                2 * step + part, ROWS, LENGTH, CONFIG.vocab_size
            )
            sums = programs.supervised_accumulate(state.params, sums, as_rows(given))
        state, figures = programs.apply(state, sums)
        losses.append(float(placement.to_host(figures["loss"])))
    return {"losses": losses, "traffic": traffic}, placement.to_host(state.params)


def _traffic(programs: TrainPrograms, state) -> dict[str, dict]:
    jitted = programs.jitted()
    jitted["accumulate"] = jitted["supervised"]
    rows = programs.place_rows(dummy_rows(ROWS, LENGTH))
    sums = programs.supervised_zeros()
    calls = {
        "score": (state.params, rows, np.float32(1)),
        "accumulate": (state.params, sums, rows),
        "apply": (state, sums),
    }
    return {
        name: _collectives.count(jitted[name].lower(*args).compile().as_text())
        for name, args in calls.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--axes", required=True)
    parser.add_argument("--params", required=True)
    parser.add_argument("--coordinator", default="")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int)
    given = parser.parse_args()
    hosts.start(given.coordinator, given.processes, given.process)
    with hosts.leaving():
        figures, params = run(tuple(map(int, given.axes.split(","))))
        if hosts.primary():
            flat, _ = jax.tree.flatten(params)
            np.savez(given.params, *flat)
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
