"""A whole run: cold start, evaluation, reinforcement learning, evaluation, export."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mempo_jax.builders.engines import (
    check_engine,
    check_server,
    check_splits,
    make_run_mesh,
)
from mempo_jax.builders.memory_models import make_memory_models
from mempo_jax.builders.policies import Policy, initial_policy, load_policy
from mempo_jax.builders.suites import make_suite, reward_function
from mempo_jax.config import RunConfig
from mempo_jax.distributed import hosts
from mempo_jax.distributed.hosts import RunStopped, Stop, Stopped
from mempo_jax.distributed.placement import to_host
from mempo_jax.envs.reward import RewardError
from mempo_jax.evaluation.held_out import Progress, evaluate, no_progress
from mempo_jax.models import lora
from mempo_jax.models.lora import save_adapters
from mempo_jax.rollout.http_client import ServerError
from mempo_jax.runs.metrics_writer import MetricsWriter, check_wandb
from mempo_jax.runs.run_dir import RunDir
from mempo_jax.settings import ConfigError
from mempo_jax.training.checkpoints import RunCheckpoints
from mempo_jax.training.cold_start import cold_start
from mempo_jax.training.demonstrations import check_file
from mempo_jax.training.loop import Trainer


def run(
    settings: RunConfig,
    config: Mapping[str, Any],
    workdir: str,
    progress: Progress = no_progress,
    stop: Stop | None = None,
) -> dict[str, Any]:
    """Runs to the end, or continues a run that was stopped.

    A run that has ended with this number of steps is not touched.

    Args:
      settings: the config, parsed and checked.
      config: the same as a nested dict, to be recorded.
      workdir: the run directory; made if it does not exist.
      progress: called with (stage, done, total, metrics).
      stop: whether to end early; None: SIGTERM and Ctrl-C do, while there is something
        to save (from the main thread).

    Returns:
      The summary, as in ``summary.json``.

    Raises:
      ConfigError: something does not fit; nothing was computed.
      RunStopped, RewardError, ServerError: training cannot go on; a checkpoint was
        saved.
      CheckpointError, OSError: something could not be written; earlier files are kept.
      Stopped: by ``stop``; all is saved.
    """
    stop = Stop() if stop is None else stop
    run_dir = RunDir(workdir)
    # One process looks at files, or the processes might see them change.
    hosts.on_primary(lambda: run_dir.check(config))
    summary = hosts.from_primary(lambda: run_dir.ended(settings.train.steps))
    if summary is not None:
        return summary
    _try_optional_parts(settings)
    # Most that can refuse the config comes before ``claim`` makes the directory.
    suite = make_suite(settings)
    mesh = make_run_mesh(settings)
    policy, reference = _policies(settings, suite, mesh)
    make_memory_models(policy, settings, mesh)
    hosts.on_primary(lambda: run_dir.claim(config))
    with contextlib.ExitStack() as locks:
        hosts.on_primary(lambda: locks.enter_context(run_dir.locked()))
        hosts.on_primary(run_dir.note_machine)
        seconds: dict[str, float] = {}
        try:
            # In the lock: it changes what a server holds, perhaps for another process.
            check_engine(policy, settings, mesh)
            with _timed(seconds, "cold_start"):
                _cold_start(policy, settings, suite, mesh, run_dir, progress, stop)
        except ConfigError:
            # A refused config must not stand in the way of the corrected one.
            if hosts.primary():
                run_dir.release()
            raise
        del policy  # or a second copy would stay in memory to the end
        stop.check()
        # Read back even if it was just saved: a continued run starts the same way.
        policy = load_policy(str(run_dir.cold_start), settings, mesh)
        trainer = Trainer(
            policy,
            suite,
            settings,
            mesh,
            reference=reference,
            dump=run_dir.dump_update,
            stop=stop,
        )
        del policy, reference  # the trainer holds what it needs of their parameters
        before = _evaluate_cold_start(trainer, run_dir, seconds, progress, stop)
        checkpoints = RunCheckpoints(trainer, config, run_dir)
        with _timed(seconds, "train"):
            _train(trainer, config, run_dir, checkpoints, stop, progress)
        with _timed(seconds, "evaluate_trained"):
            after = _evaluate(trainer, "trained", run_dir, progress)
        stop.check()
        _export(trainer, run_dir, config)
        summary = {"cold_start": before, "trained": after}
        summary |= _save_best(trainer, config, run_dir, checkpoints)
        summary |= {"seconds": seconds, "steps": settings.train.steps}
        # Its presence marks the run as ended, so it is written last.
        run_dir.save_json("summary.json", summary)
        return summary


def _try_optional_parts(settings: RunConfig) -> None:
    """Tries what a run would otherwise first use minutes after its start.

    Raises:
      ConfigError: a missing package, login, file, server or reward function.
    """
    reward_function(settings)
    if settings.train.demonstrations_path and settings.train.cold_start_steps:
        check_file(settings.train.demonstrations_path)
    if settings.memory.embedder == "sentence_transformers":
        # Made and thrown away: only loading shows that package and weights are there.
        settings.memory.make_embedder()
    hosts.on_primary(lambda: check_wandb(settings.log.wandb_project))
    hosts.on_primary(lambda: check_server(settings))


def _evaluate_cold_start(
    trainer: Trainer,
    run_dir: RunDir,
    seconds: dict[str, float],
    progress: Progress,
    stop: Stop,
) -> dict[str, Any]:
    """Compiles all programs, and evaluates what training starts from."""
    with _timed(seconds, "warm_up"):
        progress("compiling", 0, 1, {})
        trainer.warm_up()
        progress("compiling", 1, 1, {})
    stop.check()
    with _timed(seconds, "evaluate_cold_start"):
        before = _evaluate(trainer, "cold_start", run_dir, progress)
    stop.check()
    return before


def _save_best(
    trainer: Trainer,
    config: Mapping[str, Any],
    run_dir: RunDir,
    checkpoints: RunCheckpoints,
) -> dict[str, Any]:
    """Exports the policy of the best checkpoint, if the run keeps one; its step.

    It replaces the trainer's parameters, so it comes after all that reads the last.
    """
    best = checkpoints.put_back_best()
    if best is None:
        return {}
    policy, params = trainer.policy, trainer.params
    run_dir.save_dir(run_dir.best, lambda path: policy.save(path, params, config))
    return {"best_step": best}


def _policies(settings: RunConfig, suite, mesh) -> tuple[Policy, Policy | None]:
    """The policy before the cold start, and another reference policy if any."""
    ref_path = settings.policy.ref_path
    policy = initial_policy(suite, settings, mesh)
    check_splits(policy, settings, mesh)
    if not ref_path:
        return policy, None
    reference = load_policy(ref_path, settings, mesh)
    # The KL compares probabilities of the same token ids.
    if reference.tokenizer.vocabulary() != policy.tokenizer.vocabulary():
        raise ConfigError(
            f"config.policy.ref_path = {ref_path!r}: expected the policy's vocabulary "
            f"of {policy.tokenizer.vocab_size} tokens, got another one of "
            f"{reference.tokenizer.vocab_size}"
        )
    return policy, reference


def _cold_start(
    policy: Policy,
    settings: RunConfig,
    suite,
    mesh,
    run_dir: RunDir,
    progress: Progress,
    stop: Stop,
) -> None:
    """Saves the policy after its cold start, unless that was done before."""
    checkpoints = run_dir.cold_start_checkpoints
    if not hosts.from_primary((run_dir.cold_start / "config.json").is_file):
        params = policy.params
        if settings.train.cold_start_steps:
            params = cold_start(
                policy, suite, settings, mesh, progress, kept=checkpoints, stop=stop
            )
        run_dir.save_dir(run_dir.cold_start, lambda path: policy.save(path, params))
    # Only now: before the policy is saved, a killed cold start has nothing else to
    # continue from.
    hosts.on_primary(lambda: shutil.rmtree(checkpoints, ignore_errors=True))


def _export(trainer: Trainer, run_dir: RunDir, config: Mapping[str, Any]) -> None:
    """Saves the whole trained policy, and its adapters on their own if it has some."""
    policy, params = trainer.policy, trainer.params
    run_dir.save_dir(run_dir.policy, lambda path: policy.save(path, params, config))
    if policy.model.lora is None:
        return

    def save(path: pathlib.Path) -> None:
        # In all processes, since each may hold a part; the primary alone writes.
        adapters = to_host(lora.split(params)[0])
        if hosts.primary():
            save_adapters(
                path, policy.config, adapters, policy.model.lora, run_dir.cold_start
            )

    run_dir.save_dir(run_dir.adapters, save)


def _evaluate(
    trainer: Trainer, name: str, run_dir: RunDir, progress: Progress
) -> dict[str, Any]:
    """Evaluates and saves the current policy; that of the cold start only once."""
    if name == "cold_start":
        file = f"evaluation_{name}.json"
        # The primary decides for all: if only some evaluated, they would wait forever
        # for the others.
        saved = hosts.from_primary(lambda: run_dir.load_json(file))
        if saved is not None:
            return saved
    summary, sampled = evaluate(
        trainer.engine,
        trainer.collector,
        trainer.suite,
        trainer.settings,
        trainer.local_params,
        name=name,
        progress=progress,
    )
    for how, trajectories in sampled.items():
        run_dir.save_trajectories(f"{name}_{how}", trajectories)
    run_dir.save_json(f"evaluation_{name}.json", summary)
    return summary


def _train(
    trainer: Trainer,
    config: Mapping[str, Any],
    run_dir: RunDir,
    checkpoints: RunCheckpoints,
    stop: Stop,
    progress: Progress,
) -> None:
    """Runs the steps that are left; each is written down before the next one begins."""
    settings = trainer.settings
    log, last = settings.log, settings.train.steps
    first = checkpoints.restore()
    with (
        stop.unsaved(),
        checkpoints.closing(),
        _metrics_writer(run_dir, first, settings, config) as write,
    ):
        done = first
        progress("training", done, last, {})
        try:
            # Closed, so that no thread goes on to sample for a run that is over.
            with contextlib.closing(trainer.run(first, last)) as steps:
                for metrics, trajectories in steps:
                    # First, since it refuses an unknown metric: no row is then left
                    # behind.
                    checkpoints.note(done, metrics)
                    write(done, metrics)
                    if log.records(done):
                        run_dir.save_trajectories(f"step_{done:06d}", trajectories)
                    done += 1
                    progress("training", done, last, _progress_metrics(metrics))
                    # After the row: a run killed in between repeats the step and
                    # replaces its row. The other way round the row would be missing for
                    # good.
                    checkpoints.save_if_due(done)
                    stop.check()
        except (RunStopped, RewardError, ServerError):
            # The state is that after ``done`` steps: a continued run repeats the next.
            checkpoints.save_now(done)
            raise
        except Stopped as stopped:
            checkpoints.save_now(done)
            raise type(stopped)(f"stopped after step {done} of {last}") from None


@contextlib.contextmanager
def _metrics_writer(
    run_dir: RunDir, first: int, settings: RunConfig, config: Mapping[str, Any]
) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """Gives a function that writes the metrics of a step, in the primary process."""
    log = settings.log
    writer = hosts.on_primary(
        lambda: MetricsWriter(
            run_dir.path,
            resume_step=first - 1 if first else None,
            tensorboard=log.tensorboard,
            wandb_project=log.wandb_project,
            config=config,
        )
    )

    def write(step: int, metrics: Mapping[str, Any]) -> None:
        hosts.on_primary(lambda: writer.write(step, metrics))

    with contextlib.nullcontext() if writer is None else writer:
        yield write


def _progress_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    names = ("success", "write_precision", "reward", "kl")
    shown = {n: metrics.get(n) for n in names}
    return {n: round(v, 4) for n, v in shown.items() if v is not None}


@contextlib.contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Notes the seconds that its block took in ``seconds``, under a name."""
    began = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - began, 2)
