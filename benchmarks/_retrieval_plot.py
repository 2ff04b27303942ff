"""Two panels: recall against latency, and latency against size."""

from __future__ import annotations

import pathlib

_MARKERS = "osD^vP*X"
_NAMES = {
    "ours": "mempo_jax index",
    "bank.recall": "Bank.recall (whole op)",
    "numpy": "numpy brute force",
    "hnswlib": "hnswlib",
    "faiss_hnsw": "faiss HNSW",
    "faiss_ivf": "faiss IVF-flat",
    "faiss_ivfpq": "faiss IVF-PQ, re-scored",
}


def save(cases: list[dict], path: pathlib.Path) -> None:
    """Writes a PNG of 1200 x 600 pixels; makes its folder."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 6), dpi=100)
    names = [n for n in _NAMES if any(n in case["rows"] for case in cases)]
    colours = {name: f"C{place}" for place, name in enumerate(_NAMES)}
    colours["numpy"] = "0.5"
    _recall_panel(left, cases, colours)
    _size_panel(right, cases, names, colours)
    figure.suptitle("10 nearest of n vectors x 256, one query at a time, one thread")
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(names), fontsize=9)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


def _recall_panel(axes, cases: list[dict], colours: dict) -> None:
    lowest = 1.0
    for place, case in enumerate(cases):
        marker = _MARKERS[place % len(_MARKERS)]
        axes.plot([], [], marker, color="black", fillstyle="none", label=case["name"])
        for name, row in case["rows"].items():
            if "recall" in row:
                lowest = min(lowest, row["recall"])
                axes.plot(
                    row["p50_s"] * 1e3,
                    row["recall"],
                    marker,
                    color=colours[name],
                    markersize=8,
                    alpha=0.8,
                )
    axes.set_xscale("log")
    span = max(1 - lowest, 0.005)
    # Room below for the legend; the points lie near the top.
    axes.set_ylim(lowest - 0.8 * span, 1 + 0.1 * span)
    axes.set_xlabel("p50 latency of a query, ms (log)")
    axes.set_ylabel("recall@10")
    axes.set_title("Recall against latency", fontsize=10)
    axes.grid(True, which="both", alpha=0.2)
    _plain_ticks(axes.xaxis)
    axes.legend(loc="lower right", fontsize=8, ncols=2)


def _size_panel(axes, cases: list[dict], names: list[str], colours: dict) -> None:
    grid = sorted(
        (case for case in cases if case["name"].startswith("clustered")),
        key=lambda case: case["count"],
    )
    for name in names:
        held = [case for case in grid if name in case["rows"]]
        if not held:
            continue
        axes.plot(
            [case["count"] for case in held],
            [case["rows"][name]["p50_s"] * 1e3 for case in held],
            "o--" if name == "bank.recall" else "o-",
            color=colours[name],
            label=_NAMES[name],
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("vectors, clustered (log)")
    axes.set_ylabel("p50 latency of a query, ms (log)")
    axes.set_title("Latency at equal recall against size", fontsize=10)
    axes.grid(True, which="both", alpha=0.2)
    axes.set_xticks([case["count"] for case in grid])
    axes.set_xticklabels([f"{case['count']:,}" for case in grid])
    axes.minorticks_off()
    _plain_ticks(axes.yaxis)


def _plain_ticks(axis) -> None:
    """1, 2, 5, 10 … as plain numbers."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())
