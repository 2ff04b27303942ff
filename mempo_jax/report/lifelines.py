"""A line for each memory over the turns of its trajectory, as SVG.

Written, recalled, in context, in the context of an answer, merged, superseded, evicted,
deleted: each is a mark on the line. What is a tombstone goes on as a dashed line.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from mempo_jax.report import strips
from mempo_jax.report.lives import Life, lives_of
from mempo_jax.report.markup import (
    brief,
    count,
    element,
    escaped,
    scroll,
    signed,
    single,
)
from mempo_jax.report.records import Record
from mempo_jax.report.shades import Shades, token_numbers
from mempo_jax.report.strips import Axis

ROW = 32  # height of a line with its text
TOP = 46  # the strip of ops and the turns
MOST = 60  # lines of one trajectory
LETTER, CAPITAL, WIDE = 6.1, 8.5, 11.0  # width of one in the text of a line, about
NEAREST = 2.0  # of a text to the left edge
FATES = {"merged": "M", "superseded": "S", "evicted": "E", "deleted": "D"}


def lifelines(record: Record, shades: Shades | None) -> str:
    """The drawing, with a note where not all lines fit; HTML."""
    lives = lives_of(record)
    shown, left_out = _shown(lives)
    axis = strips.axis_of(len(record.turns))
    rows = {life.entry: TOP + ROW * n + 20 for n, life in enumerate(shown)}
    height = TOP + ROW * len(shown) + 10
    parts = [strips.ticks(axis, 9), strips.strip(record, axis, 22)]
    parts += [_joins(life, axis, rows) for life in shown]
    parts += [_line(life, record, axis, rows[life.entry], shades) for life in shown]
    drawing = element(
        "svg",
        "".join(parts),
        class_="lifelines",
        width=axis.width,
        height=height,
        viewBox=f"0 0 {axis.width} {height}",
        role="img",
        aria_label=_spoken(record, lives),
    )
    note = ""
    if not lives:
        note = _block(record)
    elif left_out:
        note = f"{count(left_out, 'memory line')} left out: the ones never recalled."
    told = element("p", note, class_="note") if note else ""
    return scroll(drawing, "memories over the turns") + told


def _block(record: Record) -> str:
    """Of a trajectory without entries: the one block that it may have carried along."""
    made = [op for op in record.log if op.kind == "rewrite" and op.error is None]
    if not made:
        return "No memory was written."
    last = element("q", escaped(made[-1].text, 600), dir="auto")
    return f"One block was rewritten {count(len(made), 'time')}; it ended as {last}"


def _shown(lives: Sequence[Life]) -> tuple[list[Life], int]:
    """The lines that there is room for: first the recalled ones; and how many not."""
    first = sorted(lives, key=lambda life: (not life.recalls, life.entry))[:MOST]
    return sorted(first, key=lambda life: life.entry), max(0, len(lives) - MOST)


def _line(
    life: Life, record: Record, axis: Axis, y: float, shades: Shades | None
) -> str:
    last = len(record.turns) - 1
    end = last if life.end is None else life.end
    credit, told = _credit(life, record, shades)
    start, stop = axis.x(life.born), axis.x(end)
    stop = max(stop, start + 2)
    parts = [
        element("title", escaped(_told(life, told), 600)),
        single("line", x1=start, x2=stop, y1=y, y2=y, class_=f"life {credit}".strip()),
        _label(life, axis, y),
    ]
    if life.end is not None and axis.right > stop:
        dead = {"x1": stop, "x2": axis.right, "y1": y, "y2": y}
        parts.append(single("line", **dead, class_="dead"))
    parts += [_context(turn, axis, y) for turn in life.contexts]
    parts.append(_birth(life, start, y, credit))
    parts += [_recall(each, axis, y) for each in life.recalls]
    parts += [_answer(turn, record, axis, y) for turn in life.answers]
    if life.end is not None:
        parts.append(_fate(life, stop, y))
    kind = f"entry {life.fate}".strip()
    return element("g", "".join(parts), class_=kind, data_entry=life.entry)


def _label(life: Life, axis: Axis, y: float) -> str:
    """What it says, over its line, on the side where there is room."""
    start, right = axis.x(life.born), axis.right
    leftwards = right - start < start
    room = start + 6 - NEAREST if leftwards else axis.width - start + 4
    line = brief(life.text, 300) or "from before this task"
    name, letter = f"{life.entry} ", _width(line) / len(line)
    least = min(12 * letter, axis.width - 2 * NEAREST)
    text = brief(line, max(int((max(room, least) - _width(name)) / letter), 1))
    x = start + 6 if leftwards else start - 4
    if leftwards and _width(name + text) > room:
        leftwards, x = False, NEAREST  # else its beginning would lie outside
    return element(
        "text",
        f'<tspan class="id">{life.entry}</tspan> {escaped(text)}',
        x=x,
        y=y - 8,
        class_="label" + (" leftwards" if leftwards else ""),
    )


def _width(text: str) -> float:
    """Pixels that a label takes, about."""
    return sum(
        WIDE
        if unicodedata.east_asian_width(each) in "WF"
        else (CAPITAL if each.isupper() else LETTER)
        for each in text
    )


def _birth(life: Life, x: float, y: float, credit: str) -> str:
    if life.born < 0:
        return ""
    return single("circle", cx=x, cy=y, r=4.5, class_=f"birth {credit}".strip())


def _context(turn: int, axis: Axis, y: float) -> str:
    x, cell = axis.x(turn), axis.cell
    box = {"x": round(x - cell / 2, 1), "y": y - 6, "width": cell, "height": 12}
    return _titled(
        f"in context of turn {turn}", single("rect", **box, class_="context")
    )


def _recall(recall: tuple[int, int, float], axis: Axis, y: float) -> str:
    turn, rank, similarity = recall
    x = axis.x(turn)
    points = f"{x - 5},{y + 9} {x + 5},{y + 9} {x},{y + 1}"
    told = f"recalled in turn {turn}, place {rank}, best hit {signed(similarity)}"
    return _titled(told, single("polygon", points=points, class_="recalled"))


def _answer(turn: int, record: Record, axis: Axis, y: float) -> str:
    x, size = axis.x(turn), 6
    points = f"{x - size},{y} {x},{y - size} {x + size},{y} {x},{y + size}"
    earned = record.turns[turn].reward or 0.0
    told = f"in context of the answer in turn {turn}, which earned {earned:.2f}"
    kind = "answer" if earned > 0 else "answer wrong"
    return _titled(told, single("polygon", points=points, class_=kind))


def _fate(life: Life, x: float, y: float) -> str:
    into = "" if life.into is None else f" by entry {life.into}"
    told = f"{life.fate}{into} in turn {life.end}"
    box = single("rect", x=x - 6, y=y - 6, width=12, height=12, rx=2, class_="fate")
    sign = element("text", FATES[life.fate], x=x, y=y + 3.6, class_="sign")
    return _titled(told, box + sign)


def _joins(life: Life, axis: Axis, rows: dict[int, float]) -> str:
    """From each parent's line down to the one that it went into."""
    x, y = axis.x(life.born), rows[life.entry]
    return "".join(
        single("line", x1=x, x2=x, y1=rows[parent], y2=y, class_="join")
        for parent in life.parents
        if parent in rows
    )


def _credit(life: Life, record: Record, shades: Shades | None) -> tuple[str, str]:
    """The colour of a line, and the numbers behind it in words."""
    if shades is None or record.credit is None or life.op is None:
        return "", ""
    weight, bonus, advantage = token_numbers(record, life.op, life.born)
    told = f"advantage {signed(advantage)}, bonus {signed(bonus)}, weight {weight:.2g}"
    return shades.classes(weight, bonus, advantage), told


def _told(life: Life, credit: str) -> str:
    title = f" [{life.title}]" if life.title else ""
    words = [f"entry {life.entry}{title}: {life.text or 'from before this task'}"]
    words += [credit] if credit else []
    return "\n".join(words)


def _spoken(record: Record, lives: Sequence[Life]) -> str:
    recalled = sum(bool(life.recalls) for life in lives)
    return (
        f"Memories over {count(len(record.turns), 'turn')}: {len(lives)} written, "
        f"{recalled} recalled, {sum(life.end is not None for life in lives)} ended"
    )


def _titled(title: str, inner: str) -> str:
    return element("g", element("title", escaped(title)) + inner)
