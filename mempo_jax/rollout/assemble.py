"""From trajectories to arrays: op tables, and segments padded in length buckets.

Everything has one of a few fixed shapes, so nothing compiles after warm-up. Rows of one
micro-batch share a length from ``length_buckets``; places that the longer rows leave
free in their last micro-batch are filled with shorter ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mempo_jax.memory.lineage import Lineage
from mempo_jax.rollout.segments import Segment
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.types import Evidence, Kind, OpTable, Outcome, Rows, Trajectories

# Outcomes by their names in the log; any other one, such as "recalled", is DONE.
OUTCOMES = {
    "new": Outcome.NEW,
    "merged": Outcome.MERGED,
    "duplicate": Outcome.DUPLICATE,
    "error": Outcome.ERROR,
    "disabled": Outcome.DISABLED,
}


@dataclasses.dataclass(frozen=True)
class BatchShapes:
    """Fixed shapes of a run's arrays.

    Nothing bounds how many malformed ops a turn holds: ops beyond ``max_ops`` have no
    row in the tables, and their tokens belong to no op.

    Attributes:
      length_buckets: ascending row lengths.
      micro_batch_tokens: padded tokens of a micro-batch.
      row_multiple: devices that rows are split over.
      max_turns: width M of the per-turn tables.
      max_ops: width K of the per-op tables.
    """

    length_buckets: tuple[int, ...]
    micro_batch_tokens: int
    row_multiple: int
    max_turns: int
    max_ops: int

    def rows_of(self, length: int) -> int:
        """Returns the rows of a micro-batch of padded length ``length``."""
        per_device = self.micro_batch_tokens // (length * self.row_multiple)
        # A multiple of the devices, and at least one row each, even if that is more
        # tokens.
        return max(1, per_device) * self.row_multiple


def assemble_trajectories(
    trajectories: Sequence[Trajectory], groups: int, shapes: BatchShapes
) -> Trajectories:
    """Returns the per-trajectory arrays of a batch; their evidence is that of no probe.

    Args:
      trajectories: contiguous groups, in order.
      groups: number of groups, all of the same size.
      shapes: the fixed shapes.
    """
    count = len(trajectories)
    ops = OpTable(
        *(np.full((count, shapes.max_ops), -1, np.int32) for _ in OpTable._fields)
    )
    turn_reward = np.zeros((count, shapes.max_turns), np.float32)
    for n, trajectory in enumerate(trajectories):
        _fill_ops(ops, n, trajectory)
        turn_reward[n, : len(trajectory.turn_reward)] = trajectory.turn_reward
    # Trajectories without a reward count as 0 but are not valid, so nothing reads it.
    totals = [t.reward.total if t.reward else 0.0 for t in trajectories]
    return Trajectories(
        ops=ops,
        turn_reward=turn_reward,
        turn_count=np.array([len(t.actions) for t in trajectories], np.int32),
        reward=np.array(totals, np.float32).reshape(groups, -1),
        task_score=np.array([t.score for t in trajectories], np.float32).reshape(
            groups, -1
        ),
        valid=np.array([t.valid for t in trajectories], bool).reshape(groups, -1),
        evidence=no_evidence(count, shapes),
    )


def no_evidence(count: int, shapes: BatchShapes) -> Evidence:
    """Returns evidence of ``count`` trajectories of which nothing was probed, in
    ``shapes``."""
    by_op, by_turn = (count, shapes.max_ops), (count, shapes.max_turns)
    # Zeros, not None: the step takes the same arrays whether or not probes run.
    sizes = Evidence(answer_gain=by_op, leave_out=by_op, turn_potential=by_turn)
    return Evidence(*(np.zeros(size, np.float32) for size in sizes))


def _fill_ops(ops: OpTable, n: int, trajectory: Trajectory) -> None:
    uses = Lineage(trajectory.log).uses(len(trajectory.actions))
    for k, record in enumerate(trajectory.log[: ops.kind.shape[1]]):
        kind = Kind[str(record.kind).upper()]
        ops.kind[n, k] = kind
        ops.turn[n, k] = record.turn
        ops.outcome[n, k] = OUTCOMES.get(record.outcome, Outcome.DONE)
        if turns := uses.get(k):
            ops.first_use[n, k], ops.last_use[n, k] = min(turns), max(turns)


def pack(
    segments: Sequence[tuple[int, Segment]], shapes: BatchShapes, pad_id: int
) -> tuple[Rows, ...]:
    """Packs segments into micro-batches of padded rows.

    Args:
      segments: (trajectory index, segment) pairs, in a deterministic order.
      shapes: the fixed shapes.
      pad_id: fills the padding; masks, never ids, say what padding is.

    Raises:
      ValueError: a segment is longer than the longest bucket.
    """
    queues: dict[int, list[tuple[int, Segment]]] = {
        n: [] for n in shapes.length_buckets
    }
    for item in segments:
        queues[bucket_of(len(item[1].tokens), shapes.length_buckets)].append(item)
    batches = []
    # Longest first: free places of a longer bucket can take shorter rows, not vice
    # versa.
    for bucket_number in reversed(range(len(shapes.length_buckets))):
        length = shapes.length_buckets[bucket_number]
        rows = shapes.rows_of(length)
        queue = queues[length]
        for shorter in reversed(shapes.length_buckets[:bucket_number]):
            empty_places = -len(queue) % rows
            if empty_places:  # places that would stay empty take shorter rows
                queue += queues[shorter][-empty_places:]
                del queues[shorter][-empty_places:]
        batches += [
            _pad(queue[i : i + rows], length, rows, pad_id, shapes.max_ops)
            for i in range(0, len(queue), rows)
        ]
    return tuple(reversed(batches))


def bucket_of(length: int, buckets: Sequence[int]) -> int:
    """Returns the shortest bucket that holds a row.

    Args:
      length: tokens of the row.
      buckets: ascending lengths.

    Raises:
      ValueError: none holds it.
    """
    for bucket in buckets:
        if length <= bucket:
            return bucket
    raise ValueError(
        f"a segment of {length} tokens: expected at most {buckets[-1]}; raise the last "
        "of config.train.length_buckets, or lower config.context.max_context_tokens or "
        "config.sampling.max_new_tokens"
    )


def _pad(
    members: Sequence[tuple[int, Segment]],
    length: int,
    rows: int,
    pad_id: int,
    max_ops: int,
) -> Rows:
    shape = (rows, length)
    arrays = Rows(
        tokens=np.full(shape, pad_id, np.int32),
        token_mask=np.zeros(shape, bool),
        action_mask=np.zeros(shape, bool),
        behaviour_log_probs=np.zeros(shape, np.float32),
        turn_id=np.zeros(shape, np.int32),
        op_id=np.full(shape, -1, np.int32),
        # Rows of padding point to trajectory 0, but are not valid.
        trajectory_index=np.zeros(rows, np.int32),
        valid=np.zeros(rows, bool),
    )
    for b, (trajectory, segment) in enumerate(members):
        n = len(segment.tokens)
        arrays.tokens[b, :n] = segment.tokens
        arrays.token_mask[b, :n] = True
        arrays.action_mask[b, :n] = segment.is_action
        arrays.behaviour_log_probs[b, :n] = segment.log_probs
        arrays.turn_id[b, :n] = segment.turn_id
        op_id = np.asarray(segment.op_id, np.int32)
        # Ops beyond the table have no credit of their own: their tokens count as no
        # op's.
        arrays.op_id[b, :n] = np.where(op_id < max_ops, op_id, -1)
        arrays.trajectory_index[b] = trajectory
        arrays.valid[b] = True
    return arrays
