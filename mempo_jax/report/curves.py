"""The metrics of a run as curves: SVG that needs nothing but the page it stands on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mempo_jax.report.markup import compact, element, escaped, single
from mempo_jax.report.records import TOO_LARGE
from mempo_jax.runs import Columns, Table

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
LATEST = 2**53  # steps from there on are no numbers of a float
POINTS = 400  # of one curve; more are joined
SMOOTHED = 5  # points of the running mean
_LEAST = 1e-300  # a curve's height that still has ticks of its own
WIDTH, HEIGHT = 340, 170
LEFT, RIGHT, TOP, BOTTOM = 42, 8, 8, 20


class Series(NamedTuple):
    """A metric over the steps; a value that was not measured is None. joined: steps in
    one point."""

    steps: list[int]
    values: list[float | None]
    joined: int

    @property
    def known(self) -> list[float]:
        return [value for value in self.values if value is not None]


def by_step(rows: Iterable[Mapping[str, Any]]) -> Table:
    """The rows in the order of their steps, the last of each; without a step, none."""
    columns = Columns()
    for row in rows:
        step = row.get("step")
        if type(step) is int and abs(step) < LATEST:
            columns.add(row)
    return columns.table()


def series_of(table: Table) -> dict[str, Series]:
    """Every metric of which something was measured, in the order of appearance."""
    return {
        name: _joined(table.steps, values)
        for name, values in table.columns.items()
        if _measured(values).any()
    }


def panels(series: Mapping[str, Series]) -> dict[str, dict[str, Series]]:
    """The panels of which something was measured: curves by label."""
    rewards = {
        name: name.removeprefix(REWARDS)
        for name, each in series.items()
        if name.startswith(REWARDS) and any(each.known)
    }
    wanted = {**PANELS}
    if len(rewards) > 1:
        first, *rest = wanted.items()
        wanted = dict([first, ("reward components, weighted", rewards), *rest])
    made = {}
    for panel, names in wanted.items():
        known = {told: series[name] for name, told in names.items() if name in series}
        # A kind of op that no turn used says nothing.
        used = {told: each for told, each in known.items() if any(each.known)}
        if used or known:
            made[panel] = used or dict(list(known.items())[:1])
    return made


def figure(title: str, curves: Mapping[str, Series]) -> str:
    """One panel: curves with their running means, axes, legend; HTML."""
    steps = [step for each in curves.values() for step in each.steps]
    values = [value for each in curves.values() for value in each.known]
    frame = _Frame.around(steps, values)
    lines = "".join(
        _curve(each, frame, number) for number, each in enumerate(curves.values())
    )
    drawing = element(
        "svg",
        f"{_axes(frame)}{lines}{single('line', class_='cross')}",
        class_="curve",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        tabindex=0,
        aria_label=f"{title}: {_spoken(curves)}",
        data_frame=",".join(f"{value:g}" for value in frame),
    )
    legend = "".join(
        element(
            "span",
            f"{element('i', class_=f's{number % 8}')}{escaped(label)} "
            f"{element('output', compact(each.known[-1]))}",
        )
        for number, (label, each) in enumerate(curves.items())
    )
    head = element("h3", f"{escaped(title)} {element('output', class_='at')}")
    caption = element("figcaption", legend)
    return element("figure", head + drawing + caption, class_="panel")


class _Frame(NamedTuple):
    """What the edges of the plot stand for."""

    first: float
    last: float
    low: float
    high: float

    @classmethod
    def around(cls, steps: Sequence[int], values: Sequence[float]) -> _Frame:
        low, high = min(0.0, *values), max(0.0, *values)
        if high - low < _LEAST:
            high = low + 1.0
        first, last = min(steps), max(steps)
        high = high + 0.04 * (high - low) if high > 0 else high
        return cls(first, max(last, first + 1), low, high)

    def x(self, step: float) -> float:
        share = (step - self.first) / (self.last - self.first)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _measured(values: np.ndarray) -> np.ndarray:
    return np.abs(values) < TOO_LARGE  # not where it is NaN


def _joined(steps: np.ndarray, values: np.ndarray) -> Series:
    """At most POINTS points: means of so many steps each, at the last of them."""
    joined = max(1, -(-len(steps) // POINTS))
    at, means = [], []
    for begin in range(0, len(steps), joined):
        some = values[begin : begin + joined]
        part = some[_measured(some)].tolist()
        at.append(int(steps[begin : begin + joined][-1]))
        means.append(math.fsum(part) / len(part) if part else None)
    return Series(at, means, joined)


def _curve(series: Series, frame: _Frame, number: int) -> str:
    colour = f"s{number % 8}"
    known = [(s, v) for s, v in zip(series.steps, series.values) if v is not None]
    smooth = running_mean([value for _, value in known])
    pale = single("path", d=_path(series.steps, series.values, frame), class_="pale")
    bold = single("path", d=_path([step for step, _ in known], smooth, frame))
    alone = "".join(
        single("circle", cx=round(frame.x(s), 2), cy=round(frame.y(v), 2), r=2.2)
        for s, v in _alone(series)
    )
    return element("g", pale + bold + alone, class_=colour)


def running_mean(values: Sequence[float]) -> list[float]:
    """Means over the last five values; fewer at the start."""
    windows = (values[max(0, n - SMOOTHED) : n] for n in range(1, len(values) + 1))
    return [math.fsum(window) / len(window) for window in windows]


def _alone(series: Series) -> list[tuple[int, float]]:
    """Points without a neighbour: no line shows them."""
    padded = [None, *series.values, None]
    return [
        (step, value)
        for n, (step, value) in enumerate(zip(series.steps, series.values))
        if value is not None and padded[n] is None and padded[n + 2] is None
    ]


def _path(steps: Sequence[int], values: Sequence[float | None], frame: _Frame) -> str:
    parts, pen = [], "M"
    for step, value in zip(steps, values, strict=True):
        if value is None:
            pen = "M"
            continue
        parts.append(f"{pen}{frame.x(step):.2f} {frame.y(value):.3f}")
        pen = "L"
    return "".join(parts)


def _axes(frame: _Frame) -> str:
    made = []
    for value in _ticks(frame.low, frame.high):
        y = round(frame.y(value), 1)
        line = {"x1": LEFT, "x2": WIDTH - RIGHT, "y1": y, "y2": y}
        made.append(single("line", **line, class_="grid"))
        text = {"x": LEFT - 5, "y": y + 3.5, "class_": "tick right"}
        made.append(element("text", compact(value), **text))
    ends = (("start", frame.first), ("end", frame.last))
    for anchor, step in ends:
        at = {"x": round(frame.x(step), 1), "y": HEIGHT - 5}
        text = f"step {step:.0f}" if anchor == "start" else f"{step:.0f}"
        made.append(element("text", text, **at, class_=f"tick {anchor}"))
    return "".join(made)


def _ticks(low: float, high: float) -> list[float]:
    """Three to five round numbers between two others."""
    span = high - low
    unit = 10.0 ** math.floor(math.log10(span))
    step = next(f * unit for f in (0.2, 0.5, 1.0, 2.0, 5.0) if span / (f * unit) <= 4.5)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [round((first + n) * step, 12) for n in range(count)]


def _spoken(curves: Mapping[str, Series]) -> str:
    return "; ".join(
        f"{label} from {compact(each.known[0])} to {compact(each.known[-1])}"
        for label, each in curves.items()
    )
