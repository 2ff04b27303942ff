"""Is a training step of ours as fast as one of transformers on torch?

    python -m benchmarks.train_step --torch=VENV/bin/python [--case=small]
        [--rounds=9] [--steps=3] [--threads=2] [--memory=plain] [--json=FILE]

Forward, backward, clipped AdamW in float32 on the same batches from the same Hugging
Face directory of random weights. Each side is a process of its own, in its own virtual
environment; they take turns, a few steps each, and who goes first changes. What is
compiled or cached by the first steps is left out. The losses of both must agree. On a
machine that does other work too, processor time says more than the clock.
Packages: benchmarks/requirements-train-step.txt.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from benchmarks import _machine, _tables

CASES = {  # rows, length, and the shape of a Llama
    "tiny": (2, 16, {"vocab_size": 64, "width": 16, "layers": 1, "heads": 2}),
    "small": (8, 256, {"vocab_size": 4_096, "width": 256, "layers": 6, "heads": 8}),
    "smollm2": (2, 256, {"vocab_size": 49_152, "width": 576, "layers": 4, "heads": 9}),
}
WARM_UP, AGREE = 2, 1e-3
HERE = pathlib.Path(__file__).parent
# glibc gives freed memory back to the system, and its fresh pages cost time at every
# step: more with us, where all temporary memory is one piece. "huge" makes them 2 MB
# where the system lets programs ask for that, "kept" keeps them.
MEMORY = {
    "plain": {},
    "huge": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "kept": {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": "2000000000",
    },
}


def main(arguments: list[str] | None = None) -> int:
    options = options_parser().parse_args(arguments)
    figures = run(options, _say)
    if options.json:
        path = pathlib.Path(options.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def run(options: argparse.Namespace, say) -> dict:
    """Rounds of steps on both sides; plain data, a table said at the end."""
    rows, length, shape = CASES[options.case]
    figures = {"case": options.case, "rows": rows, "length": length}
    figures |= {"machine": _machine.facts(), "load_before": _machine.load()}
    figures["memory"] = options.memory
    extra = MEMORY[options.memory]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        figures["parameters"] = _make_policy(pathlib.Path(folder), shape, length)
        given = (folder, *map(str, (rows, length, options.threads)))
        sides = {
            name: stack.enter_context(_process(command, options.threads, extra))
            for name, command in _commands(options, given).items()
        }
        figures["versions"] = {
            name: json.loads(side.stdout.readline())["versions"]
            for name, side in sides.items()
        }
        figures["sides"] = _measure(sides, options.rounds, options.steps)
    figures["load_after"] = _machine.load()
    say(_table(figures, options))
    return figures


def _commands(options: argparse.Namespace, given: tuple[str, ...]) -> dict:
    ours = (sys.executable, "-m", "benchmarks._train_ours", *given)
    file = str(HERE / "_train_torch.py")
    theirs = (options.torch, file, *given)
    return {"ours": ours, "torch": theirs} if options.torch else {"ours": ours}


@contextlib.contextmanager
def _process(
    command: tuple[str, ...], threads: int, extra: dict[str, str]
) -> Iterator[subprocess.Popen]:
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "JAX_PLATFORMS": "cpu"}
    for name in ("XLA_FLAGS", "GLIBC_TUNABLES"):
        environment.pop(name, None)
    environment |= extra
    process = subprocess.Popen(
        command,
        cwd=HERE.parent,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _measure(sides: dict, rounds: int, steps: int) -> dict:
    """By side: seconds and processor seconds [rounds] of a step (the median of a
    turn), and all losses."""
    made: dict[str, dict[str, list[float]]] = {
        name: {"seconds": [], "busy": [], "losses": []} for name in sides
    }
    names, first = list(sides), 0
    for turn in range(-1, rounds):  # -1: the warm-up
        count = WARM_UP if turn < 0 else steps
        for name in names[:: 1 if turn % 2 else -1]:
            answer = _ask(sides[name], first, count)
            made[name]["losses"] += answer["losses"]
            if turn >= 0:
                for what in ("seconds", "busy"):
                    made[name][what].append(statistics.median(answer[what]))
        first += count
    for name in names[1:]:
        _check_same(made[names[0]]["losses"], made[name]["losses"], name)
    return made


def _ask(side: subprocess.Popen, first: int, count: int) -> dict:
    side.stdin.write(f"{first} {count}\n")
    side.stdin.flush()
    line = side.stdout.readline()
    if not line:
        raise RuntimeError(f"a side ended with code {side.wait()}: see its error above")
    return json.loads(line)


def _check_same(ours: list[float], theirs: list[float], name: str) -> None:
    worst = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    if worst > AGREE:
        raise RuntimeError(
            f"losses of ours and of {name} differ by {worst:.2e}, expected at most "
            f"{AGREE}: the two sides did not do the same work"
        )


def _make_policy(folder: pathlib.Path, shape: dict, length: int) -> int:
    """Writes a random Llama; returns the number of its parameters."""
    import jax

    from mempo_jax.models import hf
    from mempo_jax.models.decoder import LanguageModel
    from mempo_jax.models.layers import DecoderConfig
    from mempo_jax.models.nano import build_nano

    width, heads = shape["width"], shape["heads"]
    config = DecoderConfig(
        **shape,
        kv_heads=heads // 3 if heads % 3 == 0 else heads // 2,
        head_dim=width // heads,
        mlp_width=width * 8 // 3 // 16 * 16,
        rope_theta=10_000.0,
        norm_eps=1e-5,
        tied=True,
        qkv_bias=False,
        qk_norm=False,
        max_positions=length,
    )
    params = jax.jit(LanguageModel(config, "float32").init)(jax.random.key(0))
    hf.save(folder, config, jax.device_get(params), build_nano(["text"], []))
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def _table(figures: dict, options: argparse.Namespace) -> str:
    sides, machine = figures["sides"], figures["machine"]
    tokens = figures["rows"] * figures["length"]
    lines = [
        f"{figures['case']}: {figures['parameters'] / 1e6:.1f} M parameters, "
        f"{figures['rows']} x {figures['length']} tokens, float32, {options.threads} "
        f"threads, {options.rounds} rounds of {options.steps} steps, memory: "
        f"{options.memory}",
        f"cpu: {machine['cpu']}, {machine['cores']} cores; load before "
        f"{figures['load_before']}, after {figures['load_after']}",
    ]
    lines += [f"{name}: {found}" for name, found in figures["versions"].items()]
    head = ("side", "median s", "fastest s", "cpu s", "tokens/s", "ours is faster")
    body = [(*head, "by cpu")]
    for name, side in sides.items():
        median = statistics.median(side["seconds"])
        wall, busy = (_ratio(sides["ours"], side, what) for what in ("seconds", "busy"))
        body.append(
            (
                name,
                f"{median:.3f}",
                f"{min(side['seconds']):.3f}",
                f"{statistics.median(side['busy']):.3f}",
                f"{tokens / median:,.0f}",
                f"{wall:.2f} x",
                f"{busy:.2f} x",
            )
        )
    return "\n".join([*lines, _tables.aligned(body)])


def _ratio(ours: dict, theirs: dict, what: str) -> float:
    """Median over the rounds of their time by ours of the same round."""
    return statistics.median(b / a for a, b in zip(ours[what], theirs[what]))


def options_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--torch", default="", help="a Python with torch; '': ours alone")
    add("--case", choices=sorted(CASES), default="small")
    add("--rounds", type=int, default=9)
    add("--steps", type=int, default=3, help="steps of a turn")
    add("--threads", type=int, default=2)
    add("--memory", choices=sorted(MEMORY), default="plain", help="pages, both sides")
    add("--json", default="", help="a file for all figures")
    return parser


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
