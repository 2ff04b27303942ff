"""The ops of a trajectory as a strip: a cell a turn, a box an op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mempo_jax.memory import OpRecord
from mempo_jax.report.markup import element, escaped, signed, single
from mempo_jax.report.records import Record

SIGNS: Mapping[str, str] = {  # an op in one letter
    "write": "W",
    "recall": "R",
    "merge": "M",
    "delete": "D",
    "rewrite": "B",
    "act": "A",
    "answer": "A",
    "malformed": "!",
    "skip": "·",
}
FAILED = ("error", "duplicate", "disabled")
HEIGHT = 22  # of a strip
EDGE = 16
WIDE, NARROW, ROOM = 34, 13, 720  # of a cell at most and least; of all together


class Axis(NamedTuple):
    """Turns 0 to ``turns`` - 1 from left to right, each ``cell`` wide."""

    turns: int
    cell: float
    left: float = EDGE

    def x(self, turn: float) -> float:
        """The middle of a turn; of -1, the left edge."""
        return round(self.left + self.cell * (turn + 0.5), 1) if turn >= 0 else 4.0

    @property
    def right(self) -> float:
        return round(self.left + self.cell * self.turns, 1)

    @property
    def width(self) -> float:
        return self.right + EDGE


def axis_of(turns: int, left: float = EDGE) -> Axis:
    """An axis that fits a page where it can, and is wider where there are many."""
    cell = min(WIDE, max(NARROW, ROOM / max(turns, 1)))
    return Axis(max(turns, 1), round(cell, 1), left)


def ticks(axis: Axis, y: float) -> str:
    """The numbers of the turns, as many as there is room for."""
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 1000) if n * axis.cell >= 22)
    return "".join(
        element("text", str(turn), x=axis.x(turn), y=y, class_="tick")
        for turn in range(0, axis.turns, every)
    )


def strip(record: Record, axis: Axis, y: float) -> str:
    """Boxes of the ops of each turn; a star over what deserves memory."""
    by_turn: dict[int, list[OpRecord]] = {}
    for op in record.log:
        by_turn.setdefault(op.turn, []).append(op)
    made = [
        _cell(ops, axis, axis.x(turn) - axis.cell / 2, y)
        for turn, ops in by_turn.items()
        if 0 <= turn < axis.turns
    ]
    made += [
        element("text", "★", x=axis.x(turn), y=y - 1, class_="star")
        for turn in sorted(record.useful)
    ]
    return "".join(made)


def told(op: OpRecord) -> str:
    """An op in one plain line."""
    words = [f"turn {op.turn}: {op.kind}, {op.outcome}"]
    if op.entry_ids:
        words.append(f"entry {', '.join(map(str, op.entry_ids))}")
    if op.similarity:
        words.append(f"similarity {signed(op.similarity).lstrip('+')}")
    if op.error:
        words.append(f"error {op.error}")
    if op.text:
        words.append(f"“{op.text}”")
    return ", ".join(words)


def _cell(ops: Sequence[OpRecord], axis: Axis, x: float, y: float) -> str:
    height = (HEIGHT - 2) / len(ops)
    made = []
    if all(op.kind == "skip" for op in ops):  # most turns are: no more than a box
        wide = {"width": round(axis.cell - 2, 1), "height": HEIGHT - 2}
        return single("rect", x=round(x + 1, 1), y=y + 1, **wide, class_="op skip")
    for n, op in enumerate(ops):
        failed = " failed" if op.outcome in FAILED or op.error else ""
        kind = op.kind if op.kind in SIGNS else "other"
        top = round(y + 1 + n * height, 1)
        box = single(
            "rect",
            x=round(x + 1, 1),
            y=top,
            width=round(axis.cell - 2, 1),
            height=round(height - 0.6, 1),
            rx=2,
            class_=f"op {kind}{failed}",
        )
        sign = ""
        if height >= 6:
            sign = element(
                "text",
                SIGNS.get(op.kind, "?"),
                x=round(x + axis.cell / 2, 1),
                y=round(top + height / 2 + (2.5 if height < 14 else 3.4), 1),
                class_=f"sign{failed}{' small' if height < 14 else ''}",
            )
        made.append(element("g", element("title", escaped(told(op), 300)) + box + sign))
    return "".join(made)
