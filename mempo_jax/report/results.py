"""What a run came to: before against after, and the comparison with other policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mempo_jax.evaluation.plots import LEARNT
from mempo_jax.evaluation.table import MEASURES
from mempo_jax.report.markup import UNKNOWN, element, escaped, number, scroll
from mempo_jax.report.records import number_of

WHO = {"cold_start": "cold start", "trained": "trained"}
ROWS = {
    "success_sampled": "success, sampled",
    "success_greedy": "success, greedy",
    "write_precision": "write precision",
    "write_recall": "write recall",
    "tokens_total": "tokens of a task",
    "tokens_peak": "tokens at once, at most",
}
TILES = ("success_sampled", "success_greedy", "write_precision", "tokens_total")
SHARES = ("success_sampled", "success_greedy", "em", "f1")


def tiles(summary: Mapping[str, Any]) -> str:
    """Four figures, before → after; HTML."""
    made = []
    for key in TILES:
        before, after = (_estimate(summary, who, key) for who in WHO)
        if before is None and after is None:
            continue
        shown = element("strong", _mean(after if after is not None else before))
        was = f"from {_mean(before)}" if after is not None else "cold start"
        inner = f"{element('span', ROWS[key])}{shown}{element('small', was)}"
        made.append(element("div", inner, class_="tile"))
    return element("div", "".join(made), class_="tiles") if made else ""


def before_and_after(summary: Mapping[str, Any]) -> str:
    """The table of summary.json, with 95 % intervals; HTML, "" for nothing known."""
    rows = []
    for key, told in ROWS.items():
        estimates = [_estimate(summary, who, key) for who in WHO]
        if any(each is not None for each in estimates):
            cells = "".join(element("td", _cell(each)) for each in estimates)
            rows.append(element("tr", element("th", told, scope="row") + cells))
    if not rows:
        return ""
    return _table(["held-out tasks, 95 % interval", *WHO.values()], rows)


def categories(summary: Mapping[str, Any]) -> str:
    """Success by the category of the questions, sampled; HTML, "" without any."""
    tables = {}
    for who in WHO:
        part = summary.get(who)
        found = part.get("categories") if isinstance(part, Mapping) else None
        sampled = found.get("sampled") if isinstance(found, Mapping) else None
        tables[who] = sampled if isinstance(sampled, Mapping) else {}
    names = sorted({name for table in tables.values() for name in table})
    rows = []
    for name in names:
        cells = "".join(element("td", _cell(tables[who].get(name))) for who in WHO)
        rows.append(element("tr", element("th", escaped(name), scope="row") + cells))
    return _table(["success, sampled, by kind", *WHO.values()], rows) if rows else ""


def comparison(evaluation: Mapping[str, Any]) -> str:
    """The rows of evaluation.json; HTML, "" where there are none."""
    rows = evaluation.get("rows")
    rows = [r for r in rows if isinstance(r, Mapping)] if isinstance(rows, list) else []
    measures = [m for m in MEASURES if any(_known(row.get(m)) for row in rows)]
    if not measures:
        return ""
    made = []
    for row in rows:
        policy = str(row.get("policy", ""))
        cells = "".join(
            element("td", _cell(row.get(m)) + _bar(row.get(m), m)) for m in measures
        )
        head = element("th", escaped(policy), scope="row")
        learnt = "learnt" if policy in LEARNT else None
        made.append(element("tr", head + cells, class_=learnt))
    return _table(["policy", *(MEASURES[m] for m in measures)], made)


def _estimate(summary: Mapping[str, Any], who: str, key: str) -> Any:
    part = summary.get(who)
    value = part.get(key) if isinstance(part, Mapping) else None
    return value if _known(value) else None


def _known(value: Any) -> bool:
    return isinstance(value, Mapping) and number_of(value.get("mean")) is not None


def _mean(value: Any) -> str:
    return number(number_of(value["mean"])) if _known(value) else UNKNOWN


def _cell(value: Any) -> str:
    if not _known(value):
        return UNKNOWN
    interval = value.get("ci95")
    bounds = list(map(number_of, interval)) if isinstance(interval, list) else []
    if len(bounds) != 2 or None in bounds:
        return _mean(value)
    low, high = (number(bound) for bound in bounds)
    return f"{_mean(value)} {element('small', f'[{low}, {high}]')}"


def _bar(value: Any, measure: str) -> str:
    if measure not in SHARES or not _known(value):
        return ""
    share = min(max(number_of(value["mean"]) or 0.0, 0.0), 1.0)
    fill = element("i", "", style=f"width:{100 * share:.0f}%")
    return element("span", fill, class_="bar", aria_hidden="true")


def _table(heads: Sequence[str], rows: Sequence[str]) -> str:
    top = "".join(element("th", escaped(head), scope="col") for head in heads)
    inner = element("thead", element("tr", top)) + element("tbody", "".join(rows))
    return scroll(element("table", inner, class_="figures"), heads[0])
