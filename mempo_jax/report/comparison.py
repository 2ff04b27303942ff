"""The rows of a comparison as an HTML table."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from mempo_jax.evaluation.plots import LEARNT
from mempo_jax.evaluation.table import MEASURES, Row
from mempo_jax.report.page import box, number


def comparison_html(
    rows: Sequence[Row], measures: Sequence[str] = tuple(MEASURES), caption: str = ""
) -> str:
    """A line a policy, a column a measure: mean, and small the 95 % interval.

    Args:
      measures: names out of ``evaluation.table.MEASURES``.

    Raises:
      KeyError: a measure that there is not.
    """
    heads = ("policy", *(MEASURES[name] for name in measures))
    lines = []
    for row in rows:
        name = html.escape(row["policy"])
        named = f"<b>{name}</b>" if row["policy"] in LEARNT else name
        cells = [named, *(_cell(row[measure]) for measure in measures)]
        lines.append("".join(f'<td style="padding:4px 8px">{c}</td>' for c in cells))
    return box(heads, lines, caption)


def _cell(estimate: Mapping[str, Any]) -> str:
    mean, (low, high) = estimate["mean"], estimate["ci95"]
    if mean is None or low is None:
        return number(mean)
    interval = f"[{number(low)}, {number(high)}]"
    return f'{number(mean)} <span style="color:#777;font-size:11px">{interval}</span>'
