"""Rewards: task score x weight + penalties + efficiency, as named components.

Every component keeps its raw value (a score, a count or a share) and its weighted
value. Penalties together never fall below ``penalty_floor``, so that a rambling
trajectory stays within the scale of the task; efficiency together never weighs more
than a fifth of the task, or remembering nothing would win.

What the components of a reward are counted from: the op log and the bank's size.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

from mempo_jax.memory import OpRecord


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    """Weights: ``task_weight`` per score, those of ``PENALTIES`` per event (<= 0),
    those of ``EFFICIENCY`` per share (>= 0).
    """

    task_weight: float
    malformed: float
    duplicate: float
    overflow: float
    write_cost: float
    penalty_floor: float
    efficiency_size: float
    efficiency_hits: float

    def __post_init__(self) -> None:
        if not 0 < self.task_weight < math.inf:
            raise ValueError(
                "config.reward.task_weight: expected finite and > 0, got "
                f"{self.task_weight}"
            )
        for field in (*PENALTIES, "penalty_floor"):
            value = getattr(self, field)
            if not -math.inf < value <= 0:
                raise ValueError(
                    f"config.reward.{field}: expected a finite number <= 0 (a "
                    f"penalty), got {value}"
                )
        self._check_efficiency()

    def _check_efficiency(self) -> None:
        weights = [getattr(self, field) for field in EFFICIENCY]
        for field, value in zip(EFFICIENCY, weights, strict=True):
            if not 0 <= value < math.inf:
                raise ValueError(
                    f"config.reward.{field}: expected a finite number >= 0 (a share "
                    f"that earns), got {value}"
                )
        most = self.task_weight * MAX_EFFICIENCY
        if sum(weights) > most * (1 + 1e-9):  # 0.1 + 0.2 is a little over 0.3
            raise ValueError(
                f"config.reward.efficiency_size + efficiency_hits: expected at most "
                f"{most:g} (a fifth of task_weight), got {sum(weights):g}: with more, "
                "remembering nothing would win against solving the task"
            )

    def active(self) -> list[str]:
        """Names of the components with a weight other than 0."""
        shaping = (*PENALTIES, *EFFICIENCY)
        return ["task"] + [f for f in shaping if getattr(self, f) != 0]


PENALTIES = ("malformed", "duplicate", "overflow", "write_cost")
EFFICIENCY = ("efficiency_size", "efficiency_hits")
MAX_EFFICIENCY = 0.2  # of the task's weight, all of EFFICIENCY together


@dataclasses.dataclass(frozen=True)
class Reward:
    """``raw`` and ``weighted`` by component; ``total`` is what training sees."""

    raw: dict[str, float]
    weighted: dict[str, float]
    total: float


def compose(
    score: float,
    counts: dict[str, int],
    settings: RewardConfig,
    source: str = "the environment's score()",
    efficiency: Mapping[str, float] = MappingProxyType({}),
) -> Reward:
    """Args: score in [0, 1]; counts of PENALTIES events of one trajectory; source of
    the score, for the error; shares in [0, 1] of EFFICIENCY, those that are known.

    Raises:
      RewardError: a score that is not one finite number in [0, 1].
    """
    score = finite(score, source)
    if not 0 <= score <= 1:
        raise RewardError(f"{source}: expected a number in [0, 1], got {score}")
    raw = {"task": score} | {name: float(counts[name]) for name in PENALTIES}
    weighted = {"task": score * settings.task_weight}
    weighted |= {name: raw[name] * getattr(settings, name) for name in PENALTIES}
    penalty = max(sum(weighted[n] for n in PENALTIES), settings.penalty_floor)
    total = weighted["task"] + penalty
    for name, share in efficiency.items():
        raw[name], weighted[name] = share, share * getattr(settings, name)
        total += weighted[name]
    return Reward(raw, weighted, total)


def rescored(
    reward: Reward, score: float, settings: RewardConfig, source: str
) -> Reward:
    """The same trajectory's reward with another task score.

    Raises:
      RewardError: as ``compose``.
    """
    counts = {name: int(reward.raw[name]) for name in PENALTIES}
    known = {name: reward.raw[name] for name in EFFICIENCY if name in reward.raw}
    return compose(score, counts, settings, source, known)


class RewardError(ValueError):
    """A reward function broke its contract: one finite float per trajectory."""


NO_LISTS = (str, bytes, bytearray, Mapping, Set)  # iterating them gives no rewards
RewardFunction = Callable[[Sequence[Any]], Sequence[float]]


def call_reward_function(
    function: RewardFunction, trajectories: Sequence[Any]
) -> list[float]:
    """Calls a user's reward function and holds it to its contract.

    Returns one float per trajectory, in order. Nothing is broadcast or converted.

    Raises:
      RewardError: wrong count, None, NaN, infinity, a string; names the function.
    """
    name = getattr(function, "__qualname__", repr(function))
    values = function(trajectories)
    try:
        count = None if isinstance(values, NO_LISTS) else len(values)
    except TypeError:
        count = None
    if count is None:
        raise RewardError(
            f"reward function {name}: expected a list of {len(trajectories)} floats, "
            f"got {type(values).__name__}; see config.reward.function"
        )
    if count != len(trajectories):
        raise RewardError(
            f"reward function {name}: expected {len(trajectories)} floats, one per "
            f"trajectory, got {count} values; see config.reward.function"
        )
    return [
        finite(v, f"reward function {name}, trajectory {i}")
        for i, v in enumerate(values)
    ]


def finite(value: Any, source: str) -> float:
    """``value`` as a float; RewardError naming ``source`` if it is no finite number."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise RewardError(f"{source}: expected one finite float, got {value!r}")
    return float(value)


def penalty_counts(
    log: Sequence[OpRecord], malformed: int, overflowed: bool
) -> dict[str, int]:
    """Events of ``reward.PENALTIES`` in one trajectory."""
    return {
        "malformed": malformed,
        "duplicate": sum(r.outcome == "duplicate" for r in log),
        "overflow": int(overflowed),
        "write_cost": sum(
            r.kind == "write" and r.outcome in ("new", "merged") for r in log
        ),
    }


def efficiency_shares(
    log: Sequence[OpRecord], sizes: Sequence[int], capacity: int
) -> dict[str, float]:
    """Shares of ``reward.EFFICIENCY`` in one trajectory, each in [0, 1].

    efficiency_size: 1 - mean number of active entries / capacity; 0 for a run without a
    turn, and left out where nothing bounds the bank. efficiency_hits: share of recalls
    that found an entry; 0 without a recall, or never asking would be the sure way to a
    full share.

    Args:
      sizes: active entries after the ops of each turn.
      capacity: the most active entries; 0 for no limit.
    """
    hits = [bool(r.entry_ids) for r in log if r.kind == "recall"]
    shares = {"efficiency_hits": sum(hits) / len(hits) if hits else 0.0}
    if capacity and sizes:
        shares["efficiency_size"] = 1.0 - sum(sizes) / len(sizes) / capacity
    elif capacity:
        shares["efficiency_size"] = 0.0
    return shares
