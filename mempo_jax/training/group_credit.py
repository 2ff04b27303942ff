"""One group under the magnifying glass: what its outcomes say about each token.

Training does the same for many groups at once, within compiled programs; this is for
looking at it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mempo_jax.envs import Task, TaskSuite
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.assemble import Shapes, assemble_trajectories, pack
from mempo_jax.rollout.collect import Job
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.settings import ConfigError
from mempo_jax.training import parts
from mempo_jax.training.loss import count_tokens, counted, loss_inputs, token_advantage
from mempo_jax.training.run_settings import RunSettings
from mempo_jax.types import Rows

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
    segments = [(n, s) for n, each in enumerate(group) for s in each.segments]
    shapes = _one_batch(settings, segments)
    arrays = assemble_trajectories(group, 1, shapes)
    rows = pack(segments, shapes, tokenizer.pad_id)[0] if segments else None
    batches = [rows] if rows is not None else []
    inputs = loss_inputs(
        arrays,
        count_tokens(batches, arrays.valid),
        parts.advantage(settings),
        settings.credit,
    )
    said: list[list[Said]] = [[[] for _ in each.actions] for each in group]
    if rows is not None:
        advantage = np.asarray(token_advantage(rows, inputs, settings.credit)[0])
        advantage = np.where(counted(rows, inputs.valid), advantage, 0)
        _lay(said, rows, advantage, tokenizer)
    return GroupCredit(np.asarray(inputs.advantage), said)


def _one_batch(settings: RunSettings, segments: Sequence[tuple[int, Any]]) -> Shapes:
    """Shapes under which all segments are rows of one batch, in their order."""
    length = max((len(s.tokens) for _, s in segments), default=1)
    turns = settings.sampling.max_turns
    return Shapes(
        length_buckets=(length,),
        micro_batch_tokens=length * len(segments),
        row_multiple=1,
        max_turns=turns,
        max_ops=turns * (settings.memory.max_ops_per_turn + 1),
    )


def _lay(
    said: list[list[Said]], rows: Rows, advantage: np.ndarray, tokenizer: Tokenizer
) -> None:
    """Puts the sampled tokens of each row where their turn is."""
    for b, trajectory in enumerate(rows.trajectory_index):
        for turn in np.unique(rows.turn_id[b][rows.action_mask[b]]):
            at = np.flatnonzero(rows.action_mask[b] & (rows.turn_id[b] == turn))
            ids = rows.tokens[b, at].tolist()
            text = tokenizer.decode(ids)
            # Tokens that share a character overlap: the first of them shows it.
            ends = [0, *(end for _, end in tokenizer.offsets(ids))]
            pieces = [text[begin:end] for begin, end in itertools.pairwise(ends)]
            values = map(float, advantage[b, at])
            said[trajectory][turn] += list(zip(pieces, values, strict=True))
