"""Evaluation of a policy on held-out tasks, sampled and greedy."""

from __future__ import annotations

from typing import Any

from mempo_jax.envs import TaskSuite
from mempo_jax.evaluation.trajectory_stats import summarise
from mempo_jax.rollout.collect import Collector, Job
from mempo_jax.rollout.engine import Engine
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.training import parts
from mempo_jax.training.cold_start import Progress, quiet
from mempo_jax.training.run_settings import RunSettings


def run_held_out(
    engine: Engine,
    collector: Collector,
    suite: TaskSuite,
    settings: RunSettings,
    params: Any,
    *,
    greedy: bool,
    stage: str,
    progress: Progress = quiet,
) -> list[Trajectory]:
    """One trajectory of each of the first ``train.eval_tasks`` test tasks."""
    engine.set_params(params)
    wanted = settings.train.eval_tasks
    size = suite.size("test")
    count = wanted if size is None else min(wanted, size)
    jobs = [
        Job(suite.task("test", i), 0, settings.seed, "evaluate", 0)
        for i in range(count)
    ]
    scores: list[float] = []
    progress(stage, 0, count, {})

    def on_done(trajectory: Trajectory) -> None:
        scores.append(trajectory.score)
        if len(scores) % 16 == 0 or len(scores) == count:
            success = round(sum(scores) / len(scores), 3)
            progress(stage, len(scores), count, {"success": success})

    return collector.run(jobs, parts.decoding(settings, greedy=greedy), on_done)


def evaluate(
    engine: Engine,
    collector: Collector,
    suite: TaskSuite,
    settings: RunSettings,
    params: Any,
    *,
    name: str,
    progress: Progress = quiet,
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
    return summarise(made["sampled"], made["greedy"]), made
