"""Measured figures as aligned text."""

from __future__ import annotations

_HEAD = (
    "index",
    "build s",
    "MB",
    "recall@10",
    "p50 ms",
    "p95 ms",
    "faster",
    "insert p50 ms",
    "p95 ms",
    "max ms",
    "after: recall",
    "p50 ms",
    "setting",
)


def aligned(rows: list[tuple[str, ...]]) -> str:
    """Columns of equal width; the first and the last to the left, others right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    last = len(widths) - 1
    lines = [
        "  ".join(
            cell.ljust(width) if place in (0, last) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


_LEAST_SIZED = 50_000  # rows from which the growth of the process says something


def of_case(case: dict) -> str:
    """One case: a heading, a line an index, what was left out."""
    cosine = case["cosine"]
    heading = (
        f"{case['name']} x 256, then {case['inserts']:,} inserts; mean cosine of the "
        f"nearest {cosine['nearest']:.2f}, of the tenth {cosine['tenth']:.2f}; "
        f"tuned to recall {case['target']:.3f}"
    )
    sized = case["count"] >= _LEAST_SIZED
    body = [_HEAD, *(_row(name, row, sized) for name, row in case["rows"].items())]
    out = [f"{name} ({why})" for name, why in case["skipped"].items()]
    tail = [f"left out: {', '.join(out)}"] if out else []
    return "\n".join([heading, aligned(body), *tail])


def _row(name: str, row: dict, sized: bool) -> tuple[str, ...]:
    insert, after = row.get("insert", {}), row.get("after", {})
    note = "; does not reach the target" if row.get("short") else ""
    return (
        name,
        f"{row['build_s']:.2f}",
        _number(row.get("memory_mb") if sized else None, 1, "{:.0f}"),
        _number(row.get("recall"), 1, "{:.3f}"),
        _number(row["p50_s"], 1e3),
        _number(row["p95_s"], 1e3),
        f"{1 / row['to_numpy']:.1f}x",
        _number(insert.get("p50_s"), 1e3),
        _number(insert.get("p95_s"), 1e3),
        _number(insert.get("max_s"), 1e3, "{:.1f}"),
        _number(after.get("recall"), 1, "{:.3f}"),
        _number(after.get("p50_s"), 1e3),
        row["setting"] + note,
    )


def _number(value: float | None, scale: float, form: str = "{:.3f}") -> str:
    return "-" if value is None else form.format(value * scale)


def of_bank(bank: dict) -> str:
    """Writes and forks of one bank."""
    writes, forks = bank["writes"], bank["forks"]
    rows = [
        ("bank", "count", "p50 ms", "p95 ms", "p99 ms", "max ms", "mean ms", ""),
        (
            "write",
            *_times(writes, writes["count"]),
            f"p95 / p50 = {writes['p95_to_p50']:.1f}; above 5 x p50: "
            f"{writes['over_5x_p50']}; not seen at once: {writes['unseen']}",
        ),
        (
            "write, on the core",
            *_times(writes["cpu"], writes["count"]),
            f"p95 / p50 = {writes['cpu']['p95_s'] / writes['cpu']['p50_s']:.1f}",
        ),
        ("search for it", *_times(writes["next_search"], writes["count"]), ""),
        (
            "fork",
            *_times(forks, forks["count"]),
            f"{forks['memory_mb']:.0f} MB more in all, one write in each; own write "
            f"seen: {forks['own_write_seen']}, alone: {forks['others_unseen']}",
        ),
    ]
    return f"bank of {bank['entries']:,} entries\n{aligned(rows)}"


def _times(spread: dict, count: int) -> tuple[str, ...]:
    names = ("p50_s", "p95_s", "p99_s", "max_s", "mean_s")
    return (f"{count:,}", *(f"{spread[name] * 1e3:.3f}" for name in names))
