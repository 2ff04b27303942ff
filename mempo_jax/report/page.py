"""Pieces of HTML that stand on their own: light on any page, no script, no style sheet.

Styles are written at each element, since what shows notebooks drops style sheets.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from mempo_jax.evaluation.table import figure

POSITIVE, NEGATIVE = (46, 125, 50), (198, 40, 40)  # red, green, blue
STRONGEST = 0.75  # opacity of the largest value


def box(heads: Sequence[str], rows: Sequence[str], caption: str, note: str = "") -> str:
    """A table that scrolls where it is too wide.

    Args:
      heads: of the columns, plain text.
      rows: the cells of each row, HTML.
      caption, note: lines above and below the table, plain text; "" for none.
    """
    cells = "".join(
        f'<th style="padding:4px 8px;text-align:left;border-bottom:2px solid #999">'
        f"{html.escape(head)}</th>"
        for head in heads
    )
    body = "".join(
        f'<tr style="background:{"#f6f6f6" if at % 2 else "#fff"}">{row}</tr>'
        for at, row in enumerate(rows)
    )
    outer = "overflow-x:auto;background:#fff;color:#222;color-scheme:light;padding:6px"
    inner = "border-collapse:collapse;font-size:13px;text-align:left;color:#222"
    return (
        f'<div style="{outer}">{_line(caption, "font-weight:bold")}'
        f'<table style="{inner}"><thead><tr style="background:#fff">{cells}</tr>'
        f"</thead><tbody>{body}</tbody></table>{_line(note, 'color:#555')}</div>"
    )


def colour(value: float, strongest: float) -> str:
    """A background: green above 0, red below, the paler the nearer to it.

    strongest: the largest magnitude beside it; all is white where that is 0.
    """
    red, green, blue = POSITIVE if value > 0 else NEGATIVE
    share = min(abs(value) / strongest, 1.0) if strongest else 0.0
    return f"rgba({red},{green},{blue},{STRONGEST * share:.2f})"


def number(value: float | None) -> str:
    """A figure for reading: "–" where it is not known."""
    return figure(value, digits=2, unknown="–")


def _line(text: str, style: str) -> str:
    if not text:
        return ""
    return f'<div style="padding:4px 8px;{style}">{html.escape(text)}</div>'
