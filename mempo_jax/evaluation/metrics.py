"""Answer scores and confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypedDict

from mempo_jax.envs.answers import exact_match, normalise_answer, token_f1

__all__ = [
    "Estimate",
    "exact_match",
    "mean_ci95",
    "normalise_answer",
    "token_f1",
]

Z95 = 1.959963984540054  # the normal distribution's 97.5 % quantile


class Estimate(TypedDict):
    """A mean and its 95 % interval [low, high]; None where it cannot be known."""

    mean: float | None
    ci95: list[float | None]


def mean_ci95(
    values: Iterable[float | None], *, bounds: tuple[float, float] | None = None
) -> Estimate:
    """The mean of independent values, with a 95 % confidence interval.

    Values that are all 0 or 1 get Wilson's score interval (E. B. Wilson 1927, eq. 4),
    which stays within [0, 1] and has a width even where all values are equal. Others
    get the normal interval, mean +- 1.96 s / sqrt(n), s with n - 1.

    Args:
      values: one a task (values of one task are not independent: average them
        first). None and NaN mean "not defined there" and are left out.
      bounds: limits that the quantity cannot leave; the normal interval is cut there.

    Returns:
      None for the mean of nothing, and for the bounds of one value that is not 0 or 1.
    """
    kept = [float(v) for v in values if v is not None and not math.isnan(v)]
    n = len(kept)
    if n == 0:
        return {"mean": None, "ci95": [None, None]}
    mean = math.fsum(kept) / n
    if all(value in (0.0, 1.0) for value in kept):
        return {"mean": mean, "ci95": _wilson(mean, n)}
    if n == 1:
        return {"mean": mean, "ci95": [None, None]}
    variance = math.fsum((value - mean) ** 2 for value in kept) / (n - 1)
    half = Z95 * math.sqrt(variance / n)
    low, high = bounds or (-math.inf, math.inf)
    return {"mean": mean, "ci95": [max(low, mean - half), min(high, mean + half)]}


def _wilson(mean: float, n: int) -> list[float | None]:
    scale = 1 + Z95**2 / n
    centre = (mean + Z95**2 / (2 * n)) / scale
    half = Z95 / scale * math.sqrt(mean * (1 - mean) / n + Z95**2 / (4 * n**2))
    # rounding may leave [0, 1], or the mean itself where it is 0 or 1
    return [max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))]
