import dataclasses

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from mempo_jax.envs import EpisodeStatus, Reward, Task
from mempo_jax.memory import OpRecord
from mempo_jax.rollout.assemble import (
    BatchShapes,
    assemble_trajectories,
    bucket_of,
    pack,
)
from mempo_jax.rollout.collect import Job, failed_trajectory
from mempo_jax.rollout.segments import Segment
from mempo_jax.types import Kind, Outcome

SHAPES = BatchShapes((4, 8, 16), 32, 1, max_turns=6, max_ops=5)


def write(turn, entry, outcome="new", parents=(), **more):
    return OpRecord(turn, "write", outcome, (entry, *parents), **more)


def recall(turn, *entries):
    return OpRecord(turn, "recall", "recalled", entries)


def note(turn, kind, outcome="noted"):
    return OpRecord(turn, kind, outcome)


def trajectory(log=(), turns=4, total=0.5, score=1.0, segments=None, **changes):
    made = failed_trajectory(Job(Task("s", "train", 0, 0), 0, 0, "train", 0), "x")
    values = {
        "status": EpisodeStatus.DONE,
        "failure": None,
        "log": list(log),
        "actions": ["a"] * turns,
        "turn_reward": [0.0] * (turns - 1) + [score],
        "segments": [segment(3)] if segments is None else segments,
        "reward": Reward({"task": score}, {"task": score}, total),
    }
    return dataclasses.replace(made, **{**values, **changes})


def segment(length, first=0, action=True):
    made = Segment()
    made.add_observation(range(first, first + length - 1), 0)
    if action:
        made.add_action([first + length - 1], [-0.5], 1)
    else:
        made.add_observation([first + length - 1], 1)
    return made


def table(log, turns=4):
    ops = assemble_trajectories([trajectory(log, turns)], 1, SHAPES).ops
    return [
        tuple(
            int(getattr(ops, f)[0, k])
            for f in ("kind", "turn", "first_use", "last_use", "outcome")
        )
        for k in range(len(log))
    ]


def test_rows_of_every_kind_and_outcome():
    log = [
        write(0, 0),
        write(1, 0, "duplicate"),
        note(1, "malformed", "error"),
        note(2, "skip"),
        note(3, "answer"),
    ]
    assert table(log) == [
        (Kind.WRITE, 0, -1, -1, Outcome.NEW),
        (Kind.WRITE, 1, -1, -1, Outcome.DUPLICATE),
        (Kind.MALFORMED, 1, -1, -1, Outcome.ERROR),
        (Kind.SKIP, 2, -1, -1, Outcome.DONE),
        (Kind.ANSWER, 3, -1, -1, Outcome.DONE),
    ]
    assert table([note(0, "rewrite")]) == [(Kind.REWRITE, 0, -1, -1, Outcome.DONE)]
    others = [
        recall(0),
        note(1, "delete", "deleted"),
        note(2, "merge", "error"),
        note(2, "write", "disabled"),
        note(3, "act"),
    ]
    assert [(row[0], row[4]) for row in table(others)] == [
        (Kind.RECALL, Outcome.DONE),
        (Kind.DELETE, Outcome.DONE),
        (Kind.MERGE, Outcome.ERROR),
        (Kind.WRITE, Outcome.DISABLED),
        (Kind.ACT, Outcome.DONE),
    ]


def test_unused_rows_are_minus_one():
    ops = assemble_trajectories([trajectory([write(0, 0)])], 1, SHAPES).ops
    for field in ops:
        assert field.dtype == np.int32
        assert field.shape == (1, SHAPES.max_ops)
        assert (field[0, 1:] == -1).all()


def test_first_and_last_use_come_from_recalls():
    log = [write(0, 0), write(0, 1), recall(1, 0), recall(3, 0), note(5, "answer")]
    rows = table(log, turns=6)
    assert rows[0][2:4] == (2, 4)
    assert rows[1][2:4] == (-1, -1)


def test_recalled_text_stays_until_a_turn_that_does_not_recall():
    log = [write(0, 0), recall(1, 0), recall(2), note(3, "act"), note(4, "act")]
    assert table(log, turns=5)[0][2:4] == (2, 3)


def test_results_that_no_action_followed_are_no_use():
    assert table([write(0, 0), recall(1, 0)], turns=2)[0][2:4] == (-1, -1)


def test_a_use_of_a_merged_entry_is_a_use_of_what_went_into_it():
    log = [
        write(0, 0),
        write(1, 1),
        OpRecord(2, "merge", "merged", (2, 0, 1)),
        write(3, 3, "merged", parents=(2,)),
        recall(4, 3),
    ]
    rows = table(log, turns=6)
    assert [row[2:4] for row in rows[:4]] == [(5, 5)] * 4
    assert rows[2][0] == Kind.MERGE
    assert rows[3][4] == Outcome.MERGED


def test_what_was_superseded_earns_nothing_by_the_new_version():
    update = dataclasses.replace(write(1, 1, "merged", parents=(0,)), supersedes=True)
    rows = table([write(0, 0), update, recall(2, 1)], turns=4)
    assert [row[2:4] for row in rows[:2]] == [(-1, -1), (3, 3)]


def test_statements_that_an_update_kept_go_on_earning():
    log = [
        write(0, 0, text="ann desk is 17", stored="ann desk is 17"),
        write(1, 1, "merged", (0,), text="ben bus is 20"),
        write(2, 2, "merged", (1,), text="ann desk is 18", supersedes=True),
        recall(3, 2),
    ]
    log[1] = dataclasses.replace(log[1], stored="ann desk is 17\nben bus is 20")
    log[2] = dataclasses.replace(log[2], stored="ben bus is 20\nann desk is 18")
    rows = table(log, turns=5)
    assert [row[2:4] for row in rows[:3]] == [(-1, -1), (4, 4), (4, 4)]


def test_a_recall_before_the_merge_is_a_use_of_the_parent_alone():
    log = [
        write(0, 0),
        write(0, 1),
        recall(1, 0),
        OpRecord(3, "merge", "merged", (2, 0, 1)),
    ]
    rows = table(log, turns=5)
    assert [row[2:4] for row in rows] == [(2, 2), (-1, -1), (-1, -1), (-1, -1)]


def test_only_the_write_that_stored_an_entry_owns_its_uses():
    log = [write(0, 0), write(1, 0, "duplicate"), recall(2, 0), note(3, "act")]
    assert [row[2:4] for row in table(log)[:2]] == [(3, 3), (-1, -1)]


def test_more_ops_than_rows_lose_their_row_and_nothing_else():
    log = [note(0, "malformed", "error")] * 20
    arrays = assemble_trajectories([trajectory(log)], 1, SHAPES)
    assert (arrays.ops.kind == Kind.MALFORMED).all()
    item = segment(4)
    item.op_id[2:] = [4, 5]
    [rows] = pack([(0, item)], SHAPES, 0)
    assert rows.op_id[0].tolist() == [-1, -1, 4, -1]


def test_facts_of_trajectories_in_groups():
    made = [
        trajectory(total=0.1, score=0.0),
        trajectory(total=0.9, score=1.0, turns=2),
        failed_trajectory(Job(Task("s", "train", 0, 0), 0, 0, "train", 0), "x"),
        trajectory(total=0.3, score=0.5, segments=[segment(3, action=False)]),
    ]
    facts = assemble_trajectories(made, 2, SHAPES)
    np.testing.assert_allclose(facts.reward, [[0.1, 0.9], [0.0, 0.3]], rtol=1e-6)
    assert facts.task_score.tolist() == [[0.0, 1.0], [0.0, 0.5]]
    assert facts.valid.tolist() == [[True, True], [False, False]]
    assert facts.turn_count.tolist() == [4, 2, 0, 4]
    assert facts.turn_reward[1].tolist() == [0, 1, 0, 0, 0, 0]
    assert facts.turn_reward.shape == (4, SHAPES.max_turns)


def test_a_row_holds_its_segment_and_nothing_else():
    item = segment(3, first=7)
    item.op_id[2] = 1
    [rows] = pack([(5, item)], SHAPES, pad_id=9)
    assert rows.tokens.shape == (8, 4)
    assert rows.tokens[0].tolist() == [7, 8, 9, 9]
    assert rows.token_mask[0].tolist() == [True, True, True, False]
    assert rows.action_mask[0].tolist() == [False, False, True, False]
    assert rows.behaviour_log_probs[0].tolist() == [0, 0, -0.5, 0]
    assert rows.turn_id[0].tolist() == [0, 0, 1, 0]
    assert rows.op_id[0].tolist() == [-1, -1, 1, -1]
    assert rows.trajectory_index[0] == 5
    assert rows.valid.tolist() == [True] + [False] * 7
    assert not rows.token_mask[1:].any()
    assert not rows.action_mask[1:].any()


def test_a_real_token_that_equals_the_pad_id_is_no_padding():
    [rows] = pack([(0, segment(3, first=7))], SHAPES, pad_id=8)
    assert rows.token_mask.sum() == 3


@hypothesis.given(st.lists(st.integers(2, 16), max_size=60), st.sampled_from([1, 2, 4]))
@hypothesis.settings(max_examples=60, deadline=None)
def test_every_segment_is_packed_exactly_once_in_fixed_shapes(lengths, multiple):
    shapes = BatchShapes((4, 8, 16), 32, multiple, max_turns=6, max_ops=5)
    items = [(n, segment(length, first=n)) for n, length in enumerate(lengths)]
    batches = pack(items, shapes, 0)
    found = []
    for rows in batches:
        count, length = rows.tokens.shape
        assert count == shapes.rows_of(length)
        assert count % multiple == 0
        assert rows.valid.any()
        for b in np.flatnonzero(rows.valid):
            n = rows.trajectory_index[b]
            size = rows.token_mask[b].sum()
            assert rows.tokens[b, :size].tolist() == list(range(n, n + size))
            found.append((n, size))
    assert sorted(found) == list(enumerate(lengths))


def test_rows_move_up_only_where_they_take_free_places():
    def shapes_of(lengths):
        items = [(n, segment(length)) for n, length in enumerate(lengths)]
        return [rows.tokens.shape for rows in pack(items, SHAPES, 0)]

    assert shapes_of([4] * 8) == [(8, 4)]
    assert shapes_of([4] * 9 + [8]) == [(8, 4), (4, 8)]
    assert shapes_of([4] * 9 + [8] * 4) == [(8, 4), (8, 4), (4, 8)]
    assert shapes_of([4]) == [(8, 4)]


def test_bucket_edges_and_what_is_too_long():
    assert [bucket_of(n, (4, 8)) for n in (1, 4, 5, 8)] == [4, 4, 8, 8]
    with pytest.raises(ValueError, match=r"17 tokens.*at most 16.*length_buckets"):
        pack([(0, segment(17))], SHAPES, 0)


def test_rows_of_a_micro_batch():
    shapes = BatchShapes((4, 64), 64, 4, max_turns=1, max_ops=1)
    assert shapes.rows_of(4) == 16
    assert shapes.rows_of(64) == 4
