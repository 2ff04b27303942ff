"""Several trajectories of one task as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mempo_jax.rollout.trajectory import Trajectory


def transcript(
    trajectories: Sequence[Trajectory], *, temperature: float
) -> Iterator[str]:
    """Lines of at most 100 columns for several runs of one task.

    Args:
      trajectories: of one task, at least one.
      temperature: at which they were sampled, for the first line.
    """
    task, goal = trajectories[0].task, trajectories[0].goal
    yield (
        f"task {task.id}, goal: {goal or 'none'}; {len(trajectories)} trajectories,"
        f" temperature {temperature:g}"
    )
    for number, trajectory in enumerate(trajectories, start=1):
        yield ""
        yield f"=== trajectory {number} of {len(trajectories)}: {trajectory.status} ==="
        yield from trajectory.lines()
