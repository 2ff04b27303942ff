"""Do several devices and several processes train as one device does?

    python -m benchmarks.processes [--layouts=1x8:8,1,1;2x4:2,2,2] [--steps=3]
        [--faults=4] [--folder=DIR]

A layout is PROCESSES x DEVICES OF EACH : data, fsdp, tensor. Each is a whole small run
of experiments.train on virtual CPU devices: cold start, evaluation, steps. The table
shows how far loss, gradient norm and parameters are from those of one device. All
processes share the cores of this machine: the seconds say nothing of speed.

--faults=N: in a run of N processes the last one gets SIGTERM, and in another SIGKILL,
behind the first step. The table shows how all of them ended, and how soon; then the
same command continues, and must come to the end of the run that nothing stopped.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from benchmarks import _processes
from benchmarks._tables import aligned

ALL = (
    *("1x8:8,1,1", "1x8:2,4,1", "1x8:2,2,2"),
    *("2x1:2,1,1", "2x4:2,2,2", "2x2:1,1,4", "4x1:4,1,1", "4x2:2,2,2"),
)
ONE = "1x1:1,1,1"
CONFIG = "tests/experiments/tiny.py"
FIELDS = {
    # An even vocabulary, so that a tensor axis of two or four can split it.
    "context.instructions": "use memory well",
    "policy.nano.width": 16,
    "sampling.slots": 16,
    "train.cold_start_steps": 8,
    "train.demonstrations": 16,
    "train.eval_tasks": 8,
    "log.tensorboard": "false",
}
WATCHED = ("loss", "grad_norm")
NEAR = 1e-5
LONGEST_S = 3_600


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layouts", default=";".join(ALL))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--faults", type=int, default=0, help="of so many processes")
    parser.add_argument("--folder", help="keeps the runs; else a temporary one")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(options.folder or temporary)
        rows = [("layout", *WATCHED, "parameters", "seconds", "")]
        alone, _ = run(folder, ONE, options.steps)
        worst = 0.0
        for layout in filter(None, options.layouts.split(";")):
            made, seconds = run(folder, layout, options.steps)
            far = distances(made, alone)
            worst = max(worst, *far)
            said = "" if max(far) <= NEAR else "differs"
            rows.append((layout, *(f"{x:.1e}" for x in far), f"{seconds:.0f}", said))
            print(aligned([rows[0], rows[-1]]), flush=True)
        for number in (signal.SIGTERM, signal.SIGKILL) if options.faults else ():
            codes, seconds, far = fault(folder, options.faults, number, options.steps)
            worst = max(worst, *far)
            said = f"exit codes {codes}, {seconds:.1f} s behind {number.name}"
            rows.append((number.name, *(f"{x:.1e}" for x in far), "", said))
            print(said, flush=True)
    print(f"\n{aligned(rows)}")
    return int(worst > NEAR)


def run(
    folder: pathlib.Path, layout: str, steps: int, name: str = ""
) -> tuple[pathlib.Path, float]:
    """The directory of a whole run, and the seconds it took."""
    began = time.monotonic()
    started, workdir = start(folder, layout, steps, name)
    for code, _, err in _processes.finish(started, LONGEST_S):
        if code:
            sys.exit(f"{layout}: exit code {code}\n{err}")
    return workdir, time.monotonic() - began


def start(
    folder: pathlib.Path, layout: str, steps: int, name: str
) -> tuple[list[subprocess.Popen], pathlib.Path]:
    shape, _, mesh = layout.partition(":")
    count, devices = (int(each) for each in shape.split("x"))
    workdir = folder / (name or layout.replace(":", "_"))
    fields = FIELDS | {"train.steps": steps}
    fields |= dict(zip(("mesh.data", "mesh.fsdp", "mesh.tensor"), mesh.split(",")))
    words = [f"--config={CONFIG}", f"--workdir={workdir}"]
    words += [f"--config.{name}={value}" for name, value in fields.items()]
    env = _processes.environment(folder / "compiled", devices)
    return _processes.start("experiments.train", words, count, env), workdir


def fault(
    folder: pathlib.Path, count: int, number: signal.Signals, steps: int
) -> tuple[list[int], float, list[float]]:
    """Exit codes of all processes, seconds until the last one ended, and how far the
    continued run is from one that nothing stopped."""
    layout = f"{count}x1:{count},1,1"
    whole, _ = run(folder, layout, steps, f"whole_{count}")
    started, workdir = start(folder, layout, steps, number.name)
    record = workdir / "metrics.jsonl"
    while not record.is_file() or not record.read_text():
        if any(each.poll() is not None for each in started):
            sys.exit(f"{number.name}: {_processes.finish(started, LONGEST_S)}")
        time.sleep(0.01)
    began = time.monotonic()
    started[-1].send_signal(number)
    codes = [code for code, _, _ in _processes.finish(started, LONGEST_S)]
    seconds = time.monotonic() - began
    run(folder, layout, steps, number.name)
    return codes, seconds, distances(workdir, whole)


def distances(one: pathlib.Path, other: pathlib.Path) -> list[float]:
    """Largest difference of each of ``WATCHED`` over the steps, and of a parameter."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax
    import numpy as np

    from mempo_jax.models import hf
    from mempo_jax.runs.metrics_writer import read_metric_rows as read_metrics

    rows = [read_metrics(each / "metrics.jsonl") for each in (one, other)]
    far = [
        max(abs((a.get(name) or 0) - (b.get(name) or 0)) for a, b in zip(*rows))
        for name in WATCHED
    ]
    params = [hf.load(str(each / "policy"))[1] for each in (one, other)]
    apart = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), *params)
    return [*far, max(jax.tree.leaves(apart))]


if __name__ == "__main__":
    sys.exit(main())
