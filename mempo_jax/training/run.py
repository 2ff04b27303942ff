"""A whole run: cold start, evaluation, reinforcement learning, evaluation, export."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mempo_jax.builders.engines import check_engine, check_server, make_run_mesh
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
    """Runs to the end, or continues a run that was stopped; returns the summary.

    A run that has ended with this number of steps is not touched.

    Args:
      stop: whether to end early; None: SIGTERM and Ctrl-C do, while there is something
        to save (from the main thread).

    Raises:
      ConfigError: something does not fit; nothing was computed.
      RunStopped, RewardError, ServerError: training cannot go on; a checkpoint was
        saved.
      CheckpointError, OSError: something could not be written; what was is kept.
      Stopped: by ``stop``; all is saved.
    """
    stop = Stop() if stop is None else stop
    place = RunDir(workdir)
    # What depends on files is looked at once, or the processes might see it change.
    hosts.on_primary(lambda: place.check(config))
    finished = hosts.from_primary(lambda: place.ended(settings.train.steps))
    if finished is not None:
        return finished
    _try_optional_parts(settings)
    suite = make_suite(settings)
    mesh = make_run_mesh(settings)
    policy, reference = _policies(settings, suite, mesh)
    make_memory_models(policy, settings, mesh)
    hosts.on_primary(lambda: place.claim(config))
    with contextlib.ExitStack() as held:
        hosts.on_primary(lambda: held.enter_context(place.locked()))
        hosts.on_primary(place.note_machine)
        seconds: dict[str, float] = {}
        try:
            # In the lock: it changes what a server holds, perhaps for another process.
            check_engine(policy, settings, mesh)
            with _timed(seconds, "cold_start"):
                _start(policy, settings, suite, mesh, place, progress, stop)
        except ConfigError:
            if hosts.primary():
                place.release()
            raise
        del policy  # or a second copy would stay in memory to the end
        stop.check()
        trained = load_policy(str(place.cold_start), settings, mesh)
        trainer = Trainer(
            *(trained, suite, settings, mesh),
            reference=reference,
            dump=place.dump_update,
            stop=stop,
        )
        del trained, reference
        return _stages(trainer, config, seconds, place, progress, stop)


def _try_optional_parts(settings: RunConfig) -> None:
    """Tries what a run would else first use minutes after its start.

    Raises:
      ConfigError: a missing package, login, file, server or reward function.
    """
    reward_function(settings)
    if settings.train.demonstrations_path and settings.train.cold_start_steps:
        check_file(settings.train.demonstrations_path)
    if settings.memory.embedder == "sentence_transformers":
        settings.memory.make_embedder()
    hosts.on_primary(lambda: check_wandb(settings.log.wandb_project))
    hosts.on_primary(lambda: check_server(settings))


def _stages(
    trainer: Trainer,
    config: Mapping[str, Any],
    seconds: dict[str, float],
    place: RunDir,
    progress: Progress,
    stop: Stop,
) -> dict[str, Any]:
    """What follows the cold start; between two stages nothing is unsaved."""
    with _timed(seconds, "warm_up"):
        progress("compiling", 0, 1, {})
        trainer.warm_up()
        progress("compiling", 1, 1, {})
    stop.check()
    with _timed(seconds, "evaluate_cold_start"):
        before = _evaluated(trainer, "cold_start", place, progress)
    stop.check()
    kept = RunCheckpoints(trainer, config, place)
    with _timed(seconds, "train"):
        _train(trainer, config, place, kept, stop, progress)
    with _timed(seconds, "evaluate_trained"):
        after = _evaluated(trainer, "trained", place, progress)
    stop.check()
    _export(trainer, place, config)
    steps = trainer.settings.train.steps
    summary = {"cold_start": before, "trained": after}
    best = kept.put_back_best()
    if best is not None:
        policy, params = trainer.policy, trainer.params
        place.save_dir(place.best, lambda path: policy.save(path, params, config))
        summary["best_step"] = best
    summary |= {"seconds": seconds, "steps": steps}
    place.save_json("summary.json", summary)
    return summary


def _policies(settings: RunConfig, suite, mesh) -> tuple[Policy, Policy | None]:
    """The policy before the cold start, and another reference policy if any."""
    ref_path = settings.policy.ref_path
    policy = initial_policy(suite, settings, mesh)
    if not ref_path:
        return policy, None
    reference = load_policy(ref_path, settings, mesh)
    if reference.tokenizer.vocabulary() != policy.tokenizer.vocabulary():
        raise ConfigError(
            f"config.policy.ref_path = {ref_path!r}: expected the policy's vocabulary "
            f"of {policy.tokenizer.vocab_size} tokens, got another one of "
            f"{reference.tokenizer.vocab_size}"
        )
    return policy, reference


def _start(
    policy: Policy,
    settings: RunConfig,
    suite,
    mesh,
    place: RunDir,
    progress: Progress,
    stop: Stop,
) -> None:
    """Saves the policy after its cold start, unless that was done before."""
    kept = place.cold_start_checkpoints
    if not hosts.from_primary((place.cold_start / "config.json").is_file):
        params = policy.params
        if settings.train.cold_start_steps:
            params = cold_start(
                *(policy, suite, settings, mesh, progress), kept=kept, stop=stop
            )
        place.save_dir(place.cold_start, lambda path: policy.save(path, params))
    hosts.on_primary(lambda: shutil.rmtree(kept, ignore_errors=True))


def _export(trainer: Trainer, place: RunDir, config: Mapping[str, Any]) -> None:
    """The trained policy as a whole, and its adapters alone where it has some."""
    policy, params = trainer.policy, trainer.params
    place.save_dir(place.policy, lambda path: policy.save(path, params, config))
    if policy.model.lora is None:
        return

    def save(path: pathlib.Path) -> None:
        adapters = to_host(lora.split(params)[0])
        if hosts.primary():
            save_adapters(
                path, policy.config, adapters, policy.model.lora, place.cold_start
            )

    place.save_dir(place.adapters, save)


def _evaluated(
    trainer: Trainer, name: str, place: RunDir, progress: Progress
) -> dict[str, Any]:
    if name == "cold_start":
        file = f"evaluation_{name}.json"
        known = hosts.from_primary(lambda: place.load_json(file))
        if known is not None:
            return known
    summary, made = evaluate(
        trainer.engine,
        trainer.collector,
        trainer.suite,
        trainer.settings,
        trainer.local_params,
        name=name,
        progress=progress,
    )
    for how, trajectories in made.items():
        place.save_trajectories(f"{name}_{how}", trajectories)
    place.save_json(f"evaluation_{name}.json", summary)
    return summary


def _train(
    trainer: Trainer,
    config: Mapping[str, Any],
    place: RunDir,
    kept: RunCheckpoints,
    stop: Stop,
    progress: Progress,
) -> None:
    """All steps that are left, each written down before what comes behind it."""
    settings = trainer.settings
    log, last = settings.log, settings.train.steps
    first = kept.restore()
    with (
        stop.unsaved(),
        kept.closing(),
        _record(place, first, settings, config) as write,
    ):
        done = first
        progress("training", done, last, {})
        try:
            for figures, trajectories in trainer.run(first, last):
                kept.note(done, figures)
                write(done, figures)
                if log.records(done):
                    place.save_trajectories(f"step_{done:06d}", trajectories)
                done += 1
                progress("training", done, last, _shown(figures))
                kept.save_if_due(done)
                stop.check()
        except (RunStopped, RewardError, ServerError):
            kept.save_now(done)
            raise
        except Stopped as stopped:
            kept.save_now(done)
            raise type(stopped)(f"stopped after step {done} of {last}") from None


@contextlib.contextmanager
def _record(
    place: RunDir, first: int, settings: RunConfig, config: Mapping[str, Any]
) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """Writes the figures of a step to the metrics; one process does."""
    log = settings.log
    metrics = hosts.on_primary(
        lambda: MetricsWriter(
            place.path,
            resume_step=first - 1 if first else None,
            tensorboard=log.tensorboard,
            wandb_project=log.wandb_project,
            config=config,
        )
    )

    def write(step: int, figures: Mapping[str, Any]) -> None:
        hosts.on_primary(lambda: metrics.write(step, figures))

    with contextlib.nullcontext() if metrics is None else metrics:
        yield write


def _shown(figures: Mapping[str, Any]) -> dict[str, Any]:
    names = ("success", "write_precision", "reward", "kl")
    shown = {n: figures.get(n) for n in names}
    return {n: round(v, 4) for n, v in shown.items() if v is not None}


@contextlib.contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - began, 2)
