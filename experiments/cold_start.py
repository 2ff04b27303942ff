"""Makes a cold-started policy alone, without reinforcement learning.

    python -m experiments.cold_start --config=configs/base.py --out=DIR
        [--demonstrations=FILE.jsonl] [--compile_cache=FOLDER|off]
        [--config.FIELD=VALUE ...]

DIR becomes a Hugging Face directory; give it to a run as --config.policy.path=DIR
(with --config.train.cold_start_steps=0, or it is trained on demonstrations again).

With --demonstrations the scripted demonstrations are written to FILE.jsonl and nothing
is trained: look at them, change them, or write others in that form, and give the file
to a run as --config.train.demonstrations_path=FILE.jsonl.
"""

import pathlib
from typing import Any

from absl import flags

from mempo_jax.settings import ConfigError

from . import compile_cache
from .flags import Command, new_options
from .launch import STOPPED_EXIT, advise, fail, launch

OPTIONS = new_options()
flags.DEFINE_string("out", "", "the directory to make", flag_values=OPTIONS)
flags.DEFINE_string(
    "demonstrations", "", "write them to this JSONL file", flag_values=OPTIONS
)
compile_cache.define(OPTIONS)


def main(command: Command) -> int:
    """Makes a policy from demonstrations, or writes the demonstrations.

    Args:
      command: the parsed command line.

    Returns:
      The exit code.
    """
    from mempo_jax.config import from_config

    config = command.config.to_dict()
    settings = from_config(config)
    if command.options.demonstrations:
        return _write(pathlib.Path(command.options.demonstrations), settings)
    if not command.options.out:
        raise ConfigError("--out is missing: the directory to make; see --help")
    out = pathlib.Path(command.options.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out={out}: expected a new or an empty directory")
    if not settings.train.cold_start_steps:
        raise ConfigError(
            "config.train.cold_start_steps: expected at least 1 for a cold start, got 0"
        )
    advise(settings, command)

    with compile_cache.kept(command.options.compile_cache, out):
        return _make(out, settings, config)


def _make(out: pathlib.Path, settings: Any, config: dict[str, Any]) -> int:
    from mempo_jax.builders.engines import make_run_mesh
    from mempo_jax.builders.policies import initial_policy
    from mempo_jax.builders.suites import make_suite
    from mempo_jax.distributed.hosts import RunStopped
    from mempo_jax.runs.run_dir import RunDir
    from mempo_jax.training.cold_start import cold_start

    from .progress import Bars

    bars = Bars()
    suite, mesh = make_suite(settings), make_run_mesh(settings)
    policy = initial_policy(suite, settings)
    try:
        out.mkdir(parents=True, exist_ok=True)  # an error here comes before the work
    except OSError as error:
        raise ConfigError(f"--out={out}: {error}") from error
    try:
        params = cold_start(policy, suite, settings, mesh, bars)
    except RunStopped as error:
        bars.close()
        fail(error, STOPPED_EXIT)
    RunDir(str(out.parent)).save_dir(
        out, lambda path: policy.save(path, params, config)
    )
    print(f"{out}: the cold-started policy")
    return 0


def _write(path: pathlib.Path, settings: Any) -> int:
    from mempo_jax.builders.policies import initial_policy
    from mempo_jax.builders.suites import make_episodes, make_expert, make_suite
    from mempo_jax.training.demonstrations import records, write_demonstrations

    from .progress import Bars

    if path.exists() or not path.parent.is_dir():
        raise ConfigError(
            f"--demonstrations={path}: expected a new file in a folder that there is"
        )
    suite, bars = make_suite(settings), Bars()
    tokenizer = initial_policy(suite, settings).tokenizer
    episodes = make_episodes(suite, settings)
    expert = make_expert(suite, settings)
    count = settings.train.demonstrations
    tasks = [suite.task("train", index) for index in range(count)]

    def make(task):
        return episodes(task, f"demonstration-{task.id}", variant=task.index)

    def shown(lines):
        for number, line in enumerate(lines, start=1):
            bars("demonstrations", number, count, {})
            yield line

    try:
        lines = shown(records(make, tasks, expert, tokenizer))
        write_demonstrations(path, lines)
    except OSError as error:
        raise ConfigError(f"--demonstrations={path}: {error}") from error
    print(f"{path}: {count} demonstrations")
    return 0


if __name__ == "__main__":
    launch(main, OPTIONS)
