"""Scores of questions by their category, where a task has such (``Question``)."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from mempo_jax.evaluation.trajectory_stats import ratio_ci95
from mempo_jax.rollout.trajectory import Trajectory


def by_category(trajectories: Sequence[Trajectory]) -> dict[str, dict[str, Any]]:
    """{category: {"mean", "ci95", "questions"}}, in order of the names.

    The mean is over questions; one that was not reached scores 0. The interval is a
    bootstrap over trajectories, since questions of one task are not independent. Tasks
    without categories, and trajectories that failed, are left out.
    """
    scores: dict[str, dict[int, list[float]]] = collections.defaultdict(dict)
    for number, trajectory in enumerate(trajectories):
        made = trajectory.question_scores
        asked = [c for q in trajectory.questions for c in q.parts or (q.category,)]
        if trajectory.failure is not None or len(asked) != len(made):
            continue
        for category, score in zip(asked, made, strict=True):
            if category:
                scores[category].setdefault(number, []).append(score)
    figures = {}
    for category in sorted(scores):
        lists = list(scores[category].values())
        sizes = [float(len(each)) for each in lists]
        estimate = ratio_ci95([sum(each) for each in lists], sizes)
        figures[category] = {**estimate, "questions": int(sum(sizes))}
    return figures
