"""Data that crosses package walls: arrays, shapes, dtypes, and one alignment rule.

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
    """What a row of an ``OpTable`` is.

    ``SKIP`` is a turn that ended without any op; ``REWRITE`` is a new ``<mem>`` block,
    under the context rule "rolling".
    """

    NONE = -1  # padding
    WRITE = 0
    RECALL = 1
    MERGE = 2
    DELETE = 3
    ACT = 4
    ANSWER = 5
    MALFORMED = 6
    SKIP = 7
    REWRITE = 8


class Outcome(enum.IntEnum):
    """What an op led to."""

    NONE = -1  # padding
    NEW = 0  # a write made an entry
    MERGED = 1  # a write or a merge went into an entry made of several
    DUPLICATE = 2  # a write repeated an entry, and nothing was stored
    DONE = 3  # any other op that worked
    ERROR = 4
    DISABLED = 5  # the config turns this op off


# Decisions about memory: a skipped write is one, and so is a tag that was got wrong.
MEMORY_KINDS = (
    *(Kind.WRITE, Kind.RECALL, Kind.MERGE, Kind.DELETE),
    *(Kind.SKIP, Kind.MALFORMED, Kind.REWRITE),
)


class OpTable(NamedTuple):
    """Ops of ``N`` trajectories, right-padded with ``kind = -1``; all int32 [N, K].

    Attributes:
      kind: a ``Kind``.
      turn: the turn that spelled the op.
      first_use, last_use: first and last turn whose action had the written entry, or
        one it was merged into, in context through a recall (-1: never).
      outcome: an ``Outcome``.
    """

    kind: Array
    turn: Array
    first_use: Array
    last_use: Array
    outcome: Array


class Rows(NamedTuple):
    """Segments as training rows, right-padded.

    Attributes:
      tokens: int32 [B, T].
      token_mask: bool [B, T], real tokens.
      action_mask: bool [B, T], tokens sampled by the policy (closing tags and a sampled
        stop token included).
      behaviour_log_probs: f32 [B, T], the sampler's, 0 where not an action.
      turn_id: int32 [B, T].
      op_id: int32 [B, T], row of the trajectory's OpTable, -1 for none.
      trajectory_index: int32 [B].
      valid: bool [B], False for filler rows.
    """

    tokens: Array
    token_mask: Array
    action_mask: Array
    behaviour_log_probs: Array
    turn_id: Array
    op_id: Array
    trajectory_index: Array
    valid: Array


# What can be probed: the fields of ``Evidence``; "evictions" goes into ``leave_out``.
NEEDS = ("answer_gain", "leave_out", "evictions", "turn_potential")


class Evidence(NamedTuple):
    """What probes of the policy say about memory; 0 where nothing was probed.

    A probe is the mean log-probability of the tokens of a question's gold answer in
    some context, by the policy and at the temperature that sampled.

    Attributes:
      answer_gain: f32 [N, K], of a write: probability of the answer with its text as
        the only memory, less that without any, summed over the questions after it; of a
        rewritten block: less that with the block before it.
      leave_out: f32 [N, K], of a write, merge or recall: drop of the log-probability
        (nats) without the entries that came from it; for a write, less what the entries
        that it crowded out would have added.
      turn_potential: f32 [N, M], sum of the changes of the log-probability (nats) up to
        each turn, from a question to its answer.
    """

    answer_gain: Array
    leave_out: Array
    turn_potential: Array


class Trajectories(NamedTuple):
    """Per-trajectory facts of one step.

    Attributes:
      ops: OpTable [N, K].
      turn_reward: f32 [N, M], task reward earned by each turn.
      turn_count: int32 [N].
      reward: f32 [G, S], total.
      task_score: f32 [G, S], in [0, 1].
      valid: bool [G, S], False for fillers and failed trajectories.
      evidence: results of probes.
    """

    ops: OpTable
    turn_reward: Array
    turn_count: Array
    reward: Array
    task_score: Array
    valid: Array
    evidence: Evidence


class TrainState(NamedTuple):
    """What an optimiser step changes.

    Attributes:
      params: the trained parameters.
      opt_state: of the optimiser.
      step: int32 scalar, optimiser steps taken.
    """

    params: Any
    opt_state: Any
    step: Array
