"""Cold start: supervised training on demonstrations gives the initial policy.

It uses the same episodes, segments and masks as reinforcement learning; only action
tokens are trained on. Demonstrations show the form of acting, not what is relevant.

Checkpoints of a cold start: a state, and where its draws stand.
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
from mempo_jax.builders.suites import faults_named, make_episodes, make_expert
from mempo_jax.config import RunConfig
from mempo_jax.distributed.hosts import RunStopped, Stop, Stopped
from mempo_jax.distributed.placement import to_host
from mempo_jax.envs import Task, TaskSuite, derived_seed
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


class Draws(Protocol):
    """Random draws that can be gone on with; ``position`` is what JSON can hold."""

    position: dict[str, Any]


class ColdStartCheckpoints:
    """The checkpoints of one cold start.

    every: steps from one to the next. fixed: by name, what must be the same where it is
    gone on with.
    """

    def __init__(
        self, directory: pathlib.Path, keep: int, every: int, fixed: Mapping[str, str]
    ) -> None:
        self._saved = Checkpoints(directory, keep=keep)
        self._every, self._fixed = every, dict(fixed)

    def restore(self, fresh: TrainState, draws: Draws) -> tuple[TrainState, int]:
        """The newest state and its step, with ``draws`` set to what follows; ``fresh``
        and 0 where there is none.

        Raises:
          ConfigError: it was trained on other demonstrations, or other weights.
          CheckpointError: none can be read.
        """
        target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), fresh
        )
        found = self._saved.restore(target)
        if found is None:
            return fresh, 0
        for what, own in self._fixed.items():
            if found.metadata.get(what) != own:
                raise ConfigError(
                    f"{self._saved.directory}: the cold start began with other weights "
                    f"or demonstrations ({what}), see config.policy.path and config."
                    "train.demonstrations_path; put them back, or use another --workdir"
                )
        draws.position = found.metadata["position"]
        return found.state, int(found.metadata["step"])

    def save_if_due(self, done: int, last: int, state: TrainState, draws: Draws):
        """Starts to save behind every ``every``-th step, and behind the ``last``."""
        if done % self._every == 0 or done == last:
            self._save(done, state, draws.position)

    def save_now(self, done: int, state: TrainState, position: dict[str, Any]) -> None:
        """Returns when the state behind ``done`` steps is on disk."""
        self._save(done, state, position)
        self.wait()

    def wait(self) -> None:
        """Returns when the save in progress is on disk."""
        self._saved.wait()

    def close(self) -> None:
        """Finishes the save in progress."""
        self._saved.close()

    def _save(self, done: int, state: TrainState, position: dict[str, Any]) -> None:
        if done:
            record = {"step": done, "position": position} | self._fixed
            self._saved.save(state, record)


def digest(segments: Sequence[Segment]) -> str:
    """SHA-256 over the tokens of demonstrations, and which of them are trained on."""
    made = hashlib.sha256()
    for segment in segments:
        made.update(np.asarray(segment.tokens, np.int64).tobytes())
        made.update(np.asarray(segment.is_action, bool).tobytes())
    return made.hexdigest()


SMALLEST_STRATUM = 0.02  # of all rows; rarer lengths are drawn with a longer one


def demonstration_segments(
    policy: Policy,
    suite: TaskSuite,
    settings: RunConfig,
    progress: Progress = no_progress,
) -> list[Segment]:
    """Segments of all demonstrations, in a fixed order."""
    train = settings.train
    advised = without_policy(settings)
    episodes = make_episodes(suite, settings, advised)
    scores, newest = DemonstrationScores(suite, settings), []
    ceiling = None

    def make(task: Task):
        newest[:] = [
            episodes(task, f"demonstration-{task.id}", variant=task.index)
        ]  # its score is read when it has ended
        return newest[0]

    if train.demonstrations_path:
        made = recorded(train.demonstrations_path, suite.task, make, policy.tokenizer)
    else:
        tasks = [suite.task("train", i) for i in range(train.demonstrations)]
        ceiling = expert_ceiling(suite, settings, progress)
        expert = make_expert(suite, settings)
        made = scripted(make, tasks, expert, policy.tokenizer)
    segments: list[Segment] = []
    with faults_named():
        for count, more in enumerate(made, start=1):
            segments += more
            scores.add(newest[0], more)
            if count % 16 == 0 or count == train.demonstrations:
                figures = {"score": round(scores.mean, 3)}
                progress("demonstrations", count, train.demonstrations, figures)
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
    return segments + judge_demonstrations(advised, policy, settings, len(segments))


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
    """Trains ``policy`` on demonstrations, or goes on where that was stopped.

    With ``policy.lora`` on adapters are trained, and merged at the end: what comes
    next starts from fresh ones. A policy that was made here has random weights, which
    nothing can be adapted of: its cold start trains them all.

    Args:
      kept: directory of checkpoints, one every ``train.cold_start_checkpoint_every``
        steps and one at the end; None: none, and ``stop`` is not asked.

    Returns:
      The parameters, on the mesh or, where adapters were merged, numpy.

    Raises:
      RunStopped: loss or gradient was not finite.
      ConfigError, CheckpointError: what lies in ``kept`` does not fit, or is damaged.
      Stopped: by ``stop``, with all saved.
    """
    if settings.policy.path:
        policy = adapt(policy, settings, mesh, "cold start")
    segments = demonstration_segments(policy, suite, settings, progress)
    optimiser = cold_start_optimiser(settings.train)
    programs = TrainPrograms(
        policy.model,
        mesh,
        optimiser,
        settings.objective,
        settings.credit,
        outcome_gate=settings.reward.outcome_gate,
    )
    trained, frozen = lora.split(policy.params)
    state = state_from_params(trained, optimiser, mesh)
    batches = Batches(segments, settings, mesh, policy.tokenizer.pad_id)
    if kept is None:
        run = _Steps(programs, frozen, batches, settings, progress)
        state = run.train(state, 0)
    else:
        every = settings.train.cold_start_checkpoint_every
        fixed = {"demonstrations": digest(segments)}
        if policy.model.lora is not None:
            fixed["base"] = identity(frozen)
        keep = settings.train.checkpoints_kept
        with closing(ColdStartCheckpoints(kept, keep, every, fixed)) as saved:
            stop = Stop() if stop is None else stop
            run = _Steps(programs, frozen, batches, settings, progress, saved, stop)
            state, first = saved.restore(state, batches)
            with stop.unsaved():
                state = run.train(state, first)
                saved.wait()
    if policy.model.lora is None:
        return state.params
    return lora.merge(to_host(lora.join(state.params, frozen)), policy.model.lora)


class Batches:
    """Endless optimiser batches of about ``cold_start_rows`` rows.

    Rows are drawn evenly over the length buckets, so that the few long rows (a recall,
    its results, an answer) are learnt as well as the many short ones.

    position: of its draws, for JSON; a Batches that is set to it draws what follows.
    """

    def __init__(
        self, segments: Sequence[Segment], settings: RunConfig, mesh: Any, pad_id: int
    ) -> None:
        self._shapes, self._pad_id = batch_shapes(settings, mesh), pad_id
        self._rng = np.random.default_rng(derived_seed("cold-start", settings.seed))
        self._strata = by_length(segments, self._shapes.length_buckets)
        self._share = max(1, settings.train.cold_start_rows // len(self._strata))

    @property
    def position(self) -> dict[str, Any]:
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
                drawn = self._rng.integers(len(members), size=rows)
                segments = [(0, members[i]) for i in drawn]
                batch += pack(segments, self._shapes, self._pad_id)
        return batch


class _Steps:
    """The optimiser steps, with what is saved of them."""

    def __init__(
        self,
        programs: TrainPrograms,
        frozen: Any,
        batches: Batches,
        settings: RunConfig,
        progress: Progress,
        saved: ColdStartCheckpoints | None = None,
        stop: Stop | None = None,
    ) -> None:
        self._programs, self._frozen, self._batches = programs, frozen, batches
        self._last, self._progress = settings.train.cold_start_steps, progress
        self._saved, self._pace = saved, RunAheadLimit()
        self._check = nothing if stop is None else stop.check

    def train(self, state: TrainState, first: int) -> TrainState:
        """Steps ``first`` to the last; see ``cold_start``."""
        losses = []
        self._progress("cold start", first, self._last, {})
        for step in range(first, self._last):
            position = self._batches.position
            try:
                sums = self._sums(state)
            except Stopped:
                self._saved.save_now(step, state, position)
                raise
            state, figures = self._programs.apply(state, sums)
            losses.append(figures["loss"])
            if step % 25 == 24 or step == self._last - 1:
                self._report(step, losses)
                losses = []
            if self._saved is not None:
                self._saved.save_if_due(step + 1, self._last, state, self._batches)
        return state

    def _sums(self, state: TrainState) -> Any:
        sums = self._programs.supervised_zeros()
        for rows in self._batches.draw():
            self._pace(sums)
            self._check()
            params = lora.join(state.params, self._frozen)
            sums = self._programs.supervised_accumulate(params, sums, rows)
        return sums

    def _report(self, step: int, losses: Sequence[Any]) -> None:
        loss = float(np.mean(jax.device_get(losses)))
        if not np.isfinite(loss):
            raise RunStopped(
                f"cold start, step {step}: expected a finite loss, got {loss}; "
                "lower config.train.cold_start_learning_rate"
            )
        figures = {"loss": round(loss, 4)}
        self._progress("cold start", step + 1, self._last, figures)


def by_length(
    segments: Sequence[Segment], buckets: Sequence[int]
) -> dict[int, list[Segment]]:
    """Segments by the bucket that holds them; buckets of too few join a longer one.

    The longest bucket in use has none to join and is drawn as often as the others,
    however few rows it holds.
    """
    strata: dict[int, list[Segment]] = {}
    for segment in segments:
        strata.setdefault(bucket_of(len(segment.tokens), buckets), []).append(segment)
    lengths = sorted(strata)
    for length, longer in itertools.pairwise(lengths):
        if len(strata[length]) < len(segments) * SMALLEST_STRATUM:
            strata[longer] += strata.pop(length)
    return {length: strata[length] for length in sorted(strata)}
