"""Counts the FLOPs of matrix products in the training half of a GRPO step.

    python -m benchmarks.update_flops [--config=configs/qwen2_5_7b.py]

Nothing is run or compiled: the programs are traced, and the products in them counted,
those of loops as often as the loop runs. Three ways to make one update over one
micro-batch are compared: with the policy and the reference scored beforehand (as is
still done for every update of a step but the first), with the reference alone, and,
at kl_coef = 0, with neither.
"""

import argparse
import importlib.util
import math
import pathlib

import jax
import numpy as np
from jax.extend import core

from mempo_jax.config import from_config
from mempo_jax.distributed import placement
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.planning.programs import Lowering

# 3.3 million parameters in the shape of Qwen2.
SMALL = DecoderConfig(
    vocab_size=4_096,
    width=192,
    layers=4,
    heads=6,
    kv_heads=2,
    head_dim=32,
    mlp_width=768,
    rope_theta=1e6,
    norm_eps=1e-6,
    tied=True,
    qkv_bias=True,
    qk_norm=False,
    max_positions=1_024,
)


def flops(jaxpr) -> int:
    """Counts two FLOPs for each multiplication of a product's operands."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            inner = math.prod(shape[axis] for axis in contracted)
            total += 2 * inner * math.prod(equation.outvars[0].aval.shape)
        times = _times(equation)
        total += times * sum(flops(inner) for inner in _inner(equation))
    return total


def _inner(equation) -> list:
    """The programs within an equation."""
    found = jax.tree.leaves(
        list(equation.params.values()),
        is_leaf=lambda x: isinstance(x, core.ClosedJaxpr | core.Jaxpr),
    )
    closed = [x.jaxpr for x in found if isinstance(x, core.ClosedJaxpr)]
    return closed + [x for x in found if isinstance(x, core.Jaxpr)]


def _times(equation) -> int:
    """How often the inner programs run; a loop over logits as often as it may."""
    if equation.primitive.name == "scan":
        return equation.params["length"]
    if equation.primitive.name != "while":
        return 1
    # It takes a slice of the tokens' order, [rows, tokens], at each round.
    order = [v.aval for v in equation.invars if v.aval.dtype == np.int32]
    longest = max(aval.shape[1] for aval in order if len(aval.shape) == 2)
    slices = [
        inner.params["slice_sizes"][1]
        for inner in equation.params["body_jaxpr"].jaxpr.eqns
        if inner.primitive.name == "dynamic_slice"
        and len(inner.params["slice_sizes"]) == 2
    ]
    return -(-longest // min(slices))


def measure(lowering: Lowering) -> dict[str, int]:
    """FLOPs of the passes over one micro-batch, by name."""

    def count(name: str, change=lambda args: args) -> int:
        jitted, args, static = lowering.call(name)
        return flops(jitted.trace(*change(args), **static).jaxpr.jaxpr)

    def given(args):
        params, sums, rows, _, ref, *others = args
        return params, sums, rows, rows.behaviour_log_probs, ref, *others

    def alone(args):
        params, sums, rows, _, _, *others = args
        return params, sums, rows, None, None, *others

    return {
        "score": count("score"),
        "gradient, old log-probs given": count("accumulate", given),
        "gradient, which gives them": count("accumulate"),
        "gradient, without KL": count("accumulate", alone),
    }


def load(path: str):
    """The config of a file."""
    spec = importlib.util.spec_from_file_location("config", pathlib.Path(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/base.py")
    parser.add_argument("--shape", default="small", help="small, or a name to plan")
    given = parser.parse_args()
    config = load(given.config)
    config.policy.path = ""
    shape = SMALL
    if given.shape != "small":
        from mempo_jax.planning.programs import shape_of

        shape, _ = shape_of(given.shape, "--shape")
    settings = from_config(config.to_dict())
    passes = measure(Lowering(shape, settings, placement.make_mesh(1, 1, 1)))
    score = passes["score"]
    ways = {
        "policy and reference scored": 2 * score
        + passes["gradient, old log-probs given"],
        "reference scored": score + passes["gradient, which gives them"],
        "nothing scored (kl_coef = 0)": passes["gradient, without KL"],
    }
    print(f"{given.config}, {given.shape}; jax {jax.__version__}")
    for name, count in passes.items():
        print(f"{name:32} {count / 1e9:10.2f} GFLOP")
    whole = next(iter(ways.values()))
    for name, count in ways.items():
        print(f"{name:32} {count / 1e9:10.2f} GFLOP  {count / whole:6.1%}")


if __name__ == "__main__":
    main()
