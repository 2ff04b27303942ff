"""One group under the magnifying glass: what its outcomes say about each token.

Training does the same for many groups at once, within compiled programs; this is for
looking at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mempo_jax.envs import Task, TaskSuite
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.assemble import Shapes, assemble_trajectories
from mempo_jax.rollout.collect import Job
from mempo_jax.rollout.credited import TokenCredit
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.settings import ConfigError
from mempo_jax.training import parts
from mempo_jax.training.run_settings import RunSettings
from mempo_jax.training.token_credit import Crediting

Said = list[tuple[str, float]]  # pieces of a text, and the advantage of each


class GroupCredit(NamedTuple):
    """advantage f32 [S], of each trajectory within the group · said, by trajectory and
    turn: the tokens that the policy sampled, as text, with the advantage of each (0
    where it does not enter the loss)."""

    advantage: np.ndarray
    said: list[list[Said]]


def sample_group(
    policy: parts.Policy,
    suite: TaskSuite,
    settings: RunSettings,
    mesh: Any,
    task: Task,
) -> list[Trajectory]:
    """``sampling.group_size`` trajectories of one task, drawn as in training."""
    engine, collector = parts.make_collector(policy, suite, settings, mesh)
    engine.set_params(policy.params)
    samples = range(settings.sampling.group_size)
    jobs = [Job(task, sample, settings.seed, "trace", 0) for sample in samples]
    return collector.run(jobs, parts.decoding(settings))


def group_credit(
    group: Sequence[Trajectory], tokenizer: Tokenizer, settings: RunSettings
) -> GroupCredit:
    """The group's advantage, and how ``credit.modes`` lay it on the tokens.

    Raises:
      ConfigError: a mode wants probes of the policy, which are not made here.
    """
    if settings.credit.needs:
        raise ConfigError(
            "config.credit.modes: expected modes that need no probe of the policy, got "
            f"{', '.join(settings.credit.modes)}; see the table of modes in the README"
        )
    crediting = Crediting(tokenizer, parts.advantage(settings), settings.credit)
    made = crediting(group, assemble_trajectories(group, 1, _shapes(settings)))
    advantage = np.array([credit.advantage for credit in made], np.float32)
    said = [_said(*pair) for pair in zip(group, made, strict=True)]
    return GroupCredit(advantage, said)


def _shapes(settings: RunSettings) -> Shapes:
    """Shapes of tables; no rows are made here."""
    turns = settings.sampling.max_turns
    return Shapes(
        length_buckets=(1,),
        micro_batch_tokens=1,
        row_multiple=1,
        max_turns=turns,
        max_ops=turns * (settings.memory.max_ops_per_turn + 1),
    )


def _said(trajectory: Trajectory, credit: TokenCredit) -> list[Said]:
    """By turn, each token as text with its advantage; nothing where it is unknown."""
    said: list[Said] = []
    for turn, (action, runs) in enumerate(zip(trajectory.actions, credit.runs)):
        pieces: Said = []
        at = 0
        for op, lengths in runs or ():
            row = credit.by_turn[turn] if op < 0 else credit.by_op[op]
            for length in lengths:
                pieces.append((action[at : at + length], float(row[-1])))
                at += length
        said.append(pieces)
    return said
