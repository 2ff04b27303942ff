"""Pictures of a comparison and of a run; they need matplotlib (extra [plots]).

Functions whose name ends in ``_figure`` return a matplotlib figure, which a notebook
shows inline; those whose name begins with ``plot_`` write one to a file.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from mempo_jax.evaluation.result_rows import Row

COSTS = {
    "tokens_peak": "tokens in the longest turn",
    "tokens_total": "tokens fed in a task",
}
LEARNT = ("trained", "trained_read_by_script")  # drawn to stand out from the rules
# The curves of a run: for each panel its metrics, with their names in the legend.
PANELS = {
    "success in training": {"success": "success", "reward": "reward"},
    "what it writes": {
        "write_precision": "precision: of the writes, useful",
        "write_recall": "recall: of the useful, written",
    },
    "operations in a turn": {
        "ops_per_turn/write": "write",
        "ops_per_turn/recall": "recall",
        "ops_per_turn/skip": "skip",
        "ops_per_turn/malformed": "malformed",
    },
    "inside the groups": {
        "reward_std_in_group": "std of the rewards",
        "degenerate_groups": "share without contrast",
        "edit_distance": "edit distance",
    },
    "KL to the initial policy, nats": {"kl": "KL"},
    "entropy of a token, nats": {"entropy": "entropy"},
}
COLUMNS = 3  # panels side by side
SMOOTHED = 5  # steps of the running mean
MARKS = "osD^vP*X"  # of matplotlib, one a policy
DASHES = ("-", "--", "-.", ":")  # so that a curve that covers another shows it


def plot_rows(file: pathlib.Path, rows: Sequence[Row], title: str) -> None:
    """Writes ``rows_figure``.

    Args:
      file: to write, of a format that matplotlib knows by its ending.
      rows: one a policy.
      title: of the picture.

    Raises:
      ImportError: matplotlib is not installed.
      OSError: the file cannot be written.
    """
    _save(rows_figure(rows, title), file)


def rows_figure(rows: Sequence[Row], title: str) -> Any:
    """Success against cost in tokens: one point a policy, with its 95 % interval.

    Args:
      rows: one a policy.
      title: of the picture.

    Raises:
      ImportError: matplotlib is not installed.
    """
    figure, axes = _figure(1, len(COSTS))
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
    figure.tight_layout()
    return figure


def plot_curves(
    file: pathlib.Path, steps: Sequence[Mapping[str, Any]], title: str
) -> None:
    """Writes ``curves_figure``.

    Args:
      file: as for ``plot_rows``.
      steps, title: as for ``curves_figure``.

    Raises:
      ImportError, OSError: as ``plot_rows``.
      ValueError: nothing was measured.
    """
    _save(curves_figure(steps, title), file)


def curves_figure(steps: Sequence[Mapping[str, Any]], title: str) -> Any:
    """The curves of a run over its steps, one panel for each of ``PANELS``.

    The measured values are pale; over them is their running mean over five steps.
    Panels of which nothing was measured are left out.

    Args:
      steps: rows of metrics.jsonl, see ``runs.metrics_writer.read_metric_rows``.
      title: of the picture.

    Raises:
      ImportError: matplotlib is not installed.
      ValueError: nothing was measured.
    """
    shown = {
        panel: known
        for panel, names in PANELS.items()
        if (known := _measured(steps, names))
    }
    if not shown:
        raise ValueError(
            f"curves of {len(steps)} steps: expected a run's metrics.jsonl, got rows "
            f"with none of {', '.join(n for p in PANELS.values() for n in p)}"
        )
    figure, axes = _figure(-(-len(shown) // COLUMNS), COLUMNS)
    for axis in axes.flat[len(shown) :]:
        axis.remove()
    for axis, (panel, curves) in zip(axes.flat, shown.items(), strict=False):
        for number, (label, (at, values)) in enumerate(curves.items()):
            color, dash = f"C{number}", DASHES[number % len(DASHES)]
            axis.plot(at, values, color=color, alpha=0.25)
            axis.plot(at, _running_mean(values), dash, color=color, label=label)
        axis.set_title(panel, fontsize=10)
        axis.set_xlabel("step")
        axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle(title)
    figure.tight_layout()
    return figure


def _measured(
    steps: Sequence[Mapping[str, Any]], names: Mapping[str, str]
) -> dict[str, tuple[list[int], list[float]]]:
    """(steps, values) by label, of the metrics that some step has."""
    curves = {}
    for name, label in names.items():
        known = [r for r in steps if r.get(name) is not None]
        if known:
            curves[label] = [r["step"] for r in known], [r[name] for r in known]
    return curves


def _running_mean(values: Sequence[float]) -> list[float]:
    """Means over the last five values; fewer at the start."""
    windows = (values[max(0, n - SMOOTHED) : n] for n in range(1, len(values) + 1))
    return [math.fsum(window) / len(window) for window in windows]


def plot_lengths(file: pathlib.Path, rows: Mapping[int, Sequence[Row]]) -> None:
    """Writes success and longest turn over the number of turns, one line a policy.

    Args:
      file: as for ``plot_rows``.
      rows: of a comparison, by the turns of its tasks.

    Raises:
      ImportError, OSError: as ``plot_rows``.
    """
    figure, axes = _figure(1, 2)
    names = list(dict.fromkeys(each["policy"] for at in rows for each in rows[at]))
    measures = ("success_sampled", "tokens_peak")
    for axis, measure in zip(axes, measures, strict=True):
        for number, name in enumerate(names):
            turns, estimates = _line(rows, name, measure)
            means = [each["mean"] for each in estimates]
            bars = list(zip(*map(_bars, estimates)))
            style = {"color": f"C{number}", "marker": MARKS[number % len(MARKS)]}
            if name in LEARNT:
                style |= {"color": "black", "linewidth": 2.5}
            axis.errorbar(turns, means, yerr=bars, capsize=3, label=name, **style)
        axis.set_xlabel("turns of a task")
        axis.set_xticks(sorted(rows))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("success, sampled")
    axes[1].set_ylabel("tokens in the longest turn")
    _log_axis(axes[1].yaxis, axes[1].set_yscale)
    axes[1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    _save(figure, file)


def _line(
    rows: Mapping[int, Sequence[Row]], name: str, measure: str
) -> tuple[list[int], list[Mapping[str, Any]]]:
    known = [
        (at, each[measure])
        for at in sorted(rows)
        for each in rows[at]
        if each["policy"] == name and each[measure]["mean"] is not None
    ]
    return [at for at, _ in known], [estimate for _, estimate in known]


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
    """Lengths below and above the mean; 0 if the interval is unknown."""
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


def _figure(rows: int, columns: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # draws without a screen

    figure = Figure(figsize=(5 * columns + 1.5, 4 * rows))
    return figure, figure.subplots(rows, columns)


def _save(figure: Any, file: pathlib.Path) -> None:
    figure.savefig(file, dpi=150)
