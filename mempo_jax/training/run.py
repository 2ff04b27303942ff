"""A whole run: cold start, evaluation, reinforcement learning, evaluation, export."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from mempo_jax.models.lora_files import save_adapters
from mempo_jax.rollout.http_client import ServerError
from mempo_jax.training import parts
from mempo_jax.training.advisors import make_advisors
from mempo_jax.training.checkpoint import Checkpoints
from mempo_jax.training.checks import RunStopped
from mempo_jax.training.cold_start import Progress, cold_start, quiet
from mempo_jax.training.evaluate import evaluate
from mempo_jax.training.loop import Trainer
from mempo_jax.training.metrics import MetricsWriter
from mempo_jax.training.remote import check_engine
from mempo_jax.training.run_settings import RunSettings
from mempo_jax.training.rundir import RunDir, identity


class Preempted(BaseException):
    """SIGTERM: what was computed is saved, and the run can be continued.

    No Exception, like KeyboardInterrupt: it may be raised within any call, and what
    guards that call against faults must let it pass.
    """


def run(
    settings: RunSettings,
    config: Mapping[str, Any],
    workdir: str,
    progress: Progress = quiet,
) -> dict[str, Any]:
    """Runs to the end, or continues a run that was stopped; returns the summary.

    A run that has ended with this number of steps is not touched.

    Raises:
      ConfigError: something does not fit; nothing was computed.
      RunStopped, ServerError: training cannot go on; a checkpoint was saved.
      Preempted, KeyboardInterrupt: SIGTERM or Ctrl-C during training; a checkpoint
        was saved.
    """
    place = RunDir(workdir)
    place.check(config)
    finished = place.load_json("summary.json")
    if finished is not None and finished.get("steps") == settings.train.steps:
        return finished
    suite = parts.make_suite(settings)
    parts.reward_function(settings)
    mesh = parts.make_run_mesh(settings)
    policy, reference = _policies(settings, suite, mesh)
    make_advisors(policy, settings, mesh)
    place.claim(config)
    with place.locked():
        seconds: dict[str, float] = {}
        try:
            # In the lock: it changes what a server holds, perhaps for another process.
            check_engine(policy, settings, mesh)
            with _timed(seconds, "cold_start"):
                _start(policy, settings, suite, mesh, place, progress)
        except parts.ConfigError:
            place.release()
            raise
        del policy  # or a second copy would stay in memory to the end
        return _stages(
            settings, config, suite, mesh, reference, seconds, place, progress
        )


def _stages(
    settings: RunSettings,
    config: Mapping[str, Any],
    suite,
    mesh,
    reference: parts.Policy | None,
    seconds: dict[str, float],
    place: RunDir,
    progress: Progress,
) -> dict[str, Any]:
    policy = parts.load_policy(str(place.cold_start), settings, mesh)
    trainer = Trainer(
        policy, suite, settings, mesh, reference=reference, dump=place.dump_update
    )
    with _timed(seconds, "warm_up"):
        progress("compiling", 0, 1, {})
        trainer.warm_up()
        progress("compiling", 1, 1, {})
    with _timed(seconds, "evaluate_cold_start"):
        before = _evaluated(trainer, "cold_start", place, progress)
    with _timed(seconds, "train"):
        _train(trainer, settings, config, place, progress)
    with _timed(seconds, "evaluate_trained"):
        after = _evaluated(trainer, "trained", place, progress)
    _export(trainer, place, config)
    summary = {
        "cold_start": before,
        "trained": after,
        "seconds": seconds,
        "steps": settings.train.steps,
    }
    place.save_json("summary.json", summary)
    return summary


def _policies(
    settings: RunSettings, suite, mesh
) -> tuple[parts.Policy, parts.Policy | None]:
    """The policy before the cold start, and another reference policy if any."""
    ref_path = settings.policy.ref_path
    policy = parts.initial_policy(suite, settings, mesh)
    if not ref_path:
        return policy, None
    reference = parts.load_policy(ref_path, settings, mesh)
    if reference.tokenizer.vocabulary() != policy.tokenizer.vocabulary():
        raise parts.ConfigError(
            f"config.policy.ref_path = {ref_path!r}: expected the policy's vocabulary "
            f"of {policy.tokenizer.vocab_size} tokens, got another one of "
            f"{reference.tokenizer.vocab_size}"
        )
    return policy, reference


def _start(
    policy: parts.Policy, settings: RunSettings, suite, mesh, place: RunDir, progress
) -> None:
    """Saves the policy after its cold start, unless that was done before."""
    if (place.cold_start / "config.json").is_file():
        return
    params = policy.params
    if settings.train.cold_start_steps:
        params = cold_start(policy, suite, settings, mesh, progress)
    place.save_dir(place.cold_start, lambda path: policy.save(path, params))


def _export(trainer: Trainer, place: RunDir, config: Mapping[str, Any]) -> None:
    """The trained policy as a whole, and its adapters alone where it has some."""
    policy, params = trainer.policy, trainer.params
    place.save_dir(place.policy, lambda path: policy.save(path, params, config))
    if policy.model.lora is not None:
        place.save_dir(
            place.adapters,
            lambda path: save_adapters(
                path, policy.config, params, policy.model.lora, place.cold_start
            ),
        )


def _evaluated(
    trainer: Trainer, name: str, place: RunDir, progress: Progress
) -> dict[str, Any]:
    known = place.load_json(f"evaluation_{name}.json") if name == "cold_start" else None
    if known is not None:
        return known
    summary, made = evaluate(
        trainer.engine,
        trainer.collector,
        trainer.suite,
        trainer.settings,
        trainer.params,
        name=name,
        progress=progress,
    )
    for how, trajectories in made.items():
        place.save_trajectories(f"{name}_{how}", trajectories)
    place.save_json(f"evaluation_{name}.json", summary)
    return summary


def _train(
    trainer: Trainer,
    settings: RunSettings,
    config: Mapping[str, Any],
    place: RunDir,
    progress: Progress,
) -> None:
    keep, every = settings.train.checkpoints_kept, settings.train.checkpoint_every
    saved = Checkpoints(place.checkpoints, keep=keep)
    fixed = _identities(trainer, settings)
    first = _restore(trainer, saved, fixed)
    log = settings.log
    last = settings.train.steps
    if first > last:
        raise parts.ConfigError(
            f"config.train.steps: expected at least {first}, the step that "
            f"--workdir={place.path} stands at, got {last}; use another --workdir"
        )
    with (
        contextlib.closing(saved),
        _stop_signals() as stop,
        MetricsWriter(
            place.path,
            resume_step=first - 1 if first else None,
            tensorboard=log.tensorboard,
            wandb_project=log.wandb_project,
            config=config,
        ) as metrics,
    ):

        def save(done: int) -> None:
            record = {"step": done, "config": dict(config)} | fixed
            saved.save(trainer.state, record)

        done = first
        progress("training", done, last, {})
        try:
            for figures, trajectories in trainer.run(first, last):
                metrics.write(done, figures)
                if log.trajectories_every and done % log.trajectories_every == 0:
                    place.save_trajectories(f"step_{done:06d}", trajectories)
                done += 1
                progress("training", done, last, _shown(figures))
                if done % every == 0 or done == last or stop:
                    save(done)
                if stop:
                    saved.wait()
                    if stop[0] == signal.SIGINT:
                        raise KeyboardInterrupt
                    raise Preempted(f"stopped after step {done} of {last}")
        except (RunStopped, ServerError):
            save(done)
            raise


def _identities(trainer: Trainer, settings: RunSettings) -> dict[str, str]:
    """What a checkpoint must be continued with: reference policy, and base weights
    where they are frozen and not the reference."""
    fixed = {"reference": identity(trainer.reference)}
    if settings.policy.lora.rank and settings.policy.ref_path:
        fixed["base"] = identity(trainer.frozen)
    return fixed


def _restore(trainer: Trainer, saved: Checkpoints, fixed: Mapping[str, str]) -> int:
    """Puts the newest checkpoint into the trainer; returns its step, 0 without one."""
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
        trainer.state,
    )
    found = saved.restore(target)
    if found is None:
        return 0
    for what, own in fixed.items():
        if found.metadata.get(what) != own:
            raise parts.ConfigError(
                f"{saved.directory}: its checkpoints were trained with another "
                f"{what} policy; cold_start/ or config.policy.ref_path has changed"
            )
    trainer.state = found.state
    return int(found.metadata["step"])


def _shown(figures: Mapping[str, Any]) -> dict[str, Any]:
    names = ("success", "write_precision", "reward", "kl")
    shown = {n: figures.get(n) for n in names}
    return {n: round(v, 4) for n, v in shown.items() if v is not None}


@contextlib.contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - began, 2)


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """The signals that came: SIGTERM, or SIGINT from Ctrl-C.

    The step under way is finished and saved; a second signal acts at once.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    at_once = {
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
    }

    def on_signal(number: int, frame: Any) -> None:
        came.append(number)
        for each, handler in at_once.items():
            signal.signal(each, handler)

    before = {number: signal.signal(number, on_signal) for number in at_once}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
