"""How fast does the policy learn under each mode of credit?

    python -m benchmarks.credit_curves --runs=DIR [--launch] [--modes=uniform,both]
        [--seeds=0,1,2] [--at-once=1] [--plot=docs/credit_curves.png] [--json=FILE]
        [--config=configs/base.py] [--config.FIELD=VALUE ...]

With --launch a run of `experiments.train` is made for each mode and seed, in
DIR/MODE-SEED; all modes of a seed start from one cold start, DIR/start-SEED. The same
command goes on where it was stopped. Several at once (--at-once=2) keep to one core
each. Then the runs that are there are read, also without --launch:

- steps to 0.8 and 0.9: the first step at which sampled success (the mean task score of
  what a step sampled), averaged over that step and the four before, is that high; the
  median over seeds, where one that never came there counts as infinite;
- the final figures of the trained policy on held-out tasks, medians over seeds;
- the share of a step's time that went to probes.

docs/credit_curves.png has bonuses that stay: --config.credit.bonus_decay_steps=0.

The plot shows success and write precision, a thin line for a seed and a thick one for
the median. Modes are named lists; see MODES in benchmarks/_credit_runs.py.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import signal
import sys

import numpy as np

from benchmarks import _credit_runs
from benchmarks._tables import aligned

FINAL = {
    "sampled": "success_sampled",
    "greedy": "success_greedy",
    "precision": "write_precision",
}


def main(arguments: list[str] | None = None) -> int:
    options, extra = options_parser().parse_known_args(arguments)
    stray = [word for word in extra if not word.startswith("--config.")]
    if stray:
        print(f"error: {stray[0]}: unknown argument; see --help", file=sys.stderr)
        return 2
    runs = pathlib.Path(options.runs)
    failed = _launch(options, runs, extra) if options.launch else []
    try:
        curves = _credit_runs.read(runs, options.modes, options.seeds)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    figures = figures_of(curves)
    print(table(figures))
    if options.json:
        path = pathlib.Path(options.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1) + "\n")
    if options.plot:
        from benchmarks import _credit_plot

        _credit_plot.save_curves(curves, pathlib.Path(options.plot))
    return 1 if failed else 0


def options_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--runs", required=True, help="the folder of the runs")
    add("--launch", action="store_true", help="make, or continue, the runs first")
    add("--modes", type=_modes, default=list(_credit_runs.MODES))
    add("--seeds", type=_seeds, default=[0, 1, 2])
    add("--at-once", type=int, default=1, help="runs at one time")
    add("--config", default="configs/base.py")
    add("--eval-tasks", type=int, default=256, help="held-out tasks of each run")
    add("--plot", default="", help="a PNG to write")
    add("--json", default="", help="a file for all figures")
    return parser


def figures_of(curves: list) -> dict:
    """Plain data for each mode: steps to each level, final figures, cost."""
    modes: dict[str, dict] = {}
    for mode in dict.fromkeys(curve.mode for curve in curves):
        own = [curve for curve in curves if curve.mode == mode]
        modes[mode] = {
            "seeds": [curve.seed for curve in own],
            "steps": [len(curve.step) for curve in own],
            "reached": {
                f"{level}": [_finite(_credit_runs.steps_to(c, level)) for c in own]
                for level in _credit_runs.LEVELS
            },
            "last_success": [_last(curve.success) for curve in own],
            "trained": {
                name: [_final(curve, field) for curve in own]
                for name, field in FINAL.items()
            },
            "probe_share": _median([_middle(c.probe_share) for c in own]),
            "seconds_per_step": _median([_middle(c.seconds) for c in own]),
        }
    return modes


def table(figures: dict) -> str:
    """A row for each mode; medians over its seeds."""
    levels = [f"{level}" for level in _credit_runs.LEVELS]
    head = ("mode", "seeds", "steps", *(f"to {level}" for level in levels), "each seed")
    head += ("last 5", *FINAL, "probes", "s a step", "")
    rows = [head]
    for mode, row in figures.items():
        rows.append(
            (
                *(mode, f"{len(row['seeds'])}", f"{min(row['steps'])}"),
                *(_steps(_median_steps(row["reached"][level])) for level in levels),
                " ".join(_steps(s, "-") for s in row["reached"][levels[-1]]),
                _number(_median(row["last_success"])),
                *(_number(_median(row["trained"][name])) for name in FINAL),
                "none" if not row["probe_share"] else f"{row['probe_share']:.1%}",
                _number(row["seconds_per_step"]),
                "",
            )
        )
    note = f"each seed: steps to {levels[-1]}. Trained policy: held-out tasks."
    return f"{aligned(rows)}\n{note}"


def _launch(options, runs: pathlib.Path, extra: list[str]) -> list[str]:
    # A SIGTERM ends this like an error would, so that the runs are stopped and saved.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    runs.mkdir(parents=True, exist_ok=True)
    say = lambda text: print(text, flush=True)  # noqa: E731
    extra = [f"--config.train.eval_tasks={options.eval_tasks}", *extra]
    jobs = _credit_runs.start_jobs(runs, options.seeds, options.config, extra)
    failed = _credit_runs.launch(jobs, options.at_once, say)
    jobs = _credit_runs.run_jobs(
        runs, options.modes, options.seeds, options.config, extra
    )
    return failed + _credit_runs.launch(jobs, options.at_once, say)


def _final(curve, field: str) -> float | None:
    return curve.summary["trained"][field]["mean"] if curve.summary else None


def _last(values: np.ndarray) -> float | None:
    smoothed = _credit_runs.smooth(values)
    return _finite(smoothed[-1])


def _middle(values: np.ndarray) -> float | None:
    kept = values[np.isfinite(values)]
    return float(np.median(kept)) if len(kept) else None


def _median(values: list) -> float | None:
    return _middle(np.array([v for v in values if v is not None], float))


def _median_steps(values: list) -> float | None:
    return _finite(np.median([np.inf if v is None else v for v in values]))


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _steps(value: float | None, missing: str = "not reached") -> str:
    return missing if value is None else f"{value:.0f}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _modes(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in _credit_runs.MODES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"expected some of {', '.join(_credit_runs.MODES)}; got {text!r}"
        )
    return names


def _seeds(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


if __name__ == "__main__":
    sys.exit(main())
