"""Pictures of credit: how right it is, and how fast it teaches."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np

from benchmarks._credit_runs import MODES, WINDOW, Curve, smooth


def save_accuracy(policies: Sequence[dict], path: pathlib.Path) -> None:
    """A panel for each policy: AUC of every mode with its 95 % interval."""
    pyplot = _pyplot()
    names = list(policies[0]["modes"])
    height = 1.6 + 0.36 * len(names)
    figure, panels = pyplot.subplots(
        1,
        len(policies),
        figsize=(3.2 + 4 * len(policies), height),
        dpi=100,
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for axes, policy in zip(panels[0], policies, strict=True):
        for kind, label, colour, shift in (
            ("credit", "what the trainer lays on the write", "C0", -0.14),
            ("own", "the mode's bonus, or weight, alone", "C1", 0.14),
        ):
            _points(axes, policy, names, kind, label, colour, shift)
        axes.axvline(0.5, color="0.6", linewidth=1, linestyle=":")
        axes.set_title(f"{policy['suite']}, {policy['name']}", fontsize=10)
        axes.set_xlabel("AUC against the writes really needed")
        axes.grid(True, axis="x", alpha=0.2)
    panels[0][0].set_yticks(range(len(names)), names)
    panels[0][0].invert_yaxis()
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2, fontsize=9)
    _save(pyplot, figure, path, bottom=0.6 / height)


def save_curves(curves: Sequence[Curve], path: pathlib.Path) -> None:
    """Success and write precision by step; thin: a seed, thick: the median."""
    pyplot = _pyplot()
    figure, panels = pyplot.subplots(1, 2, figsize=(12, 5.5), dpi=100)
    colours = {mode: f"C{place}" for place, mode in enumerate(MODES)}
    present = [mode for mode in MODES if any(c.mode == mode for c in curves)]
    for axes, field, title in (
        (panels[0], "success", "sampled success"),
        (panels[1], "write_precision", "write precision"),
    ):
        for mode in present:
            own = [curve for curve in curves if curve.mode == mode]
            for curve in own:
                values = smooth(getattr(curve, field))
                axes.plot(
                    curve.step, values, color=colours[mode], linewidth=0.7, alpha=0.4
                )
            step, middle = median_curve(own, field)
            axes.plot(step, middle, color=colours[mode], linewidth=2.4, label=mode)
        axes.set_xlabel("step")
        axes.set_ylabel(f"{title}, mean of {WINDOW} steps")
        axes.grid(True, alpha=0.2)
    panels[0].axhline(0.9, color="0.6", linewidth=1, linestyle=":")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(present), fontsize=9)
    _save(pyplot, figure, path, bottom=0.06)


def median_curve(curves: Sequence[Curve], field: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps that all of some runs have, and the median of their running means."""
    count = min(len(curve.step) for curve in curves)
    values = [smooth(getattr(curve, field))[:count] for curve in curves]
    return curves[0].step[:count], np.median(values, axis=0)


def _points(axes, policy, names, kind, label, colour, shift) -> None:
    for place, name in enumerate(names):
        estimate = policy["modes"][name][kind]["needed"]["auc"]
        if estimate["value"] is None:
            continue
        axes.plot(estimate["ci95"], [place + shift] * 2, color=colour, linewidth=2)
        axes.plot(
            estimate["value"],
            place + shift,
            "o",
            color=colour,
            markersize=5,
            label=label if place == 0 else None,
        )


def _pyplot():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(pyplot, figure, path: pathlib.Path, bottom: float) -> None:
    figure.tight_layout(rect=(0, bottom, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
