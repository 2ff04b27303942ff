"""One trajectory as an HTML table: a row a turn, what it saw, said and remembered."""

from __future__ import annotations

import html
from collections.abc import Sequence

from mempo_jax.memory import OpRecord
from mempo_jax.report.page import box, colour, number
from mempo_jax.rollout.trajectory import Trajectory

KIND_COLOURS = {
    "write": "#2e7d32",
    "recall": "#1565c0",
    "merge": "#00838f",
    "delete": "#6d4c41",
    "rewrite": "#2e7d32",
    "answer": "#6a1b9a",
    "act": "#6a1b9a",
    "skip": "#757575",
    "malformed": "#c62828",
}
HEADS = ("turn", "sees", "says", "operation", "outcome", "entries", "reward")
STAR = "★"  # an observation that deserves memory, where the task knows which


def trajectory_html(
    trajectory: Trajectory,
    *,
    caption: str = "",
    said: Sequence[Sequence[tuple[str, float]]] | None = None,
) -> str:
    """A table: turn, what it saw and said, each op with its outcome, entries, reward.

    Observations that deserve memory bear a star where the environment knows the truth.

    Args:
      caption: a line above the table.
      said: by turn, pieces of what the policy said and a number for each, such as the
        advantage of its tokens; they are coloured by it.
    """
    strongest = max((abs(v) for turn in said or () for _, v in turn), default=0.0)
    rows = []
    for turn, seen in enumerate(trajectory.observations):
        records = [r for r in trajectory.log if r.turn == turn]
        pieces = said[turn] if said is not None and turn < len(said) else None
        rows.append(
            "".join(
                f'<td style="padding:4px 8px;vertical-align:top{style}">{cell}</td>'
                for cell, style in (
                    (str(turn), ""),
                    (_seen(trajectory, turn, seen), ";max-width:22em"),
                    (_said(trajectory, turn, pieces, strongest), ";max-width:34em"),
                    (_lines(map(_kind, records)), ""),
                    (_lines(map(_outcome, records)), ""),
                    (_lines(map(_entries, records)), ""),
                    (_reward(trajectory, turn), ";text-align:right"),
                )
            )
        )
    return box(HEADS, rows, caption, _end(trajectory))


def _seen(trajectory: Trajectory, turn: int, text: str) -> str:
    of = trajectory.turn_observation
    starred = turn < len(of) and of[turn] in trajectory.useful
    first = turn == 0 or turn >= len(of) or of[turn] != of[turn - 1]
    return _text(text) + (f' <b style="color:#ef6c00">{STAR}</b>' * (starred and first))


def _said(
    trajectory: Trajectory,
    turn: int,
    pieces: Sequence[tuple[str, float]] | None,
    strongest: float,
) -> str:
    if turn >= len(trajectory.actions):
        return ""
    if pieces is None:
        shown = _text(trajectory.actions[turn])
    else:
        shown = "".join(_piece(*piece, strongest) for piece in pieces)
    return f'<code style="background:none;color:#222">{shown}</code>'


def _piece(text: str, value: float, strongest: float) -> str:
    style = f"background:{colour(value, strongest)};border-radius:2px"
    return f'<span style="{style}" title="{value:+.3f}">{_text(text)}</span>'


def _kind(record: OpRecord) -> str:
    back = KIND_COLOURS.get(str(record.kind), "#222")
    style = f"background:{back};color:#fff;border-radius:3px;padding:0 6px"
    return f'<span style="{style}">{html.escape(str(record.kind))}</span>'


def _outcome(record: OpRecord) -> str:
    told = [str(record.outcome)]
    if record.error:
        told.append(str(record.error))
    if record.evicted:
        told.append(f"evicts {', '.join(map(str, record.evicted))}")
    return html.escape(", ".join(told))


def _entries(record: OpRecord) -> str:
    return ", ".join(map(str, record.entry_ids)) or "–"


def _reward(trajectory: Trajectory, turn: int) -> str:
    rewards = trajectory.turn_reward
    return number(rewards[turn]) if turn < len(rewards) else ""


def _end(trajectory: Trajectory) -> str:
    told = [f"ended: {trajectory.status}"]
    if trajectory.failure is not None:
        told.append(trajectory.failure)
    told.append(f"answers: {', '.join(trajectory.answers) or 'none'}")
    for question in trajectory.questions:
        told.append(f"gold answer: {question.answer}")
    if trajectory.reward is not None:
        told.append(f"reward: {number(trajectory.reward.total)}")
    return " · ".join(told)


def _lines(cells) -> str:
    return "<br>".join(cells)


def _text(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")
