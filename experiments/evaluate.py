"""A trained policy beside baselines: success against tokens, in one table and a plot.

    python -m experiments.evaluate --workdir=DIR [--baselines=all|a,b] [--tasks=N]
        [--reader=script|policy] [--out=DIR] [--compile_cache=FOLDER|off]

DIR is a finished run of experiments.train. Policies: full_history, no_memory, rag,
rag_unlimited, paging, paging_joined, rolling (rules, answered by a script that reads
what stands in their context), cold_start, trained, and trained_read_by_script (what
the trained policy wrote, answered by that same script). With --reader=policy the rules
decide what is kept, and the trained policy answers for them in the context that they
leave; one that its engine cannot hold counts as an overflow. All run the same held-out
tasks. Writes evaluation.json and evaluation.csv after each row, evaluation.png at last.
"""

import importlib.util
import json
import pathlib
import sys

from absl import flags

from mempo_jax.settings import ConfigError

from . import compile_cache
from .flags import Command, new_options
from .launch import STOPPED_EXIT, fail, launch, warn
from .naming import command_line

OPTIONS = new_options(config=False)
flags.DEFINE_string(
    "workdir", None, "the directory of a finished run", flag_values=OPTIONS
)
flags.DEFINE_string(
    "baselines", "all", "names with commas between, or all", flag_values=OPTIONS
)
flags.DEFINE_integer(
    "tasks", None, "held-out tasks; the run's own number if left", flag_values=OPTIONS
)
flags.DEFINE_string(
    "reader", "script", "who answers for rules: script or policy", flag_values=OPTIONS
)
flags.DEFINE_string("out", "", "where to write; --workdir if left", flag_values=OPTIONS)
compile_cache.define(OPTIONS)


def main(command: Command) -> int:
    """Compares the policy of a run with rules and prints the table.

    Args:
      command: the parsed command line.

    Returns:
      The exit code.
    """
    options = command.options
    if options.tasks is not None and options.tasks < 1:
        raise ConfigError(f"--tasks={options.tasks}: expected at least 1")
    workdir = pathlib.Path(options.workdir)
    config = _finished(workdir)

    from mempo_jax.config import from_config

    settings = from_config(config)

    from mempo_jax.evaluation.compare import WHO_READS, compare, names_of
    from mempo_jax.evaluation.result_rows import lines
    from mempo_jax.rollout.http_client import ServerError
    from mempo_jax.runs.run_dir import RunDir

    from .progress import Bars

    names_of(options.baselines)
    if options.reader not in WHO_READS:
        raise ConfigError(f"--reader={options.reader}: expected one of {WHO_READS}")
    out = pathlib.Path(options.out or workdir)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out={out}: {error}") from error
    if importlib.util.find_spec("matplotlib") is None:
        warn(
            "evaluation.png will not be drawn: matplotlib is not installed "
            "(pip install 'mempo_jax[plots]')"
        )
    tasks = options.tasks or settings.train.eval_tasks
    bars, about = Bars(), {"suite": settings.env.name, "tasks": tasks}
    about["reader"] = options.reader
    try:
        with compile_cache.kept(options.compile_cache, workdir):
            rows, missing = compare(
                RunDir(str(workdir)),
                settings,
                options.baselines,
                tasks,
                bars,
                reads=options.reader,
                on_row=lambda rows: _write(out, rows, about),
            )
    except ServerError as error:
        bars.close()
        fail(error, STOPPED_EXIT)
    for name, why in missing.items():
        print(f"left out: {name}: {why}", file=sys.stderr)
    print("\n".join(lines(rows)))
    print(f"in {out}: {_plotted(out, rows, about)}")
    if out == workdir:
        print("next, see it beside the curves of the run:")
        print(f"  {command_line('report', f'--workdir={workdir}')}")
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

    from mempo_jax.builders.policies import read_json

    return read_json(workdir / "config.json")


def _write(out: pathlib.Path, rows: list, about: dict) -> None:
    from mempo_jax.evaluation.result_rows import to_csv
    from mempo_jax.runs.atomic import write_text

    content = about | {"rows": rows}
    write_text(out / "evaluation.json", json.dumps(content, indent=1) + "\n")
    write_text(out / "evaluation.csv", to_csv(rows))


def _plotted(out: pathlib.Path, rows: list, about: dict) -> str:
    """Draws the picture; returns which files there are."""
    from mempo_jax.evaluation.plots import plot_rows

    title = f"{about['suite']}, {about['tasks']} held-out tasks"
    if about["reader"] == "policy":
        title += ", the policy answers for rules"
    try:
        plot_rows(out / "evaluation.png", rows, title)
    except ImportError:
        return "evaluation.json, evaluation.csv; no plot without matplotlib ([plots])"
    return "evaluation.json, evaluation.csv, evaluation.png"


if __name__ == "__main__":
    launch(main, OPTIONS, required=("workdir",))
