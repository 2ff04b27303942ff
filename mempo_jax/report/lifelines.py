"""The life of each memory of a trajectory, as a line over its turns.

Written, recalled, in context, in the context of an answer, merged, superseded, evicted,
deleted: each is a mark on the line, and a tombstone goes on as a dashed line. Above the
lines is the strip of ops: a cell for each turn, a box for each op.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mempo_jax.memory import OpRecord
from mempo_jax.memory.lineage import makes_entry
from mempo_jax.report.markup import TokenColours, brief, count, signed, token_numbers
from mempo_jax.report.run_files import RecordedTrajectory

ANSWERS = ("answer", "act")
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
FAILED = ("error", "duplicate", "disabled")  # outcomes that get a frame

# Pixels.
EDGE = 16  # beside the turns
WIDEST, NARROWEST, ROOM = 34, 13, 720  # of a cell; of all cells if there are many
STRIP = 22  # height of a strip of ops
TOP = 46  # height of the strip and the numbers of the turns
ROW = 32  # height of a line with its text
LETTER, CAPITAL, WIDE = 6.1, 8.5, 11.0  # width of one in the text of a line, about
NEAREST = 2.0  # of a text to the left edge

MOST = 60  # lines of one trajectory


@dataclasses.dataclass
class EntryHistory:
    """One entry of the memory, by turns.

    Attributes:
      entry: its id.
      born: the turn that wrote it, -1 for an entry of an initial bank.
      text, title: what is stored.
      op: the place in the log of the op that made it, None for an initial entry.
      end: the turn that made it a tombstone, None while it lives.
      fate: merged, superseded, evicted or deleted; "" while it lives.
      into: the entry that replaced it.
      parents: the entries that it replaced.
      recalls: (turn, rank from 1, similarity of the recall's best hit).
      contexts: turns whose action had it in context through a recall.
      answers: those of ``contexts`` that answered.
    """

    entry: int
    born: int
    text: str = ""
    title: str | None = None
    op: int | None = None
    end: int | None = None
    fate: str = ""
    into: int | None = None
    parents: tuple[int, ...] = ()
    recalls: list[tuple[int, int, float]] = dataclasses.field(default_factory=list)
    contexts: list[int] = dataclasses.field(default_factory=list)
    answers: list[int] = dataclasses.field(default_factory=list)

    def finish(self, turn: int, fate: str, into: int | None = None) -> None:
        """Notes how it ended; the first end counts.

        Args:
          turn: that made it a tombstone.
          fate: merged, superseded, evicted or deleted.
          into: the entry that replaced it.
        """
        if self.end is None:
            self.end, self.fate, self.into = turn, fate, into


def entry_histories(record: RecordedTrajectory) -> list[EntryHistory]:
    """Reads the life of each memory from the op log.

    Args:
      record: a trajectory.

    Returns:
      Its entries, in the order of their ids.
    """
    histories: dict[int, EntryHistory] = {}

    def known(entry: int) -> EntryHistory:
        # What the log never made was there before it.
        return histories.setdefault(entry, EntryHistory(entry, -1))

    for place, op in enumerate(record.log):
        if makes_entry(op):
            entry, *parents = op.entry_ids
            histories[entry] = EntryHistory(
                *(entry, op.turn, op.stored, op.title, place), parents=tuple(parents)
            )
            fate = "superseded" if op.supersedes else "merged"
            for parent in parents:
                known(parent).finish(op.turn, fate, entry)
        elif op.outcome == "deleted":
            for entry in op.entry_ids:
                known(entry).finish(op.turn, "deleted")
        elif op.kind == "recall":
            for rank, entry in enumerate(op.entry_ids, start=1):
                known(entry).recalls.append((op.turn, rank, op.similarity))
        for entry in op.evicted:
            known(entry).finish(op.turn, "evicted")
    _add_contexts(record, histories.values())
    return [histories[entry] for entry in sorted(histories)]


def _add_contexts(
    record: RecordedTrajectory, histories: Sequence[EntryHistory]
) -> None:
    """A recall shows its hits to the next turn, and to those after it until one that
    does not recall has acted."""
    number = len(record.turns)
    recalls = {op.turn for op in record.log if op.kind == "recall"}
    answered = {op.turn for op in record.log if op.kind in ANSWERS}
    for history in histories:
        turns: set[int] = set()
        for turn, _, _ in history.recalls:
            last = turn + 1
            while last in recalls and last + 1 < number:
                last += 1
            turns |= set(range(turn + 1, min(last + 1, number)))
        history.contexts = sorted(turns)
        history.answers = sorted(turns & answered)


class Axis(NamedTuple):
    """Turns 0 to ``turns`` - 1 from left to right, each ``cell`` wide."""

    turns: int
    cell: float
    left: float = EDGE

    @classmethod
    def of(cls, turns: int, left: float = EDGE) -> Axis:
        """Makes an axis that fits a page, or is wider if there are many turns.

        Args:
          turns: how many.
          left: room for a label.

        Returns:
          The axis.
        """
        cell = min(WIDEST, max(NARROWEST, ROOM / max(turns, 1)))
        return cls(max(turns, 1), round(cell, 1), left)

    def x(self, turn: float) -> float:
        """Places a turn.

        Args:
          turn: its number; -1 is the left edge.

        Returns:
          The middle of its cell.
        """
        return round(self.left + self.cell * (turn + 0.5), 1) if turn >= 0 else 4.0

    @property
    def right(self) -> float:
        """The end of the last cell."""
        return round(self.left + self.cell * self.turns, 1)

    @property
    def width(self) -> float:
        """Of the drawing."""
        return self.right + EDGE

    @property
    def ticks(self) -> range:
        """Turns whose numbers there is room for."""
        steps = (1, 2, 5, 10, 20, 50, 100, 1000)
        return range(0, self.turns, next(n for n in steps if n * self.cell >= 22))


class OpBox(NamedTuple):
    """One op of a strip with its letter, "" if there is no room for it; ``label`` is
    None for a turn that only skipped."""

    x: float
    y: float
    width: float
    height: float
    kind: str = "skip"
    failed: bool = False
    label: str | None = None
    sign: str = ""
    sign_x: float = 0.0
    sign_y: float = 0.0
    small: bool = False


class OpStrip(NamedTuple):
    """The ops of a trajectory: boxes, and the places of stars over what deserves
    memory."""

    y: float
    boxes: list[OpBox]
    stars: list[float]


def op_strip(record: RecordedTrajectory, axis: Axis, y: float) -> OpStrip:
    """Lays out the ops of a trajectory, a cell for each turn.

    Args:
      record: a trajectory.
      axis: of its turns.
      y: the upper edge of the strip.

    Returns:
      What is to be drawn.
    """
    by_turn: dict[int, list[OpRecord]] = {}
    for op in record.log:
        by_turn.setdefault(op.turn, []).append(op)
    boxes = [
        box
        for turn, ops in by_turn.items()
        if 0 <= turn < axis.turns
        for box in _boxes(ops, axis, turn, y)
    ]
    return OpStrip(y, boxes, [axis.x(turn) for turn in sorted(record.useful)])


def _boxes(ops: Sequence[OpRecord], axis: Axis, turn: int, y: float) -> list[OpBox]:
    x = round(axis.x(turn) - axis.cell / 2 + 1, 1)
    width, height = round(axis.cell - 2, 1), (STRIP - 2) / len(ops)
    if all(op.kind == "skip" for op in ops):  # most turns are: no more than a box
        return [OpBox(x, y + 1, width, STRIP - 2)]
    small, boxes = height < 14, []
    for n, op in enumerate(ops):
        top = round(y + 1 + n * height, 1)
        box = OpBox(
            *(x, top, width, round(height - 0.6, 1)),
            kind=op.kind if op.kind in SIGNS else "other",
            failed=op.outcome in FAILED or bool(op.error),
            label=describe(op),
            sign=SIGNS.get(op.kind, "?") if height >= 6 else "",
            sign_x=axis.x(turn),
            sign_y=round(top + height / 2 + (2.5 if small else 3.4), 1),
            small=small,
        )
        boxes.append(box)
    return boxes


def describe(op: OpRecord) -> str:
    """Puts an op into one line.

    Args:
      op: from the log of a trajectory.

    Returns:
      Plain text.
    """
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


class EntryLine(NamedTuple):
    """The line of one memory: from ``start`` to ``stop``, with a text above it."""

    history: EntryHistory
    start: float
    stop: float
    y: int
    colours: str
    about: str
    text: str
    text_x: float
    leftwards: bool


class Lifelines(NamedTuple):
    """The drawing of a trajectory; joins: (x, y of the parent, y of the child)."""

    record: RecordedTrajectory
    axis: Axis
    height: int
    strip: OpStrip
    lines: list[EntryLine]
    joins: list[tuple[float, int, int]]
    left_out: int
    label: str

    @property
    def blocks(self) -> list[str]:
        """What a trajectory without entries may have carried along instead."""
        ops = (op for op in self.record.log if op.kind == "rewrite")
        return [op.text for op in ops if op.error is None]


def lifelines(record: RecordedTrajectory, colours: TokenColours | None) -> Lifelines:
    """Lays out a line for each memory of a trajectory.

    Args:
      record: the trajectory.
      colours: of the page, None if no record of it has token credit.

    Returns:
      What is to be drawn; if there are too many, lines that were never recalled are
      left out.
    """
    histories = entry_histories(record)
    first = sorted(histories, key=lambda each: (not each.recalls, each.entry))[:MOST]
    shown = sorted(first, key=lambda each: each.entry)
    axis = Axis.of(len(record.turns))
    rows = {each.entry: TOP + ROW * n + 20 for n, each in enumerate(shown)}
    return Lifelines(
        record=record,
        axis=axis,
        height=TOP + ROW * len(shown) + 10,
        strip=op_strip(record, axis, 22),
        lines=[_line(each, record, axis, rows[each.entry], colours) for each in shown],
        joins=[
            (axis.x(each.born), rows[parent], rows[each.entry])
            for each in shown
            for parent in each.parents
            if parent in rows
        ],
        left_out=len(histories) - len(shown),
        label=_spoken(record, histories),
    )


def _line(
    history: EntryHistory,
    record: RecordedTrajectory,
    axis: Axis,
    y: int,
    colours: TokenColours | None,
) -> EntryLine:
    end = len(record.turns) - 1 if history.end is None else history.end
    start = axis.x(history.born)
    title = f" [{history.title}]" if history.title else ""
    about = [f"entry {history.entry}{title}: {history.text or 'from before this task'}"]
    classes = ""
    if colours is not None and record.credit is not None and history.op is not None:
        numbers = token_numbers(record, history.op, history.born)
        classes = colours.classes(numbers)
        about.append(
            f"advantage {signed(numbers.advantage)}, bonus {signed(numbers.bonus)}, "
            f"weight {numbers.weight:.2g}"
        )
    return EntryLine(
        *(history, start, max(axis.x(end), start + 2), y, classes, "\n".join(about)),
        *_label(history, axis),
    )


def _label(history: EntryHistory, axis: Axis) -> tuple[str, float, bool]:
    """What it says, over its line, on the side where there is room: the text, its x,
    and whether it ends there."""
    start, right = axis.x(history.born), axis.right
    leftwards = right - start < start
    room = start + 6 - NEAREST if leftwards else axis.width - start + 4
    line = brief(history.text, 300) or "from before this task"
    name, letter = f"{history.entry} ", _width(line) / len(line)
    least = min(12 * letter, axis.width - 2 * NEAREST)
    text = brief(line, max(int((max(room, least) - _width(name)) / letter), 1))
    x = start + 6 if leftwards else start - 4
    if leftwards and _width(name + text) > room:
        return text, NEAREST, False  # else its beginning would be outside
    return text, x, leftwards


def _width(text: str) -> float:
    """Pixels that a label takes, about."""
    return sum(
        WIDE
        if unicodedata.east_asian_width(each) in "WF"
        else (CAPITAL if each.isupper() else LETTER)
        for each in text
    )


def _spoken(record: RecordedTrajectory, histories: Sequence[EntryHistory]) -> str:
    recalled = sum(bool(each.recalls) for each in histories)
    return (
        f"Memories over {count(len(record.turns), 'turn')}: {len(histories)} written, "
        f"{recalled} recalled, {sum(each.end is not None for each in histories)} ended"
    )
