"""The main job: an agent learns what to remember.

    python -m experiments.train --config=configs/base.py --workdir=DIR
        [--config.FIELD=VALUE ...]

Cold start, evaluation, reinforcement learning, evaluation; the files that DIR then
holds are listed at the end. The same command again continues a run that was stopped.

Exit codes: 0 done, or stopped by SIGTERM with its state saved; 2 something in the
command or its input does not fit; 3 training cannot go on; 130 stopped by Ctrl-C.
"""

import os
import pathlib
import signal
import sys

from absl import flags

from experiments.flags import Command, new_options
from experiments.launch import INTERRUPTED_EXIT, STOPPED_EXIT, fail, launch

OPTIONS = new_options()
flags.DEFINE_string(
    "workdir", None, "the directory of the run", flag_values=OPTIONS, short_name="w"
)
CONTINUE = "the same command continues"


def main(command: Command) -> int:
    # Imported here: a wrong command line is refused before any of it is loaded.
    from mempo_jax.training.run_settings import advice, from_config

    config = command.config.to_dict()
    settings = from_config(config)
    for line in advice(settings):
        print(f"warning: {line}", file=sys.stderr)

    from experiments.progress import Bars
    from experiments.summary import closing, table
    from mempo_jax.envs.reward import RewardError
    from mempo_jax.rollout.http_client import ServerError
    from mempo_jax.training.checkpoint import CheckpointError
    from mempo_jax.training.checks import RunStopped
    from mempo_jax.training.metrics import read_metrics
    from mempo_jax.training.run import Preempted, run

    came: list[int] = []

    def preempted(number: int, frame: object) -> None:
        came.append(number)
        raise Preempted("stopped outside training, where only whole stages are saved")

    workdir, bars = command.options.workdir, Bars()
    before = signal.signal(signal.SIGTERM, preempted)
    try:
        summary = run(settings, config, workdir, bars)
    except (RunStopped, CheckpointError, RewardError, ServerError) as error:
        bars.close()
        fail(error, STOPPED_EXIT)
    except Preempted as stop:
        bars.close()
        print(f"SIGTERM: {stop}; {CONTINUE}", file=sys.stderr)
        return _leave() if came else 0
    except Exception as error:
        if not came:
            raise
        bars.close()  # compiled code made an error of its own of the signal
        what = f"stopped outside training, as {type(error).__name__}"
        print(f"SIGTERM: {what}; {CONTINUE}", file=sys.stderr)
        return _leave()
    except KeyboardInterrupt:
        bars.close()
        print(f"interrupted; {CONTINUE} from the last checkpoint", file=sys.stderr)
        return INTERRUPTED_EXIT
    finally:
        signal.signal(signal.SIGTERM, before)
    metrics = pathlib.Path(workdir) / "metrics.jsonl"
    steps = read_metrics(metrics) if metrics.is_file() else []
    lines = [*table(summary), *closing(summary, steps[-1] if steps else None, workdir)]
    print("\n".join(lines))
    return 0


def _leave() -> int:
    """Ends the process here: a compilation cut off by a signal may still be running,
    and taking the interpreter down around it can crash."""
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    launch(main, OPTIONS, required=("config", "workdir"))
