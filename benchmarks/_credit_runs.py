"""Training runs of several modes of credit: starting them, reading what they left."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from mempo_jax.runs.metrics_writer import read_metric_rows

MODES = {
    "uniform": ("uniform",),
    "discounted": ("ops_only", "discounted"),
    "ops_only": ("ops_only",),
    "attribution": ("ops_only", "attribution"),
    "answer_probability": ("ops_only", "answer_probability"),
    "counterfactual": ("ops_only", "counterfactual"),
    "both": ("ops_only", "attribution", "counterfactual"),
}
WINDOW = 5  # steps of a running mean
LEVELS = (0.8, 0.9)
PAUSE_S = 1.0
# Several runs at once: each keeps to one core, or they would fight over all of them.
ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")},
}


@dataclasses.dataclass(frozen=True)
class Job:
    """One command; its output goes to ``log``. needs: a folder that must be there."""

    name: str
    command: tuple[str, ...]
    log: pathlib.Path
    needs: pathlib.Path | None = None


@dataclasses.dataclass(frozen=True)
class Curve:
    """One run, step by step; NaN where nothing was measured.

    success and write_precision are of what a step sampled, before its updates;
    probe_share is the part of a step's time that went to probes.
    """

    mode: str
    seed: int
    step: np.ndarray
    success: np.ndarray
    write_precision: np.ndarray
    probe_share: np.ndarray
    seconds: np.ndarray
    summary: dict | None


def start_jobs(
    runs: pathlib.Path, seeds: Sequence[int], config: str, extra: Sequence[str]
) -> list[Job]:
    """The cold starts that are not there yet, one for each seed."""
    jobs = []
    for seed in seeds:
        out = _start(runs, seed)
        if not (out / "config.json").is_file():
            words = ("experiments.cold_start", config, f"--out={out}", *extra)
            jobs.append(_job(f"start-{seed}", runs, seed, words))
    return jobs


def run_jobs(
    runs: pathlib.Path,
    modes: Sequence[str],
    seeds: Sequence[int],
    config: str,
    extra: Sequence[str],
) -> list[Job]:
    """A training run for each seed and mode, from the seed's cold start.

    A run that has ended returns at once, one that was stopped continues.
    """
    jobs = []
    for seed in seeds:
        for mode in modes:
            place, start = runs / f"{mode}-{seed}", _start(runs, seed)
            words = (
                *("experiments.train", config, f"--workdir={place}"),
                f"--config.credit.modes={','.join(MODES[mode])}",
                f"--config.policy.path={start}",
                "--config.train.cold_start_steps=0",
                *extra,
            )
            jobs.append(_job(place.name, runs, seed, words, start / "config.json"))
    return jobs


def launch(jobs: Sequence[Job], at_once: int, say: Callable[[str], None]) -> list[str]:
    """Runs commands, so many at once; the failed ones' names in jobs' order."""
    environment = os.environ | (ONE_THREAD if at_once > 1 else {})
    waiting, failed = list(jobs), set()
    live: dict[subprocess.Popen, tuple[Job, float]] = {}
    try:
        while waiting or live:
            while waiting and len(live) < at_once:
                job = waiting.pop(0)
                if job.needs is not None and not job.needs.exists():
                    say(f"{job.name}: left out, {job.needs} is not there")
                    failed.add(job.name)
                    continue
                say(f"{job.name}: started")
                with job.log.open("a") as log:
                    made = subprocess.Popen(
                        job.command, stdout=log, stderr=log, env=environment
                    )
                live[made] = job, time.monotonic()
            time.sleep(PAUSE_S)
            for process in [p for p in live if p.poll() is not None]:
                job, began = live.pop(process)
                took, code = time.monotonic() - began, process.returncode
                end = "done" if code == 0 else f"exit code {code}, see {job.log}"
                say(f"{job.name}: {end} ({took:.0f} s)")
                if code:
                    failed.add(job.name)
    finally:  # the trainer saves its state on this, and the same command continues
        for process in live:
            process.terminate()
        for process in live:
            process.wait()
    return [job.name for job in jobs if job.name in failed]


def read(runs: pathlib.Path, modes: Sequence[str], seeds: Sequence[int]) -> list[Curve]:
    """The runs that are there; one that is under way as far as it is.

    Raises:
      ValueError: none is there.
    """
    curves = []
    for mode in modes:
        for seed in seeds:
            place = runs / f"{mode}-{seed}"
            metrics = place / "metrics.jsonl"
            rows = read_metric_rows(metrics) if metrics.is_file() else []
            if rows:
                curves.append(_curve(mode, seed, rows, place / "summary.json"))
    if not curves:
        raise ValueError(
            f"--runs={runs}: expected folders MODE-SEED with a metrics.jsonl, of modes "
            f"{', '.join(modes)} and seeds {', '.join(map(str, seeds))}; got none: "
            "give --launch to make them"
        )
    return curves


def smooth(values: np.ndarray, window: int = WINDOW) -> np.ndarray:
    """Mean of each step and those before it, ``window`` in all; NaN where too few.

    A step without a value is left out of the mean.
    """
    out = np.full(len(values), np.nan)
    for at in range(window - 1, len(values)):
        part = values[at - window + 1 : at + 1]
        part = part[np.isfinite(part)]
        if len(part):
            out[at] = part.mean()
    return out


def steps_to(curve: Curve, level: float) -> float:
    """First step whose running mean of sampled success is at least ``level``.

    That is the last step of its window; infinity where none is.
    """
    there = np.flatnonzero(smooth(curve.success) >= level)
    return float(curve.step[there[0]]) if len(there) else float("inf")


def _curve(mode: str, seed: int, rows: list[dict], summary: pathlib.Path) -> Curve:
    def column(name: str) -> np.ndarray:
        values = [row.get(name) for row in rows]
        return np.array([np.nan if v is None else v for v in values], float)

    return Curve(
        mode=mode,
        seed=seed,
        step=column("step"),
        success=column("success"),
        write_precision=column("write_precision"),
        probe_share=column("probe_share"),
        seconds=column("seconds"),
        summary=json.loads(summary.read_text()) if summary.is_file() else None,
    )


def _start(runs: pathlib.Path, seed: int) -> pathlib.Path:
    return runs / f"start-{seed}"


def _job(
    name: str,
    runs: pathlib.Path,
    seed: int,
    words: Sequence[str],
    needs: pathlib.Path | None = None,
) -> Job:
    module, config, *rest = words
    command = (sys.executable, "-m", module, f"--config={config}", *rest)
    return Job(name, (*command, f"--config.seed={seed}"), runs / f"{name}.log", needs)
