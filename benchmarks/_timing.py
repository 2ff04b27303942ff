"""Wall-clock times of competing calls, taken in turn so that drift hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

Call = Callable[[int], object]


def in_turn(
    calls: dict[str, Call], rounds: Sequence[Sequence[int]]
) -> tuple[dict[str, np.ndarray], dict[str, list]]:
    """Seconds of single calls, [rounds, calls a round] per name, and what they gave.

    In each round every competitor runs through the same arguments, one call at a time;
    who goes first rotates.
    """
    names = list(calls)
    seconds = {name: np.empty((len(rounds), len(rounds[0]))) for name in names}
    given: dict[str, list] = {name: [] for name in names}
    for turn, arguments in enumerate(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            call, row = calls[name], seconds[name][turn]
            for place, argument in enumerate(arguments):
                start = time.perf_counter()
                result = call(argument)
                row[place] = time.perf_counter() - start
                given[name].append(result)
    return seconds, given


def spread(seconds: np.ndarray) -> dict[str, float]:
    """p50, p95, p99, highest and mean, in seconds."""
    p50, p95, p99 = np.percentile(seconds, (50, 95, 99))
    return {
        "p50_s": float(p50),
        "p95_s": float(p95),
        "p99_s": float(p99),
        "max_s": float(np.max(seconds)),
        "mean_s": float(np.mean(seconds)),
    }


def ratio(seconds: np.ndarray, base: np.ndarray) -> float:
    """Median over the rounds of one p50 over the other of the same round."""
    return float(np.median(np.median(seconds, axis=1) / np.median(base, axis=1)))


def timed(call: Callable[[], object]) -> tuple[object, float]:
    """What a call gives, and its seconds."""
    start = time.perf_counter()
    made = call()
    return made, time.perf_counter() - start
