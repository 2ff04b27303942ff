"""Cold start: supervised training on demonstrations gives the initial policy.

It uses the same episodes, segments and masks as reinforcement learning; only action
tokens are trained on. Demonstrations show the form of acting, not what is relevant.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from mempo_jax.envs import Task, TaskSuite, derived_seed
from mempo_jax.models import lora
from mempo_jax.rollout.assemble import bucket_of, pack
from mempo_jax.rollout.segments import Segment
from mempo_jax.settings import ConfigError
from mempo_jax.training import parts
from mempo_jax.training.adapters import adapt
from mempo_jax.training.advisors import judgements, without_policy
from mempo_jax.training.checks import RunStopped
from mempo_jax.training.demonstrations import recorded, scripted
from mempo_jax.training.run_settings import RunSettings
from mempo_jax.training.state import make_optimiser, state_from_params
from mempo_jax.training.step import Programs
from mempo_jax.types import Rows

SMALLEST_STRATUM = 0.02  # of all rows; rarer lengths are drawn with a longer one

Progress = Callable[[str, int, int, dict[str, Any]], None]


def quiet(stage: str, done: int, total: int, figures: dict[str, Any]) -> None:
    """A Progress that shows nothing."""


def demonstration_segments(
    policy: parts.Policy,
    suite: TaskSuite,
    settings: RunSettings,
    progress: Progress = quiet,
) -> list[Segment]:
    """Segments of all demonstrations, in a fixed order."""
    train = settings.train
    advised = without_policy(settings)
    episodes = parts.make_episodes(suite, settings, advised)

    def make(task: Task):
        return episodes(task, f"demonstration-{task.id}", variant=task.index)

    if train.demonstrations_path:
        made = recorded(train.demonstrations_path, suite.task, make, policy.tokenizer)
    else:
        tasks = [suite.task("train", i) for i in range(train.demonstrations)]
        made = scripted(make, tasks, suite.expert(), policy.tokenizer)
    segments: list[Segment] = []
    for count, more in enumerate(made, start=1):
        segments += more
        if count % 16 == 0 or count == train.demonstrations:
            progress("demonstrations", count, train.demonstrations, {})
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
    return segments + judgements(advised, policy, settings, len(segments))


def cold_start(
    policy: parts.Policy,
    suite: TaskSuite,
    settings: RunSettings,
    mesh: Any,
    progress: Progress = quiet,
) -> Any:
    """Trains ``policy`` on demonstrations.

    With ``policy.lora`` on adapters are trained, and merged at the end: what comes
    next starts from fresh ones. A policy that was made here has random weights, which
    nothing can be adapted of: its cold start trains them all.

    Returns:
      The parameters, on the mesh or, where adapters were merged, numpy.

    Raises:
      RunStopped: loss or gradient was not finite.
    """
    if settings.policy.path:
        policy = adapt(policy, settings, mesh, "cold start")
    steps = settings.train.cold_start_steps
    segments = demonstration_segments(policy, suite, settings, progress)
    optimiser = make_optimiser(parts.cold_start_optimiser(settings))
    programs = Programs(
        policy.model,
        mesh,
        optimiser,
        parts.objective(settings),
        parts.advantage(settings),
        settings.credit,
    )
    trained, frozen = lora.split(policy.params)
    state = state_from_params(trained, optimiser, mesh)
    batches = _batches(segments, settings, mesh, policy.tokenizer.pad_id)
    losses = []
    progress("cold start", 0, steps, {})
    for step in range(steps):
        sums = programs.supervised_zeros()
        for rows in next(batches):
            params = lora.join(state.params, frozen)
            sums = programs.supervised_accumulate(params, sums, rows)
        state, figures = programs.apply(state, sums)
        losses.append(figures["loss"])
        if step % 25 == 24 or step == steps - 1:
            loss = float(np.mean(jax.device_get(losses)))
            if not np.isfinite(loss):
                raise RunStopped(
                    f"cold start, step {step}: expected a finite loss, got {loss}; "
                    "lower config.train.cold_start_learning_rate"
                )
            losses = []
            progress("cold start", step + 1, steps, {"loss": round(loss, 4)})
    if policy.model.lora is None:
        return state.params
    return lora.merge(lora.join(state.params, frozen), policy.model.lora)


def _batches(
    segments: Sequence[Segment], settings: RunSettings, mesh: Any, pad_id: int
) -> Iterator[list[Rows]]:
    """Endless optimiser batches of about ``cold_start_rows`` rows.

    Rows are drawn evenly over the length buckets, so that the few long rows (a recall,
    its results, an answer) are learnt as well as the many short ones.
    """
    shapes = parts.shapes(settings, mesh)
    rng = np.random.default_rng(derived_seed("cold-start", settings.seed))
    strata = by_length(segments, shapes.length_buckets)
    share = max(1, settings.train.cold_start_rows // len(strata))
    while True:
        batch = []
        for length, members in strata.items():
            rows = shapes.rows_of(length)
            for _ in range(max(1, round(share / rows))):
                drawn = rng.integers(len(members), size=rows)
                batch += pack([(0, members[i]) for i in drawn], shapes, pad_id)
        yield batch


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
