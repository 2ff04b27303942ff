"""How to read the drawings: each mark as it is drawn, with what it means."""

from __future__ import annotations

from mempo_jax.report import shades
from mempo_jax.report.markup import element, single
from mempo_jax.report.strips import SIGNS

OPS = {  # one of each sign
    "write": "write",
    "recall": "recall",
    "merge": "merge",
    "delete": "delete",
    "rewrite": "rewrite the block",
    "answer": "answer or act",
    "malformed": "malformed",
    "skip": "nothing done",
}
FAILED = "framed: failed, or a duplicate"
MARKS = {  # what is drawn within 30 x 16, and what it means
    "written": '<circle cx="15" cy="8" r="4.5" class="birth"/>',
    "recalled": '<polygon points="10,12 20,12 15,4" class="recalled"/>',
    "in context": '<rect x="4" y="2" width="22" height="12" class="context"/>',
    "in context of an answer": '<polygon points="9,8 15,2 21,8 15,14" class="answer"/>',
    "… that earned nothing": (
        '<polygon points="9,8 15,2 21,8 15,14" class="answer wrong"/>'
    ),
    "gone": '<line x1="2" x2="28" y1="8" y2="8" class="dead"/>',
}
CREDIT = {
    "Tokens": "token advantage = credit weight × the group's advantage + bonus; "
    "blue was made likelier, orange less likely; numbers stand at each operation",
    "Colour of a memory": "that of the tokens that wrote it, by the chosen measure: "
    "in its line, and in the table of what each stored",
}
FATES = "M merged · S superseded by an update · E evicted by the cap · D deleted"


def guide(tint: shades.Shades | None) -> str:
    """A closed part of the page, HTML."""
    ops = [_item(_sign(kind), told) for kind, told in OPS.items()]
    failed = single("rect", x=8, y=1, width=14, height=14, rx=2, class_="op failed")
    ops.append(_item(_box(failed), FAILED))
    marks = [_item(_box(drawn), told) for told, drawn in MARKS.items()]
    parts = [
        _line("Operations of a turn", "".join(ops)),
        _line("A memory over the turns", "".join(marks)),
        _line("How it ended", FATES),
        _line("★", "an observation that deserves memory, where the task knows which"),
    ]
    if tint is not None:
        parts += [_line(name, told) for name, told in CREDIT.items()]
    inner = element("summary", "How to read this") + "".join(parts)
    return element("details", inner, class_="guide")


def _line(head: str, inner: str) -> str:
    return element("p", f"{element('b', head)} {inner}")


def _item(drawing: str, told: str) -> str:
    return element("span", f"{drawing} {told}", class_="key")


def _sign(kind: str) -> str:
    box = single("rect", x=8, y=1, width=14, height=14, rx=2, class_=f"op {kind}")
    sign = element("text", SIGNS[kind], x=15, y=11.5, class_="sign")
    return _box(box if kind == "skip" else box + sign)


def _box(inner: str) -> str:
    return element("svg", inner, width=30, height=16, aria_hidden="true")
