"""Rewards: task score x weight + penalties + efficiency, as named components.

Every component keeps its raw value (a score, a count or a share) and its weighted
value. Counts and shares come from the op log and the bank's size. Penalties together
never fall below ``penalty_floor``, so that a rambling trajectory stays within the scale
of the task. Efficiency together never weighs more than a fifth of the task; with more,
remembering nothing would win.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

import numpy as np

from mempo_jax.envs.base import described, foreign_traceback, shortened
from mempo_jax.memory import OpRecord

PENALTIES = ("malformed", "duplicate", "overflow", "write_cost")
EFFICIENCY = ("efficiency_size", "efficiency_hits")
# A sum of parts may miss its bound by rounding, by far less than this in float64.
ROUNDING = 1e-6
MAX_EFFICIENCY = 0.2  # of the task's weight, all of EFFICIENCY together
NO_LISTS = (str, bytes, bytearray, Mapping, Set)  # iterating them gives no rewards
RewardFunction = Callable[[Sequence[Any]], Sequence[float]]


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    """Weights of the components.

    Attributes:
      task_weight: weight of the task score, > 0.
      malformed: penalty per malformed op, <= 0.
      duplicate: penalty per write of what the bank holds already, <= 0.
      overflow: penalty if the context overflowed, <= 0.
      write_cost: penalty per write that added or changed an entry, <= 0.
      penalty_floor: the lowest sum of all penalties, <= 0.
      efficiency_size: weight of the share of the bank that stayed free, >= 0.
      efficiency_hits: weight of the share of recalls that found an entry, >= 0.
      function: "package.module:name" replaces the task score; "" keeps it.
      outcome_gate: see ``core.advantages.gated_normalise``.
    """

    task_weight: float
    malformed: float
    duplicate: float
    overflow: float
    write_cost: float
    penalty_floor: float
    efficiency_size: float
    efficiency_hits: float
    function: str
    outcome_gate: bool

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
        module, colon, name = self.function.partition(":")
        ok = not self.function or (module and colon and name and ":" not in name)
        if not ok:
            raise ValueError(
                "config.reward.function: expected 'package.module:function', got "
                f"{self.function!r}"
            )

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
        """Returns the names of the components with a weight other than 0."""
        shaping = (*PENALTIES, *EFFICIENCY)
        return ["task"] + [f for f in shaping if getattr(self, f) != 0]


@dataclasses.dataclass(frozen=True)
class Reward:
    """The reward of one trajectory.

    Attributes:
      raw: score, count or share by component.
      weighted: the same times its weight.
      total: what training sees.
    """

    raw: dict[str, float]
    weighted: dict[str, float]
    total: float


class RewardError(ValueError):
    """A reward function broke its contract: one finite float per trajectory.

    Attributes:
      details: the traceback of the function, if it raised; else "".
    """

    details = ""


def compose(
    score: float,
    counts: dict[str, int],
    settings: RewardConfig,
    source: str = "the environment's score()",
    efficiency: Mapping[str, float] = MappingProxyType({}),
) -> Reward:
    """Weights the components of one trajectory and adds them up.

    Args:
      score: task score in [0, 1]. What is outside by rounding alone is cut: nine times
        1/9 is a little more than 1.
      counts: events by name of ``PENALTIES``.
      settings: the weights.
      source: where the score came from, for the error.
      efficiency: shares in [0, 1] by name of ``EFFICIENCY``, those that are known.

    Raises:
      RewardError: the score is not one finite number in [0, 1].
    """
    score = share(score, source)
    raw = {"task": score} | {name: float(counts[name]) for name in PENALTIES}
    weighted = {"task": score * settings.task_weight}
    weighted |= {name: raw[name] * getattr(settings, name) for name in PENALTIES}
    # The floor bounds the sum only; each component keeps its full weighted value.
    penalty = max(sum(weighted[n] for n in PENALTIES), settings.penalty_floor)
    total = weighted["task"] + penalty
    for name, part in efficiency.items():
        raw[name], weighted[name] = part, part * getattr(settings, name)
        total += weighted[name]
    return Reward(raw, weighted, total)


def rescored(
    reward: Reward, score: float, settings: RewardConfig, source: str
) -> Reward:
    """Returns the reward of the same trajectory with another task score.

    Args:
      reward: the reward with the old score.
      score: the new task score in [0, 1].
      settings: the weights.
      source: where the new score came from, for the error.

    Raises:
      RewardError: as ``compose``.
    """
    counts = {name: int(reward.raw[name]) for name in PENALTIES}
    known = {name: reward.raw[name] for name in EFFICIENCY if name in reward.raw}
    return compose(score, counts, settings, source, known)


def call_reward_function(
    function: RewardFunction, trajectories: Sequence[Any]
) -> list[float]:
    """Calls a user's reward function and holds it to its contract.

    Nothing is broadcast or converted.

    Args:
      function: takes the trajectories and returns one float for each.
      trajectories: what it shall score.

    Returns:
      One float per trajectory, in order.

    Raises:
      RewardError: wrong count, None, NaN, infinity or a string; or the function raised,
        and ``details`` has its traceback. The message names the function.
    """
    name = getattr(function, "__qualname__", repr(function))
    try:
        values = function(trajectories)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raised = RewardError(
            f"reward function {name} raised {described(error)}; see "
            "config.reward.function"
        )
        raised.details = foreign_traceback(error)
        raise raised from error
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


def share(value: Any, source: str) -> float:
    """Returns ``value`` as a float in [0, 1].

    Args:
      value: the number to check; what is outside by rounding at most is cut.
      source: where it came from, for the error.

    Raises:
      RewardError: it is no finite number, or outside of [0, 1].
    """
    number, most = finite(value, source), ROUNDING
    if isinstance(value, np.floating):  # a sum of a hundred float32 parts misses more
        most = max(most, min(64 * float(np.finfo(value.dtype).eps), 1e-3))
    if not -most <= number <= 1 + most:
        raise RewardError(f"{source}: expected a number in [0, 1], got {number}")
    return min(max(number, 0.0), 1.0)


def finite(value: Any, source: str) -> float:
    """Returns ``value`` as a float.

    Args:
      value: the number to check.
      source: where it came from, for the error.

    Raises:
      RewardError: it is no finite number; a bool is none.
    """
    # Python counts True as a number; as a reward it is a mistake.
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
        number = float(value) if is_number else math.nan
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        got = shortened(value)
        raise RewardError(f"{source}: expected one finite float, got {got}")
    return number


def penalty_counts(
    log: Sequence[OpRecord], malformed: int, overflowed: bool
) -> dict[str, int]:
    """Counts the events of ``PENALTIES`` in one trajectory.

    Args:
      log: the bank's op log.
      malformed: number of ops that could not be carried out as written.
      overflowed: whether the context overflowed.
    """
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
    """Returns the shares of ``EFFICIENCY`` in one trajectory, each in [0, 1].

    efficiency_size is 1 - mean number of active entries / capacity; it is 0 for a run
    without a turn, and left out if nothing bounds the bank. efficiency_hits is the
    share of recalls that found an entry; it is 0 without a recall, or never asking
    would be the sure way to a full share.

    Args:
      log: the bank's op log.
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
