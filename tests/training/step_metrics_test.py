"""Figures of a step, against small cases counted by hand."""

import numpy as np
import pytest

from mempo_jax.training import step_metrics
from mempo_jax.types import Kind, Rows
from tests.training import step_case


def rows_of(action):
    action = np.array(action, bool)
    rows = step_case.take(step_case.make_rows(), slice(0, len(action)))
    length = action.shape[1]
    rows = Rows(*(leaf[:, :length] if leaf.ndim == 2 else leaf for leaf in rows))
    everywhere = np.ones_like(action)
    valid = np.ones(len(action), bool)
    return rows._replace(token_mask=everywhere, action_mask=action, valid=valid)


def test_entropy_is_the_mean_over_action_tokens():
    rows = rows_of([[1, 1, 0, 1]])  # the first token of a row is predicted by nothing
    entropy = np.array([[9.0, 1.0, np.nan, 2.0]], np.float32)
    assert step_metrics.mean_entropy([(rows, entropy)]) == 1.5
    assert step_metrics.mean_entropy([(rows, entropy)] * 3) == 1.5
    assert step_metrics.mean_entropy([]) is None
    assert step_metrics.mean_entropy([(rows_of([[1, 0, 0, 0]]), entropy)]) is None


def test_kl_on_memory_ops_and_outside_of_them():
    rows = rows_of([[1, 1, 1, 1, 0, 1]])
    rows = rows._replace(
        op_id=np.array([[0, 0, 1, -1, 0, 2]]), trajectory_index=np.array([1])
    )
    kind = np.array([[Kind.ANSWER] * 3, [Kind.WRITE, Kind.ANSWER, Kind.SKIP]])
    ops = step_case.make_trajectories().ops._replace(kind=kind)
    ref = np.zeros((1, 6), np.float32)
    old = np.array([[9.0, 1.0, 2.0, 0.0, np.nan, 0.0]], np.float32)
    got = step_metrics.kl_by_tokens([(rows, old, ref)], ops)

    def k3(ratio):
        return np.exp(ratio) - 1 - ratio

    assert got["kl_ops"] == pytest.approx((k3(-1.0) + k3(0.0)) / 2)
    assert got["kl_outside_ops"] == pytest.approx((k3(-2.0) + k3(0.0)) / 2)
    twice = step_metrics.kl_by_tokens([(rows, old, ref)] * 2, ops)
    assert twice == pytest.approx(got), "means over tokens, however rows are cut"
    assert set(step_metrics.kl_by_tokens([], ops).values()) == {None}


def test_means_over_updates_and_sums_of_counts():
    first = {"kl": 1.0, "skipped": True, "empty": False, "count": 4, "tokens": 3.0}
    second = first | {"kl": 2.0, "skipped": False, "tokens": 5.0}
    assert step_metrics.mean_metrics([first, second]) == {
        "kl": 1.5,
        "kl_first_update": 1.0,
        "skipped_updates": 1,
        "trained_tokens": 8,
        "empty_steps": 0,
    }
    assert step_metrics.mean_metrics([])["empty_steps"] == 1


def test_padding_is_what_the_token_mask_leaves_out():
    rows = rows_of([[1, 1, 1, 1], [1, 1, 1, 1]])
    half = rows._replace(token_mask=np.array([[1, 1, 1, 1], [0, 0, 0, 0]], bool))
    assert step_metrics.padding_share([half]) == 0.5
    assert step_metrics.padding_share([half, rows]) == 0.25
    assert step_metrics.padding_share([]) is None


def group_metrics(rounds):
    return step_metrics.group_metrics(rounds, step_case.OBJECTIVE, outcome_gate=False)


def test_the_spread_of_rewards_is_that_of_counted_members():
    facts = step_case.make_trajectories()
    reward = np.array([[0, 1, 0, 1], [5, 5, 5, 99]], np.float32)
    valid = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], bool)
    facts = facts._replace(reward=reward, valid=valid)
    facts = facts._replace(task_score=np.zeros_like(reward))
    got = group_metrics([facts])
    assert got["reward_std_in_group"] == 0.25
    assert got["degenerate_groups"] == 0.5
    assert got["no_outcome_groups"] == 1
    nobody = facts._replace(valid=np.zeros_like(valid))
    assert set(group_metrics([nobody]).values()) == {None}


def test_rounds_of_sampling_count_by_their_groups():
    facts = step_case.make_trajectories()
    reward = np.array([[0, 1, 0, 1], [5, 5, 5, 5]], np.float32)
    facts = facts._replace(reward=reward, task_score=np.zeros_like(reward))
    first = facts._replace(valid=np.ones((2, 4), bool))
    second = facts._replace(valid=np.array([[1] * 4, [0] * 4], bool))
    got = group_metrics([first, second])
    assert got["reward_std_in_group"] == pytest.approx(1 / 3)
    assert got["degenerate_groups"] == pytest.approx(1 / 3)
    assert got["no_outcome_groups"] == 1
    assert got["group_abs_advantage"] == pytest.approx(2 / 3, rel=1e-3)


def test_a_memory_that_is_filled_and_never_read_shows():
    facts = step_case.make_trajectories()
    kind = np.full_like(facts.ops.kind, Kind.SKIP)
    kind[:4, 0] = Kind.WRITE  # four of eight write, two of them recall
    kind[:2, 1] = Kind.RECALL
    kind[7] = Kind.WRITE  # left out
    facts = facts._replace(ops=facts.ops._replace(kind=kind))
    got = group_metrics([facts])
    assert got["write_only_rate"] == pytest.approx(2 / 7)
    assert got["recalls_per_write"] == pytest.approx(2 / 4)
    twice = group_metrics([facts, facts])
    assert twice["write_only_rate"] == pytest.approx(2 / 7)
    idle = facts._replace(ops=facts.ops._replace(kind=np.full_like(kind, Kind.SKIP)))
    assert group_metrics([idle])["recalls_per_write"] is None
