"""Pictures of a comparison; they need matplotlib (extra [plots])."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from mempo_jax.evaluation.table import Row

COSTS = {
    "tokens_peak": "tokens in the longest turn",
    "tokens_total": "tokens fed in a task",
}
LEARNT = ("trained", "trained_read_by_script")


def plot_rows(file: pathlib.Path, rows: Sequence[Row], title: str) -> None:
    """Success against cost in tokens, a point a policy with 95 % intervals.

    Raises:
      ImportError: matplotlib is not installed. OSError: the file cannot be written.
    """
    figure, axes = _figure(len(COSTS))
    for axis, (cost, label) in zip(axes, COSTS.items(), strict=True):
        for number, each in enumerate(rows):
            _point(axis, each, cost, number)
        _log_axis(axis.xaxis, axis.set_xscale)
        axis.set_xlabel(label)
        axis.set_ylim(-0.05, 1.05)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("success, 95 % interval")
    axes[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(title)
    _save(figure, file)


def plot_lengths(file: pathlib.Path, rows: Mapping[int, Sequence[Row]]) -> None:
    """Success and longest turn over the number of turns, a line a policy.

    rows: of a comparison, by the turns of its tasks. Raises as ``plot_rows``.
    """
    figure, axes = _figure(2)
    names = list(dict.fromkeys(each["policy"] for at in rows for each in rows[at]))
    measures = ("success_sampled", "tokens_peak")
    for axis, measure in zip(axes, measures, strict=True):
        for number, name in enumerate(names):
            turns, estimates = _line(rows, name, measure)
            means = [each["mean"] for each in estimates]
            bars = list(zip(*map(_bars, estimates)))
            style = {"color": f"C{number}", "marker": "o", "capsize": 3}
            axis.errorbar(turns, means, yerr=bars, label=name, **style)
        axis.set_xlabel("turns of a task")
        axis.set_xticks(sorted(rows))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("success, sampled")
    axes[1].set_ylabel("tokens in the longest turn")
    _log_axis(axes[1].yaxis, axes[1].set_yscale)
    axes[1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _save(figure, file)


def _line(
    rows: Mapping[int, Sequence[Row]], name: str, measure: str
) -> tuple[list[int], list[Mapping[str, Any]]]:
    found = [
        (at, each[measure])
        for at in sorted(rows)
        for each in rows[at]
        if each["policy"] == name and each[measure]["mean"] is not None
    ]
    return [at for at, _ in found], [estimate for _, estimate in found]


def _point(axis: Any, row: Row, cost: str, number: int) -> None:
    success, tokens = row["success_sampled"], row[cost]["mean"]
    if success["mean"] is None or not tokens:
        return
    learnt = row["policy"] in LEARNT
    axis.errorbar(
        [tokens],
        [success["mean"]],
        yerr=[[bar] for bar in _bars(success)],
        marker="*" if learnt else "o",
        markersize=12 if learnt else 6,
        capsize=3,
        linestyle="",
        color=f"C{number}",
        label=row["policy"],
    )


def _bars(estimate: Mapping[str, Any]) -> tuple[float, float]:
    """Lengths below and above the mean; 0 where the interval is not known."""
    mean, (low, high) = estimate["mean"], estimate["ci95"]
    if low is None or high is None:
        return 0.0, 0.0
    return max(mean - low, 0.0), max(high - mean, 0.0)


def _log_axis(axis: Any, set_scale: Any) -> None:
    """A logarithmic axis with plain numbers."""
    from matplotlib import ticker

    set_scale("log")
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 3, 5, 7)))
    axis.set_major_formatter(ticker.StrMethodFormatter("{x:.0f}"))
    axis.set_minor_locator(ticker.NullLocator())


def _figure(columns: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # draws without a screen

    figure = Figure(figsize=(5 * columns + 1.5, 4))
    return figure, figure.subplots(1, columns)


def _save(figure: Any, file: pathlib.Path) -> None:
    figure.tight_layout()
    figure.savefig(file, dpi=150)
