"""Figures of finished trajectories, with 95 % confidence intervals.

Success, write precision, tokens and rates; scores of questions by their category, if a
task has such (``Question``).
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

import numpy as np

from mempo_jax.rollout.trajectory import Trajectory

Z95 = 1.959963984540054  # the normal distribution's 97.5 % quantile
RESAMPLES = 1_000  # of a bootstrap: enough for its 2.5 % and 97.5 % quantiles


class Estimate(TypedDict):
    """A mean and its 95 % interval [low, high]; None if they are unknown."""

    mean: float | None
    ci95: list[float | None]


def mean_ci95(
    values: Iterable[float | None], *, bounds: tuple[float, float] | None = None
) -> Estimate:
    """The mean of independent values, with a 95 % confidence interval.

    Values that are all 0 or 1 get Wilson's score interval (E. B. Wilson 1927, eq. 4),
    which stays within [0, 1] and has a width even if all values are equal. Others
    get the normal interval, mean +- 1.96 s / sqrt(n), s with n - 1.

    Args:
      values: one a task (values of one task are not independent: average them
        first). None and NaN mean "not defined there" and are left out.
      bounds: limits that the quantity cannot leave; the normal interval is cut there.

    Returns:
      None for the mean of nothing, and for the bounds of one value that is not 0 or 1.
    """
    defined = [float(v) for v in values if v is not None and not math.isnan(v)]
    n = len(defined)
    if n == 0:
        return {"mean": None, "ci95": [None, None]}
    mean = math.fsum(defined) / n
    if all(value in (0.0, 1.0) for value in defined):
        return {"mean": mean, "ci95": _wilson(mean, n)}
    if n == 1:
        return {"mean": mean, "ci95": [None, None]}
    variance = math.fsum((value - mean) ** 2 for value in defined) / (n - 1)
    half = Z95 * math.sqrt(variance / n)
    low, high = bounds or (-math.inf, math.inf)
    return {"mean": mean, "ci95": [max(low, mean - half), min(high, mean + half)]}


def _wilson(mean: float, n: int) -> list[float | None]:
    scale = 1 + Z95**2 / n
    centre = (mean + Z95**2 / (2 * n)) / scale
    half = Z95 / scale * math.sqrt(mean * (1 - mean) / n + Z95**2 / (4 * n**2))
    # Rounding may leave [0, 1], or leave out the mean itself if it is 0 or 1.
    return [max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))]


def write_counts(trajectory: Trajectory) -> tuple[int, int]:
    """(writes, useful writes); useful: made on an observation worth remembering.

    Args:
      trajectory: of a policy.
    """
    turns = [r.turn for r in trajectory.log if r.kind == "write" and r.error is None]
    seen = trajectory.turn_observation
    useful = sum(seen[turn] in trajectory.useful for turn in turns)
    return len(turns), useful


def write_recall_counts(trajectory: Trajectory) -> tuple[int, int]:
    """(useful observations, those of them that a write was made on).

    Args:
      trajectory: of a policy.
    """
    seen = trajectory.turn_observation
    written = {
        seen[r.turn] for r in trajectory.log if r.kind == "write" and r.error is None
    }
    return len(trajectory.useful), len(trajectory.useful & written)


def ratio_ci95(parts: Sequence[float], wholes: Sequence[float]) -> dict[str, Any]:
    """sum(parts) / sum(wholes) with a 95 % bootstrap interval over the items.

    Args:
      parts, wholes: one of each an item; the wholes are counts.

    Returns:
      {"mean", "ci95"}; None in both if nothing was counted.
    """
    part, whole = np.asarray(parts, float), np.asarray(wholes, float)
    if whole.sum() == 0:
        return {"mean": None, "ci95": [None, None]}
    rng = np.random.default_rng(0)  # fixed: the same figures twice are equal
    drawn = rng.integers(len(part), size=(RESAMPLES, len(part)))
    tops, bottoms = part[drawn].sum(1), whole[drawn].sum(1)
    ratios = tops[bottoms > 0] / bottoms[bottoms > 0]
    low, high = np.quantile(ratios, [0.025, 0.975])
    return {
        "mean": float(part.sum() / whole.sum()),
        "ci95": [float(low), float(high)],
    }


def summarise(
    sampled: Sequence[Trajectory], greedy: Sequence[Trajectory]
) -> dict[str, dict[str, Any]]:
    """The figures of one policy, each {"mean": x, "ci95": [low, high]}.

    success is the mean task score (for tasks with partial credit, the share solved);
    write precision and recall, and tokens per trajectory, are of the sampled runs.

    Args:
      sampled, greedy: one trajectory of each held-out task.
    """
    writes = [write_counts(t) for t in sampled]
    recalls = [write_recall_counts(t) for t in sampled]
    return {
        "success_sampled": mean_ci95([t.score for t in sampled]),
        "success_greedy": mean_ci95([t.score for t in greedy]),
        "write_precision": ratio_ci95([u for _, u in writes], [n for n, _ in writes]),
        "write_recall": ratio_ci95([w for _, w in recalls], [n for n, _ in recalls]),
        "tokens_total": mean_ci95([float(t.tokens_total) for t in sampled]),
        "tokens_peak": mean_ci95([float(t.tokens_peak) for t in sampled]),
        "failed": {"sampled": _failed(sampled), "greedy": _failed(greedy)},
    }


def _failed(trajectories: Sequence[Trajectory]) -> int:
    return sum(t.failure is not None for t in trajectories)


def step_stats(trajectories: Sequence[Trajectory], group_size: int) -> dict[str, Any]:
    """Per-step metrics that need no device: rewards, ops, recalls, tokens.

    Args:
      trajectories: of the step, groups contiguous.
      group_size: trajectories of a group.

    Returns:
      Values by metric name; None if there was nothing to measure.
    """
    counted = [t for t in trajectories if t.reward is not None]
    turns = max(1, sum(len(t.actions) for t in trajectories))
    log = [record for t in trajectories for record in t.log]
    recalls = [r for r in log if r.kind == "recall"]
    attempts = [r for r in log if r.kind in ("write", "merge")]
    accepted = [r for r in attempts if r.outcome in ("new", "merged")]
    seconds = [s for t in trajectories for s in t.seconds_recall] or [0.0]
    writes = _totals(write_counts(t) for t in trajectories)
    needed = _totals(write_recall_counts(t) for t in trajectories)
    stats: dict[str, Any] = {
        "success": _mean([t.score for t in counted]),
        "reward": _mean([t.reward.total for t in counted]),
        "edit_distance": _edit_distance(trajectories, group_size),
        "malformed_rate": sum(r.error is not None for r in log) / turns,
        "duplicate_rate": _share(
            sum(r.outcome == "duplicate" for r in attempts), len(attempts)
        ),
        "merge_rate": _share(
            sum(r.outcome == "merged" for r in accepted), len(accepted)
        ),
        "recall_hit_rate": _share(
            sum(bool(r.entry_ids) for r in recalls), len(recalls)
        ),
        "recall_ms_p50": 1e3 * float(np.quantile(seconds, 0.5)),
        "recall_ms_p95": 1e3 * float(np.quantile(seconds, 0.95)),
        "bank_size": _mean([float(t.bank_size) for t in trajectories]),
        "write_precision": _share(writes[1], writes[0]),
        "write_recall": _share(needed[1], needed[0]),
        "turns": turns / max(1, len(trajectories)),
        "tokens_per_trajectory": _mean([float(t.tokens_total) for t in trajectories]),
        "tokens_peak": max((t.tokens_peak for t in trajectories), default=0),
        "failed_trajectories": _failed(trajectories),
        "rebuilds": _mean([float(t.rebuilds) for t in trajectories]),
        "truncated_rate": _mean([float(t.status == "truncated") for t in trajectories]),
        "overflow_rate": _mean([float(t.status == "overflow") for t in trajectories]),
        "cut_turn_rate": sum(len(t.cut_turns) for t in trajectories) / turns,
        "cut_trajectory_rate": _mean([float(bool(t.cut_turns)) for t in trajectories]),
    }
    kinds = ("write", "recall", "merge", "delete", "rewrite", "act", "answer", "skip")
    for kind in kinds:
        stats[f"ops_per_turn/{kind}"] = sum(r.kind == kind for r in log) / turns
    for name in counted[0].reward.raw if counted else ():
        stats[f"reward_raw/{name}"] = _mean([t.reward.raw[name] for t in counted])
        weighted = [t.reward.weighted[name] for t in counted]
        stats[f"reward_weighted/{name}"] = _mean(weighted)
    return stats


def _totals(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    pairs = list(counts)
    return sum(first for first, _ in pairs), sum(second for _, second in pairs)


def _edit_distance(trajectories: Sequence[Trajectory], group_size: int) -> float:
    """Mean normalised edit distance between neighbours of a group, by turn actions."""
    distances = []
    for start in range(0, len(trajectories), group_size):
        group = trajectories[start : start + group_size]
        for left, right in itertools.pairwise(group):
            longest = max(len(left.actions), len(right.actions), 1)
            distances.append(_levenshtein(left.actions, right.actions) / longest)
    return _mean(distances)


def _levenshtein(left: Sequence[str], right: Sequence[str]) -> int:
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(right, start=1):
            cost = min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
            diagonal, row[j] = row[j], cost
    return row[-1]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _share(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None


def by_category(trajectories: Sequence[Trajectory]) -> dict[str, dict[str, Any]]:
    """Scores of questions by their category.

    The mean is over questions; one that was not reached scores 0. The interval is a
    bootstrap over trajectories, since questions of one task are not independent. Tasks
    without categories, and trajectories that failed, are left out.

    Args:
      trajectories: one a task.

    Returns:
      {category: {"mean", "ci95", "questions"}}, in order of the names.
    """
    scores: dict[str, dict[int, list[float]]] = collections.defaultdict(dict)
    for number, trajectory in enumerate(trajectories):
        per_question = trajectory.question_scores
        categories = [c for q in trajectory.questions for c in q.parts or (q.category,)]
        if trajectory.failure is not None or len(categories) != len(per_question):
            continue
        for category, score in zip(categories, per_question, strict=True):
            if category:
                scores[category].setdefault(number, []).append(score)
    figures = {}
    for category in sorted(scores):
        lists = list(scores[category].values())
        sizes = [float(len(each)) for each in lists]
        estimate = ratio_ci95([sum(each) for each in lists], sizes)
        figures[category] = {**estimate, "questions": int(sum(sizes))}
    return figures
