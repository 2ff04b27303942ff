"""Data that crosses package walls: arrays, shapes, dtypes, one alignment rule.

Alignment rule, for every ``[B, T]`` array here and in ``core``: *index t describes
token t*. ``log_probs[b, t] = log pi(tokens[b, t] | tokens[b, :t])`` and
``log_probs[:, 0] = 0``. There are no arrays of length T - 1.

Letters: ``B`` rows (segments), ``T`` tokens, ``G`` groups, ``S`` samples of a group,
``N = G * S`` trajectories (groups contiguous), ``K`` ops, ``M`` turns.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

Array = Any  # numpy or jax; this module imports neither


class Kind(enum.IntEnum):
    """What a row of an ``OpTable`` is; ``SKIP`` is a turn ended without any op."""

    NONE = -1
    WRITE = 0
    RECALL = 1
    MERGE = 2
    DELETE = 3
    ACT = 4
    ANSWER = 5
    MALFORMED = 6
    SKIP = 7


class Outcome(enum.IntEnum):
    """What came of an op."""

    NONE = -1
    NEW = 0
    MERGED = 1
    DUPLICATE = 2
    DONE = 3
    ERROR = 4
    DISABLED = 5


# Decisions about memory: a skipped write is one, and so is a tag that was got wrong.
MEMORY_KINDS = (
    *(Kind.WRITE, Kind.RECALL, Kind.MERGE, Kind.DELETE),
    *(Kind.SKIP, Kind.MALFORMED),
)


class OpTable(NamedTuple):
    """Ops of ``N`` trajectories, right-padded with ``kind = -1``; all int32 [N, K].

    ``turn`` is the turn that spelled the op; ``first_use`` and ``last_use`` are the
    first and last turn whose action had the written entry, or one it was merged into,
    in context through a recall (-1: never).
    """

    kind: Array
    turn: Array
    first_use: Array
    last_use: Array
    outcome: Array


class Rows(NamedTuple):
    """Segments as training rows, right-padded.

    tokens int32 [B, T] · token_mask bool [B, T] real tokens · action_mask bool [B, T]
    sampled by the policy (closing tags and a sampled stop token included) ·
    behaviour_log_probs f32 [B, T], 0 where not an action · turn_id int32 [B, T] ·
    op_id int32 [B, T], row of the trajectory's OpTable, -1 none ·
    trajectory_index int32 [B] · valid bool [B], False for filler rows.
    """

    tokens: Array
    token_mask: Array
    action_mask: Array
    behaviour_log_probs: Array
    turn_id: Array
    op_id: Array
    trajectory_index: Array
    valid: Array


class Trajectories(NamedTuple):
    """Per-trajectory facts of one step.

    ops OpTable [N, K] · turn_reward f32 [N, M] task reward earned by each turn ·
    turn_count int32 [N] · reward f32 [G, S] total · task_score f32 [G, S] in [0, 1] ·
    valid bool [G, S], False for fillers and failed trajectories.
    """

    ops: OpTable
    turn_reward: Array
    turn_count: Array
    reward: Array
    task_score: Array
    valid: Array


class TrainState(NamedTuple):
    """What an optimiser step changes: parameters, optimiser state, step counter."""

    params: Any
    opt_state: Any
    step: Array
