"""Does a decode step gather weights, by the TPU's own compiler?

    python -m benchmarks.decode_gathers [--device=v5e-4] [--layers=28] [--json=FILE]

The decode program of Qwen2.5-7B (configs/qwen2_5_7b.py) on the chips of one host is
compiled ahead of time, by the compiler that the extra [tpu] brings; no TPU is needed
and nothing runs. Two runs are compared, both training with weights split over fsdp: one
samples as it trains, the other on a mesh of its own, ``mesh.sampling`` with tensor.

What the compiled program sends in one turn of its loop, that is for one token of every
slot, is read from its text: kernels that are gathered, and everything else. The memory
that the program needs besides its arguments is the compiler's own figure. There is no
time in this table: a compiler measures none.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import sys
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # what is compiled for is no backend

import jax

from benchmarks import _tables
from benchmarks._collectives import Operation, in_one_turn
from configs import qwen2_5_7b
from mempo_jax.distributed import placement
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.planning.devices import GIB, device, tpu_devices
from mempo_jax.planning.plan import with_changes
from mempo_jax.planning.programs import Lowering, shape_of
from mempo_jax.settings import ConfigError

POLICY = "Qwen2.5-7B-Instruct"  # its shape is known; no weights are read


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="v5e-4", help="of one host, see the planner"
    )
    parser.add_argument("--layers", type=int, default=0, help="0: all of the policy")
    parser.add_argument("--json", type=pathlib.Path, help="a file for the figures")
    options = parser.parse_args(arguments)
    shape, _ = shape_of(POLICY, "policy.path")
    if options.layers:
        shape = dataclasses.replace(shape, layers=options.layers)
    try:
        chips = tpu_devices(device(options.device))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    made = {}
    for name, changes in cases(len(chips)).items():
        print(f"compiling: {name} ...", file=sys.stderr, flush=True)
        made[name] = measure(shape, chips, changes)
    if options.json:
        options.json.write_text(json.dumps(made, indent=1) + "\n")
    print(table(made))
    return 0


def cases(chips: int) -> dict[str, dict[str, int]]:
    """Overrides of the config by what the rows of the table are called."""
    train = {"mesh.fsdp": chips, "mesh.tensor": 1}
    own = {"mesh.sampling.fsdp": 1, "mesh.sampling.tensor": chips}
    return {
        f"as it trains, fsdp {chips}": train,
        f"mesh.sampling, tensor {chips}": train | own,
    }


def measure(
    shape: DecoderConfig, chips: list[Any], changes: dict[str, Any]
) -> dict[str, Any]:
    """What one decode step sends, and what the program needs.

    Args:
      shape: of the policy.
      chips: of one host, to compile for.
      changes: of configs/qwen2_5_7b.py, by dotted name.
    """
    # As many slots as one of the config's four hosts has.
    changes = {"policy.path": POLICY, "sampling.slots": 16} | changes
    settings = with_changes(qwen2_5_7b.get_config().to_dict(), changes)
    axes = settings.mesh
    mesh = placement.make_mesh(axes.data, axes.fsdp, axes.tensor, devices=chips)
    # Scanned as the whole policy is, also if only some of its layers are compiled.
    lowering = Lowering(shape, settings, mesh, unroll=False)
    compiled = lowering.lower("decode").compile()
    kernels = kernel_shapes(lowering.shapes.sampled, lowering.engine_mesh)
    gathered, other = [], []
    for operation, times in in_one_turn(compiled.as_text()):
        of_kernel = any(shape in kernels for shape in plain(operation))
        (gathered if of_kernel else other).append((operation, times))
    memory = compiled.memory_analysis()
    return {
        "kernels": sum(times for _, times in gathered),
        "kernel_bytes": sum(times * each.sent for each, times in gathered),
        "others": sum(times for _, times in other),
        "other_bytes": sum(times * each.sent for each, times in other),
        "made": memory.temp_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
    }


def plain(operation: Operation) -> list[tuple[int, ...]]:
    """The shapes of an operation's results in ascending order, without sides of 1.

    A compiler may turn a matrix, or keep the layer as a side of 1 beside it.
    """
    return [tuple(sorted(n for n in shape if n > 1)) for shape in operation.shapes]


def kernel_shapes(params: Any, mesh: Any) -> set[tuple[int, ...]]:
    """The shapes that a kernel, or a part of one, may be moved in, as ``plain``.

    Args:
      params: of the policy, matrices stacked by layer or not.
      mesh: on which it samples; an axis splits at most one side of a kernel.
    """
    parts = {1, *mesh.shape.values()}
    found = set()
    for leaf in jax.tree.leaves(params):
        *stacked, inner, outer = (
            (1, *leaf.shape) if len(leaf.shape) == 1 else leaf.shape
        )
        for i, j in itertools.product(parts, parts):
            one = [n for n in (inner // i, outer // j) if n > 1]
            # A vector is a bias, a scale, or the state of one row.
            if inner % i == 0 and outer % j == 0 and len(one) == 2:
                found |= {tuple(sorted(one)), tuple(sorted([*stacked, *one]))}
    return found


def table(made: dict[str, dict[str, Any]]) -> str:
    """One line for each case; bytes are of one chip and one decode step."""
    rows = [("sampling", "kernels moved", "MB", "other", "MB", "made, GiB")]
    for name, row in made.items():
        rows.append(
            (
                name,
                str(row["kernels"]),
                f"{row['kernel_bytes'] / 1e6:,.1f}",
                str(row["others"]),
                f"{row['other_bytes'] / 1e6:,.3f}",
                f"{row['made'] / GIB:.3f}",
            )
        )
    return _tables.aligned(rows)


if __name__ == "__main__":
    sys.exit(main())
