"""Cold start: supervised training on demonstrations gives the initial policy.

It uses the same episodes, segments and masks as reinforcement learning; only action
tokens are trained on. Demonstrations show the form of acting, not what is relevant.
Its checkpoints hold the training state and the position of its random draws, so that a
stopped cold start continues as if it had not been stopped.
"""

from __future__ import annotations

import hashlib
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Protocol

import jax
import numpy as np

from mempo_jax.builders.engines import batch_shapes
from mempo_jax.builders.memory_models import judge_demonstrations, without_policy
from mempo_jax.builders.policies import Policy, adapt
from mempo_jax.builders.suites import (
    guarded,
    left_out,
    make_episodes,
    make_expert,
    task_faults,
)
from mempo_jax.config import RunConfig
from mempo_jax.distributed import hosts
from mempo_jax.distributed.hosts import RunStopped, Stop, Stopped
from mempo_jax.distributed.placement import to_host
from mempo_jax.envs import EnvironmentFault, Task, TaskSuite, derived_seed
from mempo_jax.evaluation.held_out import Progress, no_progress
from mempo_jax.models import lora
from mempo_jax.rollout.assemble import bucket_of, pack
from mempo_jax.rollout.segments import Segment
from mempo_jax.rollout.time_limits import nothing
from mempo_jax.runs.run_dir import identity
from mempo_jax.settings import ConfigError
from mempo_jax.training.checkpoints import Checkpoints
from mempo_jax.training.demonstration_scores import DemonstrationScores, expert_ceiling
from mempo_jax.training.demonstrations import recorded, scripted
from mempo_jax.training.state import cold_start_optimiser, state_from_params
from mempo_jax.training.step import RunAheadLimit, TrainPrograms
from mempo_jax.types import Rows, TrainState

# The share of all rows that a length bucket needs to be drawn from by itself. Buckets
# are drawn equally often, so the few rows of a smaller one would come too often.
SMALLEST_STRATUM = 0.02


def cold_start(
    policy: Policy,
    suite: TaskSuite,
    settings: RunConfig,
    mesh: Any,
    progress: Progress = no_progress,
    *,
    kept: pathlib.Path | None = None,
    stop: Stop | None = None,
) -> Any:
    """Trains ``policy`` on demonstrations, or continues from the newest checkpoint.

    With ``policy.lora``, adapters are trained and merged at the end: reinforcement
    learning starts from fresh ones. A policy without ``policy.path`` has random
    weights, to which an adapter adds nothing of use: its cold start trains all weights.

    Args:
      policy: the policy to train.
      suite: the tasks to demonstrate.
      settings: of the run.
      mesh: the devices to train on.
      progress: called with the stage, steps done, steps in all, and the mean loss.
      kept: directory of checkpoints, one every ``train.cold_start_checkpoint_every``
        steps and one at the end; None: none, and ``stop`` is never checked.
      stop: checked before each micro-batch; None: one that hears signals itself.

    Returns:
      The parameters: on the mesh or, if adapters were merged, numpy.

    Raises:
      RunStopped: the loss was not finite.
      ConfigError, CheckpointError: a checkpoint in ``kept`` does not fit, or is
        damaged.
      Stopped: by ``stop``, after everything was saved.
    """
    # Random weights (no path) are trained whole, see above.
    if settings.policy.path:
        policy = adapt(policy, settings, mesh, "cold start")
    segments = demonstration_segments(policy, suite, settings, progress)
    # Each process plays them: one whose environment failed alone would train on others.
    if len(set(hosts.gather(lambda: digest(segments)))) > 1:
        raise ConfigError(
            f"config.env.name = {settings.env.name!r}: expected the same "
            "demonstrations in each process, got different ones; see the warnings of "
            "each, or set config.train.demonstrations_path"
        )
    optimiser = cold_start_optimiser(settings.train)
    programs = TrainPrograms(
        policy.model,
        mesh,
        optimiser,
        settings.objective,
        settings.credit,
        outcome_gate=settings.reward.outcome_gate,
        param_dtype=settings.policy.param_dtype,
    )
    # Without adapters everything is trained, and ``frozen`` is empty.
    trained, frozen = lora.split(policy.params)
    state = state_from_params(trained, optimiser, mesh)
    batches = Batches(segments, settings, mesh, policy.tokenizer.pad_id)
    if kept is None:
        run = _Steps(programs, frozen, batches, settings, progress)
        state = run.train(state, 0)
    else:
        every = settings.train.cold_start_checkpoint_every
        # A checkpoint holds trained weights and a position among the demonstrations;
        # these two must be what they were.
        fixed = {"demonstrations": digest(segments)}
        if policy.model.lora is not None:
            fixed["base"] = identity(frozen)
        keep = settings.train.checkpoints_kept
        with closing(ColdStartCheckpoints(kept, keep, every, fixed)) as checkpoints:
            stop = Stop() if stop is None else stop
            run = _Steps(
                programs, frozen, batches, settings, progress, checkpoints, stop
            )
            state, first = checkpoints.restore(state, batches)
            with stop.unsaved():
                state = run.train(state, first)
                checkpoints.wait()
    if policy.model.lora is None:
        return programs.trained(state)
    # In float32 on the host, see ``lora.merge``.
    return lora.merge(to_host(lora.join(state.params, frozen)), policy.model.lora)


def demonstration_segments(
    policy: Policy,
    suite: TaskSuite,
    settings: RunConfig,
    progress: Progress = no_progress,
) -> list[Segment]:
    """Plays all demonstrations; the same settings give the same segments in order.

    Args:
      policy: the policy to train, whose tokenizer encodes them.
      suite: the tasks.
      settings: of the run.
      progress: called with the number of demonstrations and their mean score.

    Raises:
      ConfigError: there are none, none fits into the context, a recorded one does not
        fit the tasks, or an environment failed.
    """
    train = settings.train
    memory_models = without_policy(settings)
    # With limits: no collector stands between these environments and the run.
    episodes = make_episodes(guarded(suite), settings, memory_models)
    scores, newest = DemonstrationScores(suite, settings), []  # at most one episode
    faults = task_faults(suite, settings, "demonstrations were played")
    ceiling = None

    def make(task: Task):
        # Kept until it has ended, when its score is read.
        faults.tried += 1
        newest[:] = [episodes(task, f"demonstration-{task.id}", variant=task.index)]
        return newest[0]

    def failed(error: EnvironmentFault) -> None:
        left_out(suite, faults, error)

    if train.demonstrations_path:
        demonstrations = recorded(
            train.demonstrations_path, suite.task, make, policy.tokenizer, failed
        )
    else:
        tasks = [suite.task("train", i) for i in range(train.demonstrations)]
        ceiling = expert_ceiling(suite, settings, progress)
        expert = make_expert(suite, settings)
        demonstrations = scripted(make, tasks, expert, policy.tokenizer, failed)
    segments: list[Segment] = []
    for played in demonstrations:
        try:
            scores.add(newest[0], played)
        except EnvironmentFault as error:
            failed(error)
            continue
        segments += played
        count = len(scores.scores) + faults.count
        # One report for each would be too many.
        if count % 16 == 0 or count == train.demonstrations:
            metrics = {"score": round(scores.mean, 3)}
            progress("demonstrations", count, train.demonstrations, metrics)
    faults.tried = len(scores.scores) + faults.count
    if faults.count and not segments:
        raise faults.error()
    faults.warn()
    if not segments:
        if train.demonstrations_path:
            raise ConfigError(
                f"{train.demonstrations_path}: expected at least one demonstration, "
                "got none; see config.train.demonstrations_path"
            )
        raise ConfigError(
            "config.context.max_context_tokens: expected room for the first turn of a "
            f"task, got {settings.context.max_context_tokens}: no demonstration fits"
        )
    scores.check(ceiling)
    examples = judge_demonstrations(memory_models, policy, settings, len(segments))
    return segments + examples


class Batches:
    """Endless optimiser batches of about ``cold_start_rows`` rows.

    Rows are drawn evenly over the length buckets, so that the few long rows (a recall,
    its results, an answer) are learnt as well as the many short ones.
    """

    def __init__(
        self, segments: Sequence[Segment], settings: RunConfig, mesh: Any, pad_id: int
    ) -> None:
        """Sorts the segments by length; draws none yet.

        Args:
          segments: of all demonstrations; at least one.
          settings: of the run.
          mesh: decides how many rows a micro-batch has.
          pad_id: fills the padding of rows.
        """
        self._shapes, self._pad_id = batch_shapes(settings, mesh), pad_id
        # A stream of its own, so that no other draw of the run shifts the batches.
        self._rng = np.random.default_rng(derived_seed("cold-start", settings.seed))
        self._strata = by_length(segments, self._shapes.length_buckets)
        # Rows of each bucket in a batch.
        self._share = max(1, settings.train.cold_start_rows // len(self._strata))

    @property
    def position(self) -> dict[str, Any]:
        """Of the next draw, for JSON; Batches set to it draw the same from there."""
        return self._rng.bit_generator.state

    @position.setter
    def position(self, position: dict[str, Any]) -> None:
        self._rng.bit_generator.state = position

    def draw(self) -> list[Rows]:
        """The micro-batches of the next step."""
        batch = []
        for length, members in self._strata.items():
            rows = self._shapes.rows_of(length)
            for _ in range(max(1, round(self._share / rows))):
                # With replacement: the generator's state is then all that a checkpoint
                # needs, and no permutation has to be kept.
                drawn = self._rng.integers(len(members), size=rows)
                # The supervised loss knows no trajectories: all rows are of number 0.
                segments = [(0, members[i]) for i in drawn]
                batch += pack(segments, self._shapes, self._pad_id)
        return batch


def by_length(
    segments: Sequence[Segment], buckets: Sequence[int]
) -> dict[int, list[Segment]]:
    """Sorts segments by length bucket; a bucket with too few joins the next longer.

    The longest bucket in use has none to join and is drawn as often as the others,
    however few rows it holds.

    Args:
      segments: all that are trained on.
      buckets: lengths of rows, ascending.

    Returns:
      The segments of each bucket that has any, by its length.
    """
    strata: dict[int, list[Segment]] = {}
    for segment in segments:
        strata.setdefault(bucket_of(len(segment.tokens), buckets), []).append(segment)
    # Ascending, so that what joins a longer bucket counts when that one is judged.
    lengths = sorted(strata)
    for length, longer in itertools.pairwise(lengths):
        if len(strata[length]) < len(segments) * SMALLEST_STRATUM:
            strata[longer] += strata.pop(length)
    return {length: strata[length] for length in sorted(strata)}


class _Steps:
    """The optimiser steps, with their checkpoints and reports."""

    def __init__(
        self,
        programs: TrainPrograms,
        frozen: Any,
        batches: Batches,
        settings: RunConfig,
        progress: Progress,
        checkpoints: ColdStartCheckpoints | None = None,
        stop: Stop | None = None,
    ) -> None:
        self._programs, self._frozen, self._batches = programs, frozen, batches
        self._last, self._progress = settings.train.cold_start_steps, progress
        self._checkpoints, self._limit_run_ahead = checkpoints, RunAheadLimit()
        self._check = nothing if stop is None else stop.check

    def train(self, state: TrainState, first: int) -> TrainState:
        """Does the steps from number ``first``; see ``cold_start``.

        Args:
          state: after ``first`` steps.
          first: steps done before.
        """
        losses = []
        self._progress("cold start", first, self._last, {})
        for step in range(first, self._last):
            position = self._batches.position  # a stopped step draws the same again
            try:
                sums = self._sums(state)
            except Stopped:
                self._checkpoints.save_now(step, state, position)
                raise
            state, metrics = self._programs.apply(state, sums)
            losses.append(metrics["loss"])  # stays on the devices: reading would wait
            # Now and then, since a report waits for the devices.
            if step % 25 == 24 or step == self._last - 1:
                self._report(step, losses)
                losses = []
            if self._checkpoints is not None:
                self._checkpoints.save_if_due(
                    step + 1, self._last, state, self._batches
                )
        return state

    def _sums(self, state: TrainState) -> Any:
        sums = self._programs.supervised_zeros()
        params = lora.join(self._programs.trained(state), self._frozen)
        for rows in self._batches.draw():
            self._limit_run_ahead(sums)
            self._check()  # the state is whole until the step's update
            sums = self._programs.supervised_accumulate(params, sums, rows)
        return sums

    def _report(self, step: int, losses: Sequence[Any]) -> None:
        loss = float(np.mean(jax.device_get(losses)))
        if not np.isfinite(loss):
            raise RunStopped(
                f"cold start, step {step}: expected a finite loss, got {loss}; "
                "lower config.train.cold_start_learning_rate"
            )
        metrics = {"loss": round(loss, 4)}
        self._progress("cold start", step + 1, self._last, metrics)


class Draws(Protocol):
    """Random draws that can be continued from a saved ``position``.

    Attributes:
      position: of the next draw, in a form that JSON can hold.
    """

    position: dict[str, Any]


class ColdStartCheckpoints:
    """The checkpoints of one cold start."""

    def __init__(
        self, directory: pathlib.Path, keep: int, every: int, fixed: Mapping[str, str]
    ) -> None:
        """Opens or makes the directory.

        Args:
          directory: of the checkpoints.
          keep: how many of the last ones to keep.
          every: steps from one to the next.
          fixed: digests by name; a continued cold start must have the same.
        """
        self._checkpoints = Checkpoints(directory, keep=keep)
        self._every, self._fixed = every, dict(fixed)

    def restore(self, fresh: TrainState, draws: Draws) -> tuple[TrainState, int]:
        """Reads the newest checkpoint, and sets ``draws`` to what follows it.

        Args:
          fresh: the state before the first step, on the shardings to restore to.
          draws: left as they are if there is no checkpoint.

        Returns:
          The newest state and its step; ``fresh`` and 0 if there is none.

        Raises:
          ConfigError: it was trained on other demonstrations, or other weights.
          CheckpointError: none can be read.
        """
        # Shapes, dtypes and shardings are all that a restore needs to know.
        target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), fresh
        )
        restored = self._checkpoints.restore(target)
        if restored is None:
            return fresh, 0
        for what, own in self._fixed.items():
            if restored.metadata.get(what) != own:
                raise ConfigError(
                    f"{self._checkpoints.directory}: the cold start began with other "
                    f"weights or demonstrations ({what}), see config.policy.path and "
                    "config.train.demonstrations_path; put them back, or use another "
                    "--workdir"
                )
        draws.position = restored.metadata["position"]
        return restored.state, int(restored.metadata["step"])

    def save_if_due(self, done: int, last: int, state: TrainState, draws: Draws):
        """Starts to save after every ``every``-th step, and after the last.

        Args:
          done: steps done.
          last: steps of the whole cold start.
          state: after these steps.
          draws: at the position of the next step.
        """
        if done % self._every == 0 or done == last:
            self._save(done, state, draws.position)

    def save_now(self, done: int, state: TrainState, position: dict[str, Any]) -> None:
        """Saves, and returns when that is on disk.

        Args:
          done: steps done; 0 saves nothing.
          state: after these steps.
          position: of the next step's draws.
        """
        self._save(done, state, position)
        self.wait()

    def wait(self) -> None:
        """Returns when the save in progress is on disk."""
        self._checkpoints.wait()

    def close(self) -> None:
        """Finishes the save in progress."""
        self._checkpoints.close()

    def _save(self, done: int, state: TrainState, position: dict[str, Any]) -> None:
        # The state before the first step is cheap to make again.
        if done:
            record = {"step": done, "position": position} | self._fixed
            self._checkpoints.save(state, record)


def digest(segments: Sequence[Segment]) -> str:
    """SHA-256 over the tokens of demonstrations, and which of them are trained on.

    Args:
      segments: of all demonstrations, in their order.
    """
    # Fixed dtypes below: numpy's default integer is not the same on all machines.
    sha256 = hashlib.sha256()
    for segment in segments:
        sha256.update(np.asarray(segment.tokens, np.int64).tobytes())
        # The same tokens under another mask would teach something else.
        sha256.update(np.asarray(segment.is_action, bool).tobytes())
    return sha256.hexdigest()
