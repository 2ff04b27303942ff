"""The metrics of a run as curves: what is drawn, and at which height."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mempo_jax.report.markup import compact
from mempo_jax.report.run_files import TOO_LARGE
from mempo_jax.runs import Table

PANELS: Mapping[str, Mapping[str, str]] = {  # metrics by panel, as the legend has them
    "success and reward": {"success": "success", "reward": "reward"},
    "what it writes": {
        "write_precision": "precision: of the writes, useful",
        "write_recall": "recall: of the useful, written",
    },
    "operations in a turn": {
        f"ops_per_turn/{kind}": kind
        for kind in ("write", "recall", "merge", "delete", "rewrite", "skip", "act")
    },
    "memory": {"bank_size": "entries at the end", "recalls_per_write": "recalls/write"},
    "what goes wrong": {
        "malformed_rate": "malformed",
        "cut_turn_rate": "cut at the token limit",
        "duplicate_rate": "duplicate writes",
        "merge_rate": "merged writes",
        "write_only_rate": "only ever wrote",
    },
    "inside the groups": {
        "reward_std_in_group": "std of the rewards",
        "degenerate_groups": "share without contrast",
        "edit_distance": "edit distance",
    },
    "KL to the reference, nats": {"kl": "KL"},
    "entropy of a token, nats": {"entropy": "entropy"},
    "update": {"grad_norm": "gradient norm", "abs_advantage": "mean |advantage|"},
    "clipped tokens, share": {"clip_fraction": "clipped"},
    "sampler against trainer, nats": {"log_prob_gap": "largest gap"},
    "seconds of a step": {
        "seconds_sampling": "sampling",
        "seconds_training": "training",
    },
}
REWARDS = "reward_weighted/"
POINTS = 400  # of one curve; if there are more, neighbours are joined
SMOOTHED = 5  # points of the running mean
WIDTH, HEIGHT = 340, 170  # of a drawing in pixels; report.js has them too
LEFT, RIGHT, TOP, BOTTOM = 42, 8, 8, 20  # of its edges
_LEAST = 1e-300  # a curve's height that still has ticks of its own


class Series(NamedTuple):
    """A metric over the steps.

    Attributes:
      steps: rising.
      values: one a step, None if it was not measured.
      joined: how many steps there are in one point.
    """

    steps: list[int]
    values: list[float | None]
    joined: int

    @property
    def known(self) -> list[float]:
        """What was measured."""
        return [value for value in self.values if value is not None]


def series_of(table: Table) -> dict[str, Series]:
    """Takes the metrics of a run apart.

    Args:
      table: of all rows.

    Returns:
      Every metric of which something was measured, in the order of appearance.
    """
    return {
        name: _joined(table.steps, values)
        for name, values in table.columns.items()
        if _measured(values).any()
    }


def _measured(values: np.ndarray) -> np.ndarray:
    return np.abs(values) < TOO_LARGE  # False for NaN


def _joined(steps: np.ndarray, values: np.ndarray) -> Series:
    """At most POINTS points: means of that many steps each, at the last of them."""
    joined = max(1, -(-len(steps) // POINTS))
    at, means = [], []
    for begin in range(0, len(steps), joined):
        some = values[begin : begin + joined]
        part = some[_measured(some)].tolist()
        at.append(int(steps[begin : begin + joined][-1]))
        means.append(math.fsum(part) / len(part) if part else None)
    return Series(at, means, joined)


def panels(series: Mapping[str, Series]) -> dict[str, dict[str, Series]]:
    """Sorts metrics into panels.

    Args:
      series: by name.

    Returns:
      The panels of which something was measured: curves by their label.
    """
    rewards = {
        name: name.removeprefix(REWARDS)
        for name, each in series.items()
        if name.startswith(REWARDS) and any(each.known)
    }
    wanted = {**PANELS}
    if len(rewards) > 1:
        first, *rest = wanted.items()
        wanted = dict([first, ("reward components, weighted", rewards), *rest])
    shown = {}
    for panel, names in wanted.items():
        known = {label: series[name] for name, label in names.items() if name in series}
        # A kind of op that no turn used says nothing.
        used = {label: each for label, each in known.items() if any(each.known)}
        if used or known:
            shown[panel] = used or dict(list(known.items())[:1])
    return shown


class Frame(NamedTuple):
    """What the edges of the plot stand for."""

    first: float
    last: float
    low: float
    high: float

    @classmethod
    def around(cls, curves: Sequence[Series]) -> Frame:
        """Fits a frame to curves, with 0 inside.

        Args:
          curves: at least one, with something measured.

        Returns:
          The frame.
        """
        steps = [step for each in curves for step in each.steps]
        values = [value for each in curves for value in each.known]
        low, high = min(0.0, *values), max(0.0, *values)
        if high - low < _LEAST:
            high = low + 1.0
        first, last = min(steps), max(steps)
        high = high + 0.04 * (high - low) if high > 0 else high
        return cls(first, max(last, first + 1), low, high)

    def x(self, step: float) -> float:
        """Places a step.

        Args:
          step: its number.

        Returns:
          Pixels from the left.
        """
        share = (step - self.first) / (self.last - self.first)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Places a value.

        Args:
          value: of a metric.

        Returns:
          Pixels from the top.
        """
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


class Curve(NamedTuple):
    """A curve with its running mean, as SVG has paths; dots are points without a
    neighbour, which no line shows."""

    label: str
    pale: str
    bold: str
    dots: list[tuple[float, float]]
    last: float


class Panel(NamedTuple):
    """A drawing; ticks: (value, its height); ends: (first or last step, its place)."""

    title: str
    frame: Frame
    curves: list[Curve]
    ticks: list[tuple[float, float]]
    ends: list[tuple[float, float]]
    label: str


def panel(title: str, curves: Mapping[str, Series]) -> Panel:
    """Lays out one panel.

    Args:
      title: above it.
      curves: by their label in the legend.

    Returns:
      What is to be drawn.
    """
    frame = Frame.around(list(curves.values()))
    spoken = (
        f"{label} from {compact(each.known[0])} to {compact(each.known[-1])}"
        for label, each in curves.items()
    )
    return Panel(
        title=title,
        frame=frame,
        curves=[_curve(label, each, frame) for label, each in curves.items()],
        ticks=[(v, round(frame.y(v), 1)) for v in _ticks(frame.low, frame.high)],
        ends=[(step, round(frame.x(step), 1)) for step in (frame.first, frame.last)],
        label=f"{title}: {'; '.join(spoken)}",
    )


def _curve(label: str, series: Series, frame: Frame) -> Curve:
    known = [(s, v) for s, v in zip(series.steps, series.values) if v is not None]
    smooth = running_mean([value for _, value in known])
    padded = [None, *series.values, None]
    return Curve(
        label=label,
        pale=_path(series.steps, series.values, frame),
        bold=_path([step for step, _ in known], smooth, frame),
        dots=[
            (round(frame.x(step), 2), round(frame.y(value), 2))
            for n, (step, value) in enumerate(zip(series.steps, series.values))
            if value is not None and padded[n] is None and padded[n + 2] is None
        ],
        last=known[-1][1],
    )


def running_mean(values: Sequence[float]) -> list[float]:
    """Smooths a curve.

    Args:
      values: without gaps.

    Returns:
      Means over the last five values; fewer at the start.
    """
    windows = (values[max(0, n - SMOOTHED) : n] for n in range(1, len(values) + 1))
    return [math.fsum(window) / len(window) for window in windows]


def _path(steps: Sequence[int], values: Sequence[float | None], frame: Frame) -> str:
    parts, pen = [], "M"
    for step, value in zip(steps, values, strict=True):
        if value is None:
            pen = "M"
            continue
        parts.append(f"{pen}{frame.x(step):.2f} {frame.y(value):.3f}")
        pen = "L"
    return "".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    """Three to five round numbers between two others."""
    span = high - low
    unit = 10.0 ** math.floor(math.log10(span))
    step = next(f * unit for f in (0.2, 0.5, 1.0, 2.0, 5.0) if span / (f * unit) <= 4.5)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [round((first + n) * step, 12) for n in range(count)]
