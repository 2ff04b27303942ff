"""A trained policy beside baselines: success against tokens, in one table and a plot.

    python -m experiments.evaluate --workdir=DIR [--baselines=all|a,b] [--tasks=N]
        [--out=DIR]

DIR is a finished run of experiments.train. Policies: full_history, no_memory, rag,
rag_unlimited, paging, paging_joined, rolling (rules, answered by a script that reads
what stands in their context), cold_start, trained, and trained_read_by_script (what
the trained policy wrote, answered by that same script). All run the same held-out
tasks. Writes evaluation.json, evaluation.csv and evaluation.png.
"""

import json
import pathlib
import sys

from absl import flags

from experiments.flags import Command, new_options
from experiments.launch import STOPPED_EXIT, fail, launch
from mempo_jax.settings import ConfigError

OPTIONS = new_options()
flags.DEFINE_string(
    "workdir", None, "the directory of a finished run", flag_values=OPTIONS
)
flags.DEFINE_string(
    "baselines", "all", "names with commas between, or all", flag_values=OPTIONS
)
flags.DEFINE_integer(
    "tasks", None, "held-out tasks; the run's own number if left", flag_values=OPTIONS
)
flags.DEFINE_string("out", "", "where to write; --workdir if left", flag_values=OPTIONS)


def main(command: Command) -> int:
    options = command.options
    if command.config is not None:
        raise ConfigError("--config: leave it out; that of --workdir is taken")
    if options.tasks is not None and options.tasks < 1:
        raise ConfigError(f"--tasks={options.tasks}: expected at least 1")
    workdir = pathlib.Path(options.workdir)
    config = _finished(workdir)

    from mempo_jax.training.run_settings import from_config

    settings = from_config(config)

    from experiments.progress import Bars
    from mempo_jax.evaluation.table import lines
    from mempo_jax.rollout.http_client import ServerError
    from mempo_jax.training.compare import compare, names_of
    from mempo_jax.training.rundir import RunDir

    names_of(options.baselines)
    out = pathlib.Path(options.out or workdir)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out={out}: {error}") from error
    tasks = options.tasks or settings.train.eval_tasks
    bars = Bars()
    try:
        rows, missing = compare(
            RunDir(str(workdir)), settings, options.baselines, tasks, bars
        )
    except ServerError as error:
        bars.close()
        fail(error, STOPPED_EXIT)
    for name, why in missing.items():
        print(f"left out: {name}: {why}", file=sys.stderr)
    print("\n".join(lines(rows)))
    _write(out, rows, tasks, settings.env.name)
    return 0


def _finished(workdir: pathlib.Path) -> dict:
    """The config of a run that has ended."""
    if not (workdir / "config.json").is_file():
        raise ConfigError(
            f"--workdir={workdir}: expected the directory of a run, found no "
            "config.json there; see experiments.train"
        )
    if not (workdir / "policy" / "config.json").is_file():
        raise ConfigError(
            f"--workdir={workdir}: the run has not ended, it has no policy/ yet; the "
            "command that began it continues it"
        )

    from mempo_jax.training.policy_config import read_json

    return read_json(workdir / "config.json")


def _write(out: pathlib.Path, rows: list, tasks: int, suite: str) -> None:
    from mempo_jax.evaluation.plots import plot_rows
    from mempo_jax.evaluation.table import to_csv
    from mempo_jax.training.rundir import write_text

    whole = {"suite": suite, "tasks": tasks, "rows": rows}
    write_text(out / "evaluation.json", json.dumps(whole, indent=1) + "\n")
    write_text(out / "evaluation.csv", to_csv(rows))
    said = f"in {out}: evaluation.json, evaluation.csv"
    try:
        plot_rows(out / "evaluation.png", rows, f"{suite}, {tasks} held-out tasks")
    except ImportError:
        print(f"{said}; no plot without matplotlib (extra [plots])")
        return
    print(f"{said}, evaluation.png")


if __name__ == "__main__":
    launch(main, OPTIONS, required=("workdir",))
