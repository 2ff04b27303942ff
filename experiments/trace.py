"""Runs one task three times, sampled, and prints every memory op of each trajectory.

    python -m experiments.trace --config=configs/base.py [--policy=DIR/policy]
        [--workdir=DIR] [--task=N] [--config.FIELD=VALUE ...]

--workdir=DIR takes the policy of that run: the trained one, else its cold start.
Without a policy, and without config.policy.path, a small one is made by a short cold
start, which takes about a minute.
"""

import dataclasses
import pathlib
import sys

from absl import flags

from mempo_jax.settings import ConfigError

from .flags import Command, new_options
from .launch import launch

OPTIONS = new_options()
flags.DEFINE_string("policy", "", "a Hugging Face directory", flag_values=OPTIONS)
flags.DEFINE_string(
    "workdir", "", "a run's directory, for its policy", flag_values=OPTIONS
)
flags.DEFINE_integer(
    "task", 0, "index of the held-out task", lower_bound=0, flag_values=OPTIONS
)
SAMPLES = 3  # trajectories of the task
SHORT_COLD_START = 250  # steps; enough for the form of acting
SHORT_DEMONSTRATIONS = 512


def main(command: Command) -> int:
    """Prints three trajectories of one task.

    Args:
      command: the parsed command line.

    Returns:
      The exit code.
    """
    from mempo_jax.config import from_config

    settings = from_config(command.config.to_dict())
    path = _policy_path(command.options) or settings.policy.path

    from mempo_jax.builders.engines import make_collector, make_run_mesh
    from mempo_jax.builders.suites import make_suite
    from mempo_jax.rollout.collect import Job
    from mempo_jax.rollout.http_client import ServerError

    from .transcript import transcript

    suite, mesh = make_suite(settings), make_run_mesh(settings)
    policy = _policy(path, suite, settings, mesh)
    engine, collector = make_collector(policy, suite, _few(settings, mesh), mesh)
    task = suite.task("test", command.options.task)
    jobs = [Job(task, n, settings.seed, "trace", 0) for n in range(SAMPLES)]
    try:
        engine.set_params(policy.params)
        trajectories = collector.run(jobs, settings.sampling)
    except ServerError as error:
        raise ConfigError(str(error)) from error
    print(
        "\n".join(transcript(trajectories, temperature=settings.sampling.temperature))
    )
    return 0


def _policy_path(options: flags.FlagValues) -> str:
    """The directory that the options name, "" for none."""
    if options.policy and options.workdir:
        raise ConfigError("--policy and --workdir: give one of them")
    if not options.workdir:
        return options.policy
    for name in ("policy", "cold_start"):
        path = pathlib.Path(options.workdir) / name
        if path.is_dir():
            return str(path)
    raise ConfigError(
        f"--workdir={options.workdir}: expected a run with policy/ or cold_start/,"
        " found neither; see experiments.train"
    )


def _policy(path, suite, settings, mesh):
    from mempo_jax.builders.policies import load_policy, make_nano
    from mempo_jax.training.cold_start import cold_start

    from .progress import Bars

    if path:
        print(f"policy: {path}\n")
        return load_policy(path, settings)
    train = dataclasses.replace(
        settings.train,
        cold_start_steps=min(settings.train.cold_start_steps, SHORT_COLD_START),
        demonstrations=min(settings.train.demonstrations, SHORT_DEMONSTRATIONS),
    )
    steps = train.cold_start_steps
    print(
        f"no --policy: making one by a cold start of {steps} steps; it knows how to act"
        " and not yet what matters",
        file=sys.stderr,
    )
    policy = make_nano(suite, settings)
    if steps:
        short = dataclasses.replace(settings, train=train)
        params = cold_start(policy, suite, short, mesh, Bars())
        policy = dataclasses.replace(policy, params=params)
    print(f"policy: nano, after {steps} steps of cold start\n")
    return policy


def _few(settings, mesh):
    """The settings with no more slots than three trajectories need."""
    from mempo_jax.distributed.placement import row_multiple

    multiple = row_multiple(mesh)
    slots = -(-SAMPLES // multiple) * multiple
    sampling = dataclasses.replace(settings.sampling, slots=slots)
    engine = dataclasses.replace(settings.engine, lanes=1, row_buckets=())
    return dataclasses.replace(settings, sampling=sampling, engine=engine)


if __name__ == "__main__":
    launch(main, OPTIONS)
