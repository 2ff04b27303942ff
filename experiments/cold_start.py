"""Makes a cold-started policy alone, without reinforcement learning.

    python -m experiments.cold_start --config=configs/base.py --out=DIR
        [--config.FIELD=VALUE ...]

DIR becomes a Hugging Face directory; give it to a run as --config.policy.path=DIR
(with --config.train.cold_start_steps=0, or it is trained on demonstrations again).
"""

import pathlib
import sys

from absl import flags

from experiments.flags import Command, new_options
from experiments.launch import STOPPED_EXIT, fail, launch
from mempo_jax.settings import ConfigError

OPTIONS = new_options()
flags.DEFINE_string("out", None, "the directory to make", flag_values=OPTIONS)


def main(command: Command) -> int:
    from mempo_jax.training.run_settings import advice, from_config

    settings = from_config(command.config.to_dict())
    out = pathlib.Path(command.options.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out={out}: expected a new or an empty directory")
    if not settings.train.cold_start_steps:
        raise ConfigError(
            "config.train.cold_start_steps: expected at least 1 for a cold start, got 0"
        )
    for line in advice(settings):
        print(f"warning: {line}", file=sys.stderr)

    from experiments.progress import Bars
    from mempo_jax.training import parts
    from mempo_jax.training.checks import RunStopped
    from mempo_jax.training.cold_start import cold_start
    from mempo_jax.training.rundir import RunDir

    bars = Bars()
    suite, mesh = parts.make_suite(settings), parts.make_run_mesh(settings)
    policy = parts.initial_policy(suite, settings)
    try:
        out.mkdir(parents=True, exist_ok=True)  # what cannot be made is told at once
    except OSError as error:
        raise ConfigError(f"--out={out}: {error}") from error
    try:
        params = cold_start(policy, suite, settings, mesh, bars)
    except RunStopped as error:
        bars.close()
        fail(error, STOPPED_EXIT)
    RunDir(str(out.parent)).save_dir(out, lambda path: policy.save(path, params))
    print(f"{out}: the cold-started policy")
    return 0


if __name__ == "__main__":
    launch(main, OPTIONS, required=("config", "out"))
