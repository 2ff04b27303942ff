"""Evaluation of a policy on held-out tasks, sampled and greedy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from mempo_jax.builders.engines import make_decoding
from mempo_jax.config import RunConfig
from mempo_jax.distributed import hosts
from mempo_jax.envs import Task, TaskSuite
from mempo_jax.evaluation.stats import by_category, summarise
from mempo_jax.rollout.collect import Collector, Job
from mempo_jax.rollout.engine import Engine
from mempo_jax.rollout.trajectory import Trajectory

Progress = Callable[[str, int, int, dict[str, Any]], None]


def no_progress(stage: str, done: int, total: int, figures: dict[str, Any]) -> None:
    """A Progress that shows nothing."""


def held_out_tasks(suite: TaskSuite, settings: RunConfig) -> list[Task]:
    """The first ``train.eval_tasks`` test tasks, or as many as there are."""
    wanted, size = settings.train.eval_tasks, suite.size("test")
    count = wanted if size is None else min(wanted, size)
    return [suite.task("test", index) for index in range(count)]


def run_held_out(
    engine: Engine,
    collector: Collector,
    suite: TaskSuite,
    settings: RunConfig,
    params: Any,
    *,
    greedy: bool,
    stage: str,
    progress: Progress = no_progress,
) -> list[Trajectory]:
    """One trajectory of each of the held-out tasks, each run by one of the processes.

    Args:
      params: on the devices of this process; see ``placing.to_local``.
      progress: of this process's share.
    """
    engine.set_params(params)
    tasks = hosts.share(held_out_tasks(suite, settings))
    count = len(tasks)
    jobs = [Job(task, 0, settings.seed, "evaluate", 0) for task in tasks]
    scores: list[float] = []
    progress(stage, 0, count, {})

    def on_done(trajectory: Trajectory) -> None:
        scores.append(trajectory.score)
        if len(scores) % 16 == 0 or len(scores) == count:
            success = round(sum(scores) / len(scores), 3)
            progress(stage, len(scores), count, {"success": success})

    how = make_decoding(settings, greedy=greedy)
    made = hosts.gather(lambda: collector.run(jobs, how, on_done))
    return list(itertools.chain.from_iterable(made))


def evaluate(
    engine: Engine,
    collector: Collector,
    suite: TaskSuite,
    settings: RunConfig,
    params: Any,
    *,
    name: str,
    progress: Progress = no_progress,
) -> tuple[dict[str, Any], dict[str, list[Trajectory]]]:
    """Summary figures of a policy, and its trajectories by decoding."""
    made = {
        how: run_held_out(
            engine,
            collector,
            suite,
            settings,
            params,
            greedy=how == "greedy",
            stage=f"evaluating {name}, {how}",
            progress=progress,
        )
        for how in ("sampled", "greedy")
    }
    figures: dict[str, Any] = summarise(made["sampled"], made["greedy"])
    by_decoding = {how: by_category(made[how]) for how in made}
    if any(by_decoding.values()):
        figures["categories"] = by_decoding
    return figures, made
