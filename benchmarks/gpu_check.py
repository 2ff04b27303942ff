"""How near does a GPU come to its ceilings, and to what was planned for it?

    python -m benchmarks.gpu_check --out=DIR [--rehearse]

A random policy of the shape of Qwen2.5-0.5B in bfloat16: the compiled programs of a run
(prefill, decode, score, train step, optimiser update) are called on full arrays, one
after the other, without a host's work between them. Tokens a second, the share of the
chip's peak and bandwidth that this is, the most memory that was in use, beside the
plan for the same config. Writes DIR/gpu_check.json and .txt.

With two GPUs or more, the train step and decode are timed on two as well, with weights
split over fsdp and over tensor: tokens a second beside those of one.

--rehearse takes a tiny shape, on any backend: every line runs, the figures say nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _tables
from configs import qwen2_5_7b
from mempo_jax.distributed import placement
from mempo_jax.models.attention import chosen
from mempo_jax.models.families import config_json
from mempo_jax.planning import speed
from mempo_jax.planning.devices import CHIPS, GIB, Chip
from mempo_jax.planning.plan import with_changes
from mempo_jax.planning.programs import NAMES, Lowering, shape_of

ROOT = pathlib.Path(__file__).parents[1]
CHANGES = {
    "policy.path": "Qwen2.5-0.5B",
    "mesh.data": 1,
    "mesh.fsdp": 1,
    "mesh.tensor": 1,
    "sampling.decode_chunk": 64,
    "sampling.slots": 128,
    "sampling.prefill_buckets": (192,),
    "context.max_context_tokens": 896,
    "train.length_buckets": (1_024,),
    "train.micro_batch_tokens": 16_384,
}
SMALL = CHANGES | {
    "sampling.decode_chunk": 4,
    "sampling.max_new_tokens": 16,
    "sampling.slots": 4,
    "sampling.prefill_buckets": (16,),
    "context.max_context_tokens": 48,
    "train.length_buckets": (64,),
    "train.micro_batch_tokens": 128,
}
SMALL_SHAPE = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 8}
SMALL_SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
SMALL_SHAPE |= {"intermediate_size": 128}
ROUNDS = 5
# Ways to split weights over two devices, and what is timed on them.
ON_TWO = {"fsdp 2": {"mesh.fsdp": 2}, "tensor 2": {"mesh.tensor": 2}}
TIMED_ON_TWO = ("accumulate", "decode")
PLAN_S = {False: 80, True: 900}  # that planning may take; of a rehearsal


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, help="a folder for the results")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args(arguments)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    changes = dict(SMALL if options.rehearse else CHANGES)
    if options.rehearse:
        changes["policy.path"] = str(_small_policy(out / "policy"))
    found = jax.devices()[0]
    chip, known = chip_of(found.device_kind)
    made = {
        "device": found.device_kind,
        "ceilings_of": chip.name if known else f"{chip.name} (unknown device)",
        "jax": jax.__version__,
        "attention": kernel(changes),
        "rehearsal": options.rehearse,
        "plan": _plan(changes, f"{chip.name}-1", PLAN_S[options.rehearse]),
        "programs": measure(changes, chip),
        "two_devices": measure_two(changes, chip),
    }
    (out / "gpu_check.json").write_text(json.dumps(made, indent=1) + "\n")
    text = table(made)
    (out / "gpu_check.txt").write_text(text + "\n")
    print(text, flush=True)
    return 0


def kernel(changes: dict[str, Any]) -> str:
    """Names the attention kernel that a run with these changes uses on this backend."""
    policy = with_changes(qwen2_5_7b.get_config().to_dict(), changes).policy
    shape, _ = shape_of(policy.path, "policy.path")
    return chosen(policy.attention, policy.compute_dtype, shape.head_dim)


def chip_of(kind: str) -> tuple[Chip, bool]:
    """By the name that the driver gives; an H200 and False where it is none of ours."""
    name = kind.lower()
    for known in ("h200", "h100", "a100"):
        if known in name:
            small = known == "a100" and "40gb" in name
            return CHIPS["a100-40gb" if small else known], True
    return CHIPS["h200"], False


def measure_two(changes: dict[str, Any], chip: Chip) -> dict[str, dict[str, dict]]:
    """By way of splitting weights, as ``measure``; {} if there is one device."""
    if jax.device_count() < 2:
        return {}
    return {
        way: measure(changes | split, chip, TIMED_ON_TWO)
        for way, split in ON_TWO.items()
    }


def measure(
    changes: dict[str, Any], chip: Chip, names: Sequence[str] = NAMES
) -> dict[str, dict]:
    """By program: seconds of a call, tokens a second, shares, bytes."""
    settings = with_changes(qwen2_5_7b.get_config().to_dict(), changes)
    shape, _ = shape_of(settings.policy.path, "policy.path")
    axes = settings.mesh
    mesh = placement.make_mesh(axes.data, axes.fsdp, axes.tensor)
    # What a run would use here, and not the planner's kernel.
    lowering = Lowering(shape, settings, mesh, attention=settings.policy.attention)
    params = _random_params(lowering)
    made = {}
    for name in names:
        call = _Call(lowering, name, params)
        seconds = [_timed(call) for _ in range(ROUNDS + 1)][1:]
        took = statistics.median(seconds)
        made[name] = {"seconds": took, "all_seconds": seconds, "peak_bytes": _peak()}
        made[name] |= _shares(name, took, lowering, chip)
        del call
    return made


def _random_params(lowering: Lowering) -> Any:
    """Drawn where they stay: no device ever holds all of them."""
    shapes = lowering.shapes.params

    def draw(key: Any) -> Any:
        params = lowering.model.init(key)
        return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), params, shapes)

    where = jax.tree.map(lambda leaf: leaf.sharding, shapes)
    return jax.jit(draw, out_shardings=where)(jax.random.key(0))


class _Call:
    """One program with arguments in full size; what it consumes it gets back."""

    def __init__(self, lowering: Lowering, name: str, params: Any) -> None:
        jitted, shapes, static = lowering.call(name)
        # In the order of positions: what is donated, and where it comes back.
        self._donated = {"accumulate": 1, "apply": 0, "prefill": 1, "decode": 1}
        self._name, self._static = name, static
        args = [jax.tree.map(_array, each) for each in shapes]
        if name == "apply":
            args[0] = args[0]._replace(params=jax.tree.map(jnp.copy, params))
        else:
            args[0] = params
        if name in ("prefill", "decode"):
            args = self._started(name, args, lowering)
        self._args, self._jitted = args, jitted

    def _started(self, name: str, args: list, lowering: Lowering) -> list:
        """All slots, behind a context that fills half of the cache."""
        slots = args[3].shape[0] if name == "prefill" else args[4].shape[0]
        half = np.int32(lowering.settings.context.max_context_tokens // 2)
        half = jnp.full(slots, half, device=args[4].sharding)
        if name == "prefill":
            return [*args[:4], half]
        chunk = np.int32(lowering.settings.sampling.decode_chunk)
        limit = jnp.full(slots, chunk, device=args[6].sharding)
        drawing = args[-1]._replace(temperature=jnp.float32(1), top_p=jnp.float32(1))
        return [*args[:5], half, limit, *args[7:-1], drawing]

    def __call__(self) -> None:
        result = self._jitted(*self._args, **self._static)
        jax.block_until_ready(result)
        place = self._donated.get(self._name)
        if place is not None:
            self._args[place] = result if self._name == "prefill" else result[0]


def _array(shape: Any) -> Any:
    if shape is None:
        return None
    return jnp.zeros(shape.shape, shape.dtype, device=shape.sharding)


def _timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _peak() -> int | None:
    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("peak_bytes_in_use")


def _shares(name: str, took: float, lowering: Lowering, chip: Chip) -> dict:
    """Tokens a second, and parts of the chips' peak FLOP/s and bandwidth."""
    if name == "apply":
        return {}
    settings, shape = lowering.settings, lowering.model.config
    rows, length = lowering.row_shape
    slots = settings.sampling.slots
    context = settings.context.max_context_tokens // 2
    width = min(settings.sampling.prefill_buckets[-1], settings.max_segment_tokens)
    tokens, seen, passes = {
        "score": (rows * length, length / 2, 1),
        "accumulate": (rows * length, length / 2, 4 if settings.policy.remat else 3),
        "prefill": (slots * width, context, 1),
        "decode": (slots * settings.sampling.decode_chunk, context, 1),
    }[name]
    flops = tokens * passes * speed.token_flops(shape, seen, head=name != "prefill")
    chips = lowering.mesh.size
    of_peak = flops / took / chip.peak / chips
    made = {"tokens_per_s": tokens / took, "of_peak": of_peak}
    if name == "decode" and chips == 1:
        steps = settings.sampling.decode_chunk
        held = 2 * shape.layers * shape.kv_heads * shape.head_dim * context * slots
        read = 2 * (speed.matrix_parameters(shape) + held)  # bytes, bfloat16
        made["of_bandwidth"] = steps * read / took / chip.bandwidth
    return made


def _plan(changes: dict[str, Any], device: str, limit_s: float) -> dict[str, Any]:
    """The plan for the same config, made on the CPU in a process of its own."""
    words = [
        f"--config.{name}={','.join(map(str, v)) if isinstance(v, tuple) else v}"
        for name, v in changes.items()
    ]
    command = [sys.executable, "-m", "experiments.plan", f"--device={device}"]
    command += ["--config=configs/qwen2_5_7b.py", "--json", *words]
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {limit_s} s"}
    if done.returncode:
        return {"error": done.stderr.splitlines()[-1]}
    return json.loads(done.stdout)


def _small_policy(folder: pathlib.Path) -> pathlib.Path:
    """A directory with nothing but the config of a tiny decoder."""
    shape, _ = shape_of("Qwen2.5-0.5B", "policy.path")
    small = config_json(shape, [1], 0, "bfloat16") | SMALL_SHAPE
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(small))
    return folder


def table(made: dict) -> str:
    plan = made["plan"]
    lines = [
        f"{made['device']}, ceilings of {made['ceilings_of']}, jax {made['jax']}, "
        f"attention {made['attention']}"
        + (": A REHEARSAL, the figures say nothing" if made["rehearsal"] else "")
    ]
    if "error" in plan:
        lines.append(f"no plan: {plan['error']}")
    rows = [("program", "ms", "tokens/s", "of peak", "of bandwidth", "peak GiB so far")]
    for name, row in made["programs"].items():
        rows.append(
            (
                name,
                f"{row['seconds'] * 1e3:.2f}",
                _number(row.get("tokens_per_s"), "{:,.0f}"),
                _number(row.get("of_peak"), "{:.1%}"),
                _number(row.get("of_bandwidth"), "{:.1%}"),
                _number(row["peak_bytes"], "{:.3f}", GIB),
            )
        )
    lines.append(_tables.aligned(rows))
    lines += _two_devices(made)
    if "error" not in plan:
        standing, sums = sum(plan["stays"].values()), plan["gradients"]
        made_most = max(plan["programs"].values())
        lines.append(
            f"planned: {plan['sum'] / GIB:.3f} GiB at the most, in {plan['fullest']} "
            f"(stays {standing / GIB:.3f}, gradients {sums / GIB:.3f}, most that a "
            f"program makes {made_most / GIB:.3f})"
        )
    return "\n".join(lines)


def _two_devices(made: dict) -> list[str]:
    """What two devices did, as lines; says so if there was one."""
    if not made["two_devices"]:
        return ["two devices: not measured, there is one"]
    rows = [("two devices", "program", "ms", "tokens/s", "of one", "peak GiB so far")]
    for way, programs in made["two_devices"].items():
        for name, row in programs.items():
            one = made["programs"][name]["tokens_per_s"]
            rows.append(
                (
                    *(way, name, f"{row['seconds'] * 1e3:.2f}"),
                    f"{row['tokens_per_s']:,.0f}",
                    f"x {row['tokens_per_s'] / one:.2f}",
                    _number(row["peak_bytes"], "{:.3f}", GIB),
                )
            )
    return [_tables.aligned(rows)]


def _number(value: float | None, form: str, unit: float = 1) -> str:
    return "-" if value is None else form.format(value / unit)


if __name__ == "__main__":
    sys.exit(main())
