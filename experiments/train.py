"""The main job: an agent learns what to remember.

    python -m experiments.train --config=configs/base.py --workdir=DIR
        [--compile_cache=FOLDER|off] [--config.FIELD=VALUE ...]
        [--coordinator=auto | --coordinator=HOST:PORT --processes=N --process=I]

With several hosts the same command runs on each, on a DIR that all share: with "auto"
on a TPU pod or under Slurm; else with the address where process 0 is to listen, how
many there are, and which of them this is, from 0. How many there are is no part of the
run: it may be continued by another number.

Compiled programs are kept in .jax_cache beside DIR, for the next start and for other
runs there; --compile_cache moves that folder, or does without.

Cold start, evaluation, reinforcement learning, evaluation; the files that DIR then
holds are listed at the end. The same command again continues a run that was stopped.

Exit codes: 0 done, or stopped by SIGTERM with its state saved; 2 something in the
command or its input does not fit; 3 training cannot go on, or nothing can be written;
130 stopped by Ctrl-C with its state saved; 143 and 130 at once by a second signal.
"""

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from absl import flags

from mempo_jax.settings import ConfigError

from . import compile_cache
from .flags import Command, new_options
from .launch import INTERRUPTED_EXIT, STOPPED_EXIT, advise, fail, launch

OPTIONS = new_options()
flags.DEFINE_string(
    "workdir", None, "the directory of the run", flag_values=OPTIONS, short_name="w"
)
flags.DEFINE_string(
    "coordinator", "", "where several processes meet", flag_values=OPTIONS
)
flags.DEFINE_integer("processes", None, "how many there are", flag_values=OPTIONS)
flags.DEFINE_integer("process", None, "which one this is", flag_values=OPTIONS)
compile_cache.define(OPTIONS)
CONTINUE = "the same command continues"
# Errors of a disk that is full or not ours to write; others are bugs and show as such.
UNWRITABLE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES),
    *(errno.EPERM, errno.EIO),
)


def main(command: Command) -> int:
    """Trains until the run ends or is stopped.

    Args:
      command: the parsed command line.

    Returns:
      The exit code.
    """
    # Imported here: a wrong command line is refused before any of it is loaded.
    from mempo_jax.config import from_config
    from mempo_jax.distributed import hosts
    from mempo_jax.distributed.hosts import Stopped, listening

    options = command.options
    with listening(_leave) as stop:
        config = command.config.to_dict()
        settings = from_config(config)

        from mempo_jax.training.run import run

        try:
            hosts.start(options.coordinator, options.processes, options.process)
            with (
                compile_cache.kept(options.compile_cache, options.workdir),
                hosts.leaving(),
            ):
                if hosts.count() > 1:
                    stop.share(hosts.agree)
                if hosts.primary():
                    advise(settings, command)
                    _say_ended(settings, config, options.workdir)
                with _reporting() as progress:
                    summary = run(settings, config, options.workdir, progress, stop)
                if hosts.primary():
                    _print_end(summary, options.workdir)
                return 0
        except Stopped as stopped:
            _say(stop.number, f"{stopped}; {CONTINUE}")
            return 0 if stop.number == signal.SIGTERM else INTERRUPTED_EXIT


@contextlib.contextmanager
def _reporting() -> Iterator[Any]:
    """Gives progress bars, and closes them before an error is printed."""
    from mempo_jax.distributed import hosts
    from mempo_jax.distributed.hosts import RunStopped
    from mempo_jax.envs.reward import RewardError
    from mempo_jax.evaluation.held_out import no_progress
    from mempo_jax.rollout.http_client import ServerError
    from mempo_jax.training.checkpoints import CheckpointError

    from .progress import Bars

    bars = Bars()
    try:
        yield bars if hosts.primary() else no_progress
    except hosts.ProcessFailed as error:
        bars.close()
        print(error, file=sys.stderr)
        sys.exit(STOPPED_EXIT)
    except (RunStopped, CheckpointError, RewardError, ServerError) as error:
        bars.close()
        if details := getattr(error, "details", ""):  # of a reward function's own
            print(details, end="", file=sys.stderr)
        fail(error, STOPPED_EXIT)
    except OSError as error:
        bars.close()
        if error.errno not in UNWRITABLE:
            raise
        fail(f"{error}; what was saved is kept: {CONTINUE}", STOPPED_EXIT)
    except BaseException:
        bars.close()
        raise


def _print_end(summary: dict[str, Any], workdir: str) -> None:
    """Prints what the run came to, its files, and the next commands."""
    from mempo_jax.runs.metrics_writer import read_metric_rows
    from mempo_jax.runs.run_dir import RunDir

    from .summary import closing, next_commands, table

    metrics = RunDir(workdir).path / "metrics.jsonl"
    steps = read_metric_rows(metrics) if metrics.is_file() else []
    last = steps[-1] if steps else None
    lines = [*table(summary), *closing(summary, last, workdir)]
    print("\n".join([*lines, *next_commands(workdir)]))


def _say_ended(settings: Any, config: dict[str, Any], workdir: str) -> None:
    """Prints that a run has ended before, so that nothing runs."""
    from mempo_jax.distributed import hosts
    from mempo_jax.runs.run_dir import RunDir

    place = RunDir(workdir)
    try:
        if not hosts.primary() or place.ended(settings.train.steps) is None:
            return
        place.check(config)
    except ConfigError:
        return  # the run raises it again, in all processes
    changed = [f"{name}={new}" for name, (_, new) in place.changes(config).items()]
    unused = f", and {', '.join(changed)} not used" if changed else ""
    print(
        f"{workdir}: this run has ended; nothing is run{unused}: to go on raise "
        "config.train.steps, or use another --workdir",
        file=sys.stderr,
    )


def _leave(number: int, again: bool) -> None:
    """Ends the process at once: nothing is unsaved, or a second signal came.

    Compiled code may be running, and taking the interpreter down around it can crash.
    """
    if again:
        os._exit(128 + number)
    os.write(2, b"\n")  # a progress bar may be on this line
    _say(number, f"stopped with nothing unsaved; {CONTINUE}")
    os._exit(0 if number == signal.SIGTERM else INTERRUPTED_EXIT)


def _say(number: int, text: str) -> None:
    name = "SIGTERM" if number == signal.SIGTERM else "Ctrl-C"
    os.write(2, f"{name}: {text}\n".encode())


if __name__ == "__main__":
    launch(main, OPTIONS, required=("config", "workdir"))
