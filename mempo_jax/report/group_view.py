"""The trajectories of one task next to each other, the best first.

Strips of ops under one axis show in which turn they part; the table below them shows
what each wrote of what it saw, and whether that was used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from mempo_jax.report.evidence import (
    EvidenceVerdict,
    asked_questions,
    count_verdicts,
    plain_observation,
    verdict,
)
from mempo_jax.report.lifelines import (
    Axis,
    EntryHistory,
    OpStrip,
    entry_histories,
    lifelines,
    op_strip,
)
from mempo_jax.report.markup import (
    MEASURES,
    STEPS,
    UNKNOWN,
    TokenColours,
    asset,
    brief,
    number,
    render,
    signed,
    token_numbers,
)
from mempo_jax.report.run_files import RecordedTrajectory
from mempo_jax.report.selection import Group

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
LABEL = 132  # width of what is left of a strip
MOST_TEXTS = 60  # rows of the table of what was stored
FEW_TEXTS = 20  # that many are open to begin with
MOST_ANSWERS = 4  # in a cell
Verdicts = Mapping[int, EvidenceVerdict]  # by the id() of a trajectory


class Figures(NamedTuple):
    """A table: a row of cells for each member."""

    heads: list[str]
    rows: list[list[str]]


class StoredText(NamedTuple):
    """A text that some members stored; cells: (signs, classes of a colour) of each."""

    text: str
    useful: bool
    cells: list[tuple[str, str]]


def tally(members: Sequence[RecordedTrajectory], verdicts: Verdicts) -> str:
    """Counts the outcomes of trajectories, and why they were not solved.

    Args:
      members: of one group.
      verdicts: by trajectory, for those that have one.

    Returns:
      Such as "2 solved, 1 not solved (1 lost the evidence)".
    """
    counts = Counter(member.outcome for member in members)
    words = [f"{counts[o]} {OUTCOMES[o]}" for o in OUTCOMES if counts[o]]
    why = count_verdicts(verdicts.get(id(member)) for member in members)
    return ", ".join(words) + (f" ({', '.join(why)})" if why else "")


def comparison(group: Group, colours: TokenColours | None) -> Markup:
    """Shows the members of a group next to each other: figures, strips, writes.

    Args:
      group: the group.
      colours: of the page, None if no record of it has token credit.

    Returns:
      HTML.
    """
    members = group.ordered
    texts = stored_texts(members, colours)
    turns = max((len(member.turns) for member in members), default=0)
    axis = Axis.of(turns, LABEL)
    return render(
        "group.html.j2",
        group=group,
        goal=next((m.goal for m in members if m.goal), ""),
        figures=figures(group),
        axis=axis,
        strips=_strips(members, axis),
        height=20 + STRIP_ROW * len(members),
        texts=texts[:MOST_TEXTS],
        text_count=len(texts),
        open=len(texts) <= FEW_TEXTS,
    )


def picture(group: Group) -> Markup:
    """Shows the best and the worst member of a group as a page to be photographed.

    Args:
      group: of a training step; its rewards differ.

    Returns:
      A whole HTML document: what both saw, and a line for each memory of either.
    """
    members = group.ordered
    best, colours = members[0], TokenColours.of(members)
    questions = asked_questions(members)
    asking = {each.observation for each in best.questions}
    firsts = {each: best.observed.index(each) for each in sorted(set(best.observed))}
    return render(
        "picture.html.j2",
        style=asset("report.css"),
        measures=MEASURES,
        steps=STEPS,
        size=len(members),
        questions=questions,
        seen=[
            (plain_observation(best.turns[turn].observation), turn in best.useful)
            for observation, turn in firsts.items()
            if observation not in asking
        ],
        members=[
            (member, _why(member), lifelines(member, colours))
            for member in (best, members[-1])
        ],
    )


def _why(record: RecordedTrajectory) -> str:
    """What became of the memory that the answer needed."""
    reason = verdict(record)
    if reason is not None:
        return reason.words
    used = [each for each in entry_histories(record) if each.answers]
    if not used:
        return ""
    entry, (turn, _, _) = used[0], used[0].recalls[-1]
    return (
        f"stored as entry {entry.entry} in turn {entry.born}, recalled in turn {turn}"
    )


def figures(group: Group) -> Figures:
    """Tells the members of a group apart by figures.

    Args:
      group: the group.

    Returns:
      Rewards, advantages, answers and counts of ops; the members in their order.
    """
    members = group.ordered
    kinds = [k for k in KINDS if any(op.kind == k for m in members for op in m.log)]
    shaping = sorted(
        {n for m in members for n, v in m.weighted.items() if v and n != "task"}
    )
    credited = any(member.credit is not None for member in members)
    heads = ["run", "reward", "task", *shaping]
    heads += ["advantage"] if credited else []
    heads += ["answers", "turns", *(KINDS[kind] for kind in kinds), "tokens"]
    rows = []
    for member in members:
        tally = Counter(op.kind for op in member.log)
        cells = [group.name(member), number(member.total), number(member.score)]
        cells += [number(member.weighted.get(name)) for name in shaping]
        cells += [_advantage(member)] if credited else []
        cells += [_answers(member), str(len(member.turns))]
        cells += [str(tally[kind]) for kind in kinds]
        rows.append([*cells, f"{member.tokens_total:,}"])
    return Figures(heads, rows)


def _advantage(record: RecordedTrajectory) -> str:
    if record.credit is None:
        return UNKNOWN
    advantage = signed(record.credit.advantage)
    return advantage if record.credit.trained else f"{advantage}, not trained"


def _answers(record: RecordedTrajectory) -> str:
    shown = ", ".join(brief(answer, 24) for answer in record.answers[:MOST_ANSWERS])
    left = len(record.answers) - MOST_ANSWERS
    return (f"{shown} +{left}" if left > 0 else shown) or UNKNOWN


def _strips(
    members: Sequence[RecordedTrajectory], axis: Axis
) -> list[tuple[RecordedTrajectory, OpStrip]]:
    return [
        (member, op_strip(member, axis, 24 + STRIP_ROW * n))
        for n, member in enumerate(members)
    ]


def stored_texts(
    members: Sequence[RecordedTrajectory], colours: TokenColours | None
) -> list[StoredText]:
    """Lists what the members of a group stored.

    Args:
      members: in the order of their columns.
      colours: of the page, None if no record of it has token credit.

    Returns:
      Each text once, by the first turn in which a member wrote it.
    """
    histories = [[h for h in entry_histories(m) if h.op is not None] for m in members]
    first: dict[str, int] = {}
    for history in (history for own in histories for history in own):
        turn = min(history.born, first.get(history.text, history.born))
        first[history.text] = turn
    columns = list(zip(members, histories, strict=True))
    useful = {h.text for m, own in columns for h in own if h.born in m.useful}
    return [
        StoredText(
            text,
            text in useful,
            [_stored(text, member, own, colours) for member, own in columns],
        )
        for text in sorted(first, key=lambda text: (first[text], text))
    ]


def _stored(
    text: str,
    member: RecordedTrajectory,
    histories: Sequence[EntryHistory],
    colours: TokenColours | None,
) -> tuple[str, str]:
    """The signs of a text in the column of a member, and the colour behind them."""
    signs, classes = [], ""
    for history in histories:
        if history.text != text or history.op is None:
            continue
        used = ("▲" if history.recalls else "") + ("◆" if history.answers else "")
        signs.append("●" + used + ("×" if history.end is not None else ""))
        if colours is not None and member.credit is not None:
            numbers = token_numbers(member, history.op, history.born)
            classes = colours.classes(numbers)
    return " ".join(signs), classes
