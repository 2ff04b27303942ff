"""Evaluation of a policy on held-out tasks, sampled and greedy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from mempo_jax.config import RunConfig
from mempo_jax.distributed import hosts
from mempo_jax.envs import Task, TaskSuite
from mempo_jax.evaluation.stats import by_category, summarise
from mempo_jax.rollout.collect import Collector, Job
from mempo_jax.rollout.engine import Engine
from mempo_jax.rollout.trajectory import Trajectory

# Called with a stage, how many are done, of how many, and the figures so far.
Progress = Callable[[str, int, int, dict[str, Any]], None]


def no_progress(stage: str, done: int, total: int, figures: dict[str, Any]) -> None:
    """A ``Progress`` that shows nothing.

    Args:
      stage, done, total, figures: ignored.
    """


def held_out_tasks(suite: TaskSuite, settings: RunConfig) -> list[Task]:
    """The first ``train.eval_tasks`` test tasks, or as many as there are.

    Args:
      suite: has the tasks.
      settings: of the run.
    """
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
    """Runs each of the held-out tasks once; each process runs its share.

    Args:
      engine: samples.
      collector: drives the engine.
      suite: has the tasks.
      settings: of the run.
      params: on the devices of this process; see ``placement.to_local``.
      greedy: the likeliest token always; otherwise drawn as in training.
      stage: what ``progress`` calls it.
      progress: of this process's share.

    Returns:
      The trajectories of all processes, in the order of the tasks.
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

    decoding = settings.sampling.greedy if greedy else settings.sampling
    by_process = hosts.gather(lambda: collector.run(jobs, decoding, on_done))
    return list(itertools.chain.from_iterable(by_process))


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
    """Evaluates one policy, sampled and greedy.

    Args:
      engine, collector, suite, settings, params: as for ``run_held_out``.
      name: of the policy, for ``progress``.
      progress: of this process's share.

    Returns:
      The figures of ``summarise``, with "categories" if the tasks have any; and the
      trajectories, under "sampled" and "greedy".
    """
    trajectories = {
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
    figures: dict[str, Any] = summarise(trajectories["sampled"], trajectories["greedy"])
    by_decoding = {how: by_category(trajectories[how]) for how in trajectories}
    if any(by_decoding.values()):
        figures["categories"] = by_decoding
    return figures, trajectories
