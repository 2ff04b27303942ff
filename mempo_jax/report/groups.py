"""The trajectories of one task side by side, the best first.

Strips of ops under one axis show in which turn they part; the table below them shows
what each wrote of what it saw, and whether that was used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mempo_jax.report import strips
from mempo_jax.report.choosing import HELD_OUT, Group
from mempo_jax.report.lives import Life, lives_of
from mempo_jax.report.markup import (
    brief,
    count,
    element,
    escaped,
    number,
    scroll,
    signed,
)
from mempo_jax.report.records import Record
from mempo_jax.report.shades import Shades, token_numbers

KINDS = {  # of ops, as the head of a column
    "write": "writes",
    "recall": "recalls",
    "merge": "merges",
    "delete": "deletes",
    "rewrite": "rewrites",
    "skip": "skips",
    "malformed": "malformed",
}
OUTCOMES = {
    "solved": "solved",
    "partly": "partly solved",
    "unsolved": "not solved",
    "failed": "failed",
}
STRIP_ROW = 32
LABEL = 132  # width of what stands left of a strip
MOST_WRITES = 60  # rows of the table of writes
FEW_WRITES = 20  # that many are open to begin with


def ordered(group: Group) -> list[Record]:
    """The members of a training group by reward, the best first; the runs of a held-out
    task in the order of their files."""
    if group.step is None:
        return list(group.members)
    lowest = float("-inf")
    return sorted(
        group.members,
        key=lambda m: (-(lowest if m.total is None else m.total), m.sample),
    )


def name(group: Group, record: Record) -> str:
    """How a member is called within its group."""
    return f"#{record.sample}" if group.step is not None else HELD_OUT[record.source]


def heading(group: Group) -> str:
    """The line that is seen of a closed group, HTML."""
    where = "held-out" if group.step is None else f"step {group.step}"
    tallies = Counter(member.outcome for member in group.members)
    told = ", ".join(f"{tallies[o]} {OUTCOMES[o]}" for o in OUTCOMES if tallies[o])
    bars = "".join(_bar(member) for member in ordered(group))
    return (
        f"{element('b', where)} {escaped(group.task, 80)} "
        f"{element('span', bars, class_='bars', aria_hidden='true')} "
        f"{element('span', told, class_='muted')}"
    )


def comparison(group: Group, shades: Shades | None) -> str:
    """The members beside each other: figures, strips, writes; HTML."""
    members = ordered(group)
    goal = next((m.goal for m in members if m.goal), "")
    parts = [element("p", f"Goal: {escaped(goal, 600)}", dir="auto")] if goal else []
    parts += [_difference(group), _figures(group, members), _strips(group, members)]
    parts.append(_writes(group, members, shades))
    return "".join(parts)


def _bar(record: Record) -> str:
    share = min(max(record.score or 0.0, 0.0), 1.0)
    return element(
        "i", "", class_=record.outcome, style=f"height:{2 + 12 * share:.0f}px"
    )


def _difference(group: Group) -> str:
    if group.step is None:
        return ""
    if not group.spread:
        told = "All rewards are equal: this group has no advantage to train on."
    else:
        told = f"Rewards differ by {number(group.spread)}; the best stands first."
    return element("p", told, class_="note")


def _figures(group: Group, members: Sequence[Record]) -> str:
    kinds = [k for k in KINDS if any(op.kind == k for m in members for op in m.log)]
    shaping = sorted(
        {n for m in members for n, v in m.weighted.items() if v and n != "task"}
    )
    credited = any(m.credit is not None for m in members)
    heads = ["run", "reward", "task", *shaping]
    heads += ["advantage"] if credited else []
    heads += ["answers", "turns", *(KINDS[kind] for kind in kinds), "tokens"]
    rows = []
    for member in members:
        cells = [number(member.total), number(member.score)]
        cells += [number(member.weighted.get(n)) for n in shaping]
        cells += [_advantage(member)] if credited else []
        cells += [_answers(member), str(len(member.turns))]
        tally = Counter(op.kind for op in member.log)
        cells += [str(tally[kind]) for kind in kinds]
        cells.append(f"{member.tokens_total:,}")
        head = element("th", escaped(name(group, member)), scope="row")
        body = "".join(element("td", cell) for cell in cells)
        rows.append(element("tr", head + body, data_outcome=member.outcome))
    top = "".join(element("th", escaped(head), scope="col") for head in heads)
    table = element("thead", element("tr", top)) + element("tbody", "".join(rows))
    return scroll(element("table", table, class_="figures"), "figures of each")


def _advantage(record: Record) -> str:
    if record.credit is None:
        return "–"
    told = signed(record.credit.advantage)
    return told if record.credit.trained else f"{told}, not trained"


def _answers(record: Record) -> str:
    told = ", ".join(brief(answer, 24) for answer in record.answers[:4])
    more = f" +{len(record.answers) - 4}" if len(record.answers) > 4 else ""
    return escaped(f"{told}{more}") or "–"


def _strips(group: Group, members: Sequence[Record]) -> str:
    turns = max((len(member.turns) for member in members), default=0)
    axis = strips.axis_of(turns, LABEL)
    height = 20 + STRIP_ROW * len(members)
    parts = [strips.ticks(axis, 10)]
    for n, member in enumerate(members):
        y = 24 + STRIP_ROW * n
        reward = number(member.total)
        label = f"{name(group, member)} {reward}"
        parts.append(element("text", escaped(label), x=2, y=y + 14, class_="who"))
        parts.append(strips.strip(member, axis, y))
    drawing = element(
        "svg",
        "".join(parts),
        class_="strips",
        width=axis.width,
        height=height,
        viewBox=f"0 0 {axis.width} {height}",
        role="img",
        aria_label=f"Operations by turn of {count(len(members), 'trajectory')}",
    )
    return scroll(drawing, "operations by turn")


def _writes(group: Group, members: Sequence[Record], shades: Shades | None) -> str:
    """What was written, by the turn that wrote it: a column a member."""
    lives = [[x for x in lives_of(m) if x.op is not None] for m in members]
    texts = {(life.text, life.born) for own in lives for life in own}
    rows = sorted({text for text, _ in texts}, key=lambda t: _first(t, texts))
    if not rows:
        return ""
    body = []
    for text in rows[:MOST_WRITES]:
        star = _is_useful(text, members, lives)
        cells = [
            _written(text, member, own, shades)
            for member, own in zip(members, lives, strict=True)
        ]
        head = escaped(brief(text, 90)) + (' <b class="star">★</b>' if star else "")
        body.append(
            element("tr", element("th", head, scope="row", dir="auto") + "".join(cells))
        )
    tops = ["stored", *(name(group, member) for member in members)]
    top = "".join(element("th", escaped(each), scope="col") for each in tops)
    table = element("thead", element("tr", top)) + element("tbody", "".join(body))
    left = len(rows) - MOST_WRITES
    note = element("p", f"{left} more texts are not shown.", class_="note")
    inner = element("table", table, class_="written")
    told = "● written, ▲ recalled, ◆ in context of an answer, × gone before the end"
    head = f"What each of them stored: {count(len(rows), 'text')}"
    return element(
        "details",
        element("summary", head)
        + element("p", told, class_="note")
        + scroll(inner, "what each stored")
        + (note if left > 0 else ""),
        open=len(rows) <= FEW_WRITES,
    )


def _first(text: str, texts: set[tuple[str, int]]) -> tuple[int, str]:
    return min(turn for other, turn in texts if other == text), text


def _is_useful(
    text: str, members: Sequence[Record], lives: Sequence[Sequence[Life]]
) -> bool:
    return any(
        life.text == text and life.born in member.useful
        for member, own in zip(members, lives, strict=True)
        for life in own
    )


def _written(
    text: str, member: Record, lives: Sequence[Life], shades: Shades | None
) -> str:
    signs, shade = [], ""
    for life in lives:
        if life.text != text or life.op is None:
            continue
        used = ("▲" if life.recalls else "") + ("◆" if life.answers else "")
        signs.append("●" + used + ("×" if life.end is not None else ""))
        if shades is not None and member.credit is not None:
            shade = shades.classes(*token_numbers(member, life.op, life.born))
    return element("td", " ".join(signs), class_=shade or None)
