"""One trajectory turn by turn: what it saw, said, did and earned.

A recorded one as a part of the page of a run, one at hand as a table for a notebook.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from mempo_jax.evaluation.result_rows import figure
from mempo_jax.memory import OpRecord
from mempo_jax.report.lifelines import FAILED, SIGNS, lifelines
from mempo_jax.report.markup import (
    LONGEST,
    UNKNOWN,
    TokenColours,
    TokenNumbers,
    render,
    signed,
    token_numbers,
)
from mempo_jax.report.run_files import RecordedTrajectory
from mempo_jax.rollout.trajectory import Trajectory

HEADS = ("turn", "sees", "says", "operation", "outcome", "entries", "reward")
STAR = "★"  # an observation that deserves memory, if the task knows which


class ColouredRun(NamedTuple):
    """Tokens of one op, or of none, with their colours and numbers."""

    classes: str
    title: str
    tokens: list[str]


class TurnRow(NamedTuple):
    """A turn of a recorded trajectory.

    Attributes:
      runs: its tokens; None if they are not known, or are not to be coloured.
      left: characters of the action that ``runs`` leaves out.
      ops: with the numbers of their tokens, None if these are not known.
      others: the numbers of tokens that spell no op, None if they need not be shown.
    """

    observation: str
    useful: bool
    action: str
    runs: list[ColouredRun] | None
    left: int
    ops: list[tuple[OpRecord, TokenNumbers | None]]
    others: TokenNumbers | None
    cut: bool
    reward: float | None


class Component(NamedTuple):
    """A part of the reward."""

    name: str
    weighted: float | None
    raw: float | None


def trajectory(record: RecordedTrajectory, colours: TokenColours | None) -> Markup:
    """Shows all about one trajectory: rewards, memories, turns.

    Args:
      record: the trajectory.
      colours: of the page, None if no record of it has token credit.

    Returns:
      HTML.
    """
    names = dict.fromkeys((*record.raw, *record.weighted))
    components = [
        Component(name, record.weighted.get(name), record.raw.get(name))
        for name in names
    ]
    summed = [each for each in components if each.weighted or each.name == "task"]
    return render(
        "trajectory.html.j2",
        record=record,
        summed=summed,
        weightless=[each for each in components if each.raw and each not in summed],
        others=_same_others(record),
        uncoloured=colours is not None and record.credit is None,
        drawing=lifelines(record, colours),
        turns=turn_rows(record, colours),
        signs=SIGNS,
        failed=FAILED,
    )


def turn_rows(
    record: RecordedTrajectory, colours: TokenColours | None
) -> list[TurnRow]:
    """Lists the turns of a trajectory.

    Args:
      record: the trajectory.
      colours: of the page, None if no record of it has token credit.

    Returns:
      A row for each turn.
    """
    credited = colours is not None and record.credit is not None
    ops: list[list[tuple[OpRecord, TokenNumbers | None]]] = [[] for _ in record.turns]
    for place, op in enumerate(record.log):
        numbers = token_numbers(record, place, op.turn) if credited else None
        if op.turn < len(ops):
            ops[op.turn].append((op, numbers))
    same, rows = _same_others(record), []
    for n, turn in enumerate(record.turns):
        runs, left = _runs(record, n, colours) if credited else (None, 0)
        has_others = any(op < 0 for op, _ in turn.runs or ())
        shows_others = credited and has_others and same is None
        rows.append(
            TurnRow(
                observation=turn.observation,
                useful=n in record.useful,
                action=turn.action,
                runs=runs,
                left=left,
                ops=ops[n],
                others=token_numbers(record, -1, n) if shows_others else None,
                cut=turn.cut,
                reward=turn.reward,
            )
        )
    return rows


def _runs(
    record: RecordedTrajectory, place: int, colours: TokenColours
) -> tuple[list[ColouredRun] | None, int]:
    """The tokens of a turn and what is left of its action after LONGEST characters."""
    turn = record.turns[place]
    if turn.runs is None:
        return None, 0
    runs, at = [], 0
    for op, lengths in turn.runs:
        numbers, tokens = token_numbers(record, op, place), []
        for length in lengths:
            if at < LONGEST:
                tokens.append(turn.action[at : at + length])
            at += length
        title = _sum(record.credit.advantage, numbers)
        runs.append(ColouredRun(colours.classes(numbers), title, tokens))
        if at > LONGEST:
            return runs, len(turn.action) - LONGEST
    return runs, 0


def _same_others(record: RecordedTrajectory) -> TokenNumbers | None:
    """The numbers of tokens that spell no op, if all turns have the same."""
    if record.credit is None or len(set(record.credit.by_turn)) != 1:
        return None
    return token_numbers(record, -1, 0)


def _sum(group: float, numbers: TokenNumbers) -> str:
    """How an advantage comes about."""
    weight, bonus, advantage = numbers
    if not advantage and (weight * group or bonus):
        return f"weight {weight:.2g}, bonus {signed(bonus)}, not trained on"
    return f"{signed(advantage)} = {weight:.2g} × {signed(group)} + {signed(bonus)}"


def trajectory_html(
    trajectory: Trajectory,
    *,
    caption: str = "",
    said: Sequence[Sequence[tuple[str, float]]] | None = None,
) -> str:
    """Shows a trajectory in a notebook: turn, what it saw and said, ops and rewards.

    Observations that deserve memory have a star if the environment knows the truth.

    Args:
      trajectory: as sampling or evaluation made it.
      caption: a line above the table.
      said: by turn, pieces of what the policy said and a number for each, such as the
        advantage of its tokens; they are coloured by it.

    Returns:
      A table with its styles at each element, since what shows notebooks drops style
      sheets.
    """
    said = said or ()
    strongest = max((abs(v) for turn in said for _, v in turn), default=0.0)
    return str(
        render(
            "notebook_trajectory.html.j2",
            trajectory=trajectory,
            heads=HEADS,
            caption=caption,
            answers=", ".join(trajectory.answers),
            useful=[
                _is_useful(trajectory, n) for n in range(len(trajectory.observations))
            ],
            said=said,
            background=functools.partial(_background, strongest=strongest),
            figure=functools.partial(figure, digits=2, unknown=UNKNOWN),
        )
    )


def _is_useful(trajectory: Trajectory, turn: int) -> bool:
    """Whether a turn is the first to show an observation that deserves memory."""
    observed = trajectory.turn_observation
    if turn >= len(observed) or observed[turn] not in trajectory.useful:
        return False
    return turn == 0 or observed[turn] != observed[turn - 1]


def _background(value: float, strongest: float) -> str:
    """Green above 0, red below, the paler the nearer to it."""
    red, green, blue = (46, 125, 50) if value > 0 else (198, 40, 40)
    opacity = 0.75 * min(abs(value) / strongest, 1.0) if strongest else 0.0
    return f"rgba({red},{green},{blue},{opacity:.2f})"
