"""How well numbers tell two classes apart: AUC and Spearman, with intervals.

Both are computed for many weightings of the items at once, so that a bootstrap is one
call. An item that is drawn twice counts like two items.
"""

from __future__ import annotations

import numpy as np

RESAMPLES = 1_000


def auc(credit, truth, times=None) -> np.ndarray:
    """Chance that a true item has more credit than a false one, ties counted half.

    Args:
      credit: [n]. truth: bool [n].
      times: [..., n], how often each item counts; None: once.

    Returns:
      [...]; NaN where one of the classes is missing.
    """
    yes, no = (_by_value(credit, _times(credit, times) * side) for side in _two(truth))
    below = np.cumsum(no, axis=-1) - no
    with np.errstate(invalid="ignore"):
        return (yes * (below + no / 2)).sum(-1) / (yes.sum(-1) * no.sum(-1))


def spearman(credit, truth, times=None) -> np.ndarray:
    """Correlation of the ranks, equal values sharing their mean rank; as ``auc``.

    NaN where credit, or truth, is the same for all.
    """
    times = _times(credit, times)
    total = times.sum(-1, keepdims=True)
    left, right = (
        _ranks(values, times) - (total + 1) / 2 for values in (credit, truth)
    )
    with np.errstate(invalid="ignore"):
        both = np.sqrt((times * left**2).sum(-1) * (times * right**2).sum(-1))
        return np.where(both > 0, (times * left * right).sum(-1) / both, np.nan)


def with_interval(measure, credit, truth, group, resamples: int = RESAMPLES) -> dict:
    """{"value", "ci95"}: a measure, and its 95 % interval over resampled groups.

    Items of a group share a task, so whole groups are drawn. The draws depend on the
    number of groups alone: modes on the same trajectories meet the same ones. None for
    what cannot be said.

    Args:
      measure: ``auc`` or ``spearman``. group: int [n], from 0 on.
    """
    if not len(credit):
        return {"value": None, "ci95": [None, None]}
    count = int(np.max(group)) + 1
    rng = np.random.default_rng(0)
    times = rng.multinomial(count, np.full(count, 1 / count), size=resamples)
    value = float(measure(credit, truth))
    drawn = measure(credit, truth, times[:, group])
    drawn = drawn[np.isfinite(drawn)]
    if not np.isfinite(value) or not len(drawn):
        return {"value": None, "ci95": [None, None]}
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {"value": value, "ci95": [float(low), float(high)]}


def _two(truth) -> tuple[np.ndarray, np.ndarray]:
    truth = np.asarray(truth, bool)
    return truth, ~truth


def _times(credit, times) -> np.ndarray:
    return np.ones(len(credit)) if times is None else np.asarray(times, float)


def _by_value(values, times: np.ndarray) -> np.ndarray:
    """How often each distinct value counts, ascending; [..., distinct values]."""
    order = np.argsort(values, kind="stable")
    _, first = np.unique(np.asarray(values)[order], return_index=True)
    return np.add.reduceat(times[..., order], first, axis=-1)


def _ranks(values, times: np.ndarray) -> np.ndarray:
    """Mean rank of each item among all, from 1 on; [..., n]."""
    counts = _by_value(values, times)
    ranks = np.cumsum(counts, axis=-1) - (counts - 1) / 2
    _, place = np.unique(values, return_inverse=True)
    return ranks[..., place]
