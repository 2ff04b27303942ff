"""Trajectories as text: what each turn saw, said and did to memory."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from mempo_jax.memory import OpRecord
from mempo_jax.rollout.trajectory import Trajectory

WIDTH = 100
LABEL = 9  # columns in front of a text
INDENT = " " * LABEL


def transcript(
    trajectories: Sequence[Trajectory], *, temperature: float
) -> Iterator[str]:
    """Lines of at most 100 columns for several runs of one task."""
    task, goal = trajectories[0].task, trajectories[0].goal
    yield (
        f"task {task.id}, goal: {goal or 'none'}; {len(trajectories)} trajectories,"
        f" temperature {temperature:g}"
    )
    for number, trajectory in enumerate(trajectories, start=1):
        yield ""
        yield f"=== trajectory {number} of {len(trajectories)}: {trajectory.status} ==="
        yield from _turns(trajectory)
        yield from _outcome(trajectory)


def _turns(trajectory: Trajectory) -> Iterator[str]:
    by_turn: dict[int, list[OpRecord]] = {}
    for record in trajectory.log:
        by_turn.setdefault(record.turn, []).append(record)
    for turn, seen in enumerate(trajectory.observations):
        yield ""
        yield from _text("sees", seen)
        if turn >= len(trajectory.actions):
            continue
        yield from _text("says", trajectory.actions[turn])
        rewards = trajectory.turn_reward
        reward = rewards[turn] if turn < len(rewards) else 0.0
        for record in by_turn.get(turn, ()):
            yield from op_lines(record, reward)


def op_lines(record: OpRecord, reward: float | None = None) -> Iterator[str]:
    """An op and what came of it; reward: of its turn, None where it has none yet."""
    ids = ", ".join(str(i) for i in record.entry_ids) or "none"
    head = f"  op     turn {record.turn}, {record.kind}, {record.outcome}"
    text = f"entries {ids}"
    text += f", reward {reward:.2f}" if reward is not None else ""
    text += f", error {record.error}" if record.error else ""
    text += f", evicts {', '.join(map(str, record.evicted))}" if record.evicted else ""
    text += f': "{record.text}"' if record.text else ""
    yield from _wrapped(f"{head}, ", text)


def _outcome(trajectory: Trajectory) -> Iterator[str]:
    yield ""
    if trajectory.failure is not None:
        yield from _wrapped("  failed ", trajectory.failure)
    answers = ", ".join(repr(answer) for answer in trajectory.answers) or "no answer"
    yield from _wrapped("  end    ", f"answers: {answers}; {_reward(trajectory)}")


def _reward(trajectory: Trajectory) -> str:
    if trajectory.reward is None:
        return "no reward"
    parts = trajectory.reward.weighted.items()
    named = ", ".join(f"{name} {value + 0.0:.2f}" for name, value in parts)
    return f"reward {trajectory.reward.total:.2f} ({named})"


def _text(label: str, text: str) -> Iterator[str]:
    head = f"  {label:{LABEL - 2}}"
    for line in text.splitlines() or [""]:
        yield from _wrapped(head, line)
        head = INDENT


def _wrapped(head: str, text: str) -> list[str]:
    """``text`` behind ``head``, cut at spaces where it can be; at least one line."""
    lines = textwrap.wrap(
        " ".join(text.split()), WIDTH, initial_indent=head, subsequent_indent=INDENT
    )
    return lines or [head.rstrip()]
