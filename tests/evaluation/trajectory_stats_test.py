import dataclasses
import json

import pytest

from mempo_jax.envs import EpisodeStatus, Reward
from mempo_jax.evaluation.stats import (
    ratio_ci95,
    step_stats,
    summarise,
    write_counts,
    write_recall_counts,
)
from mempo_jax.memory import OpRecord
from tests.rollout.assemble_test import note, recall, trajectory, write


def seen(log, useful=(0, 2), observations=(0, 0, 1, 2), **changes):
    """Turns 0 and 1 answer observation 0, turn 2 observation 1, turn 3 the next."""
    return trajectory(
        log,
        useful=frozenset(useful),
        turn_observation=list(observations),
        **changes,
    )


def test_writes_count_by_the_observation_they_were_made_on():
    made = seen([write(1, 0), write(2, 1), write(3, 2), recall(0), note(3, "skip")])
    assert write_counts(made) == (3, 2)
    assert write_recall_counts(made) == (2, 2)


def test_several_writes_on_one_observation_find_it_once():
    made = seen([write(0, 0), write(1, 1)])
    assert write_counts(made) == (2, 2)
    assert write_recall_counts(made) == (2, 1)


def test_failed_writes_and_other_ops_are_no_writes():
    failed = OpRecord(1, "write", "error", error="empty_content")
    made = seen([failed, note(0, "malformed"), OpRecord(3, "merge", "merged", (2, 0))])
    assert write_counts(made) == (0, 0)
    assert write_recall_counts(made) == (2, 0)


def test_ratios_pool_parts_and_wholes():
    got = ratio_ci95([1, 3], [2, 10])
    assert got["mean"] == pytest.approx(4 / 12)
    assert got["ci95"][0] == pytest.approx(0.3)
    assert got["ci95"][1] == pytest.approx(0.5)
    assert (
        ratio_ci95([], [])
        == ratio_ci95([0], [0])
        == {
            "mean": None,
            "ci95": [None, None],
        }
    )


def test_ratio_intervals_shrink_with_more_items():
    def width(n):
        low, high = ratio_ci95([1, 0] * n, [1, 1] * n)["ci95"]
        return high - low

    assert width(200) < width(20) < 0.6
    assert 0.08 < width(200) < 0.12  # 2 * 1.96 * sqrt(0.25 / 400) = 0.098


def failed():
    return dataclasses.replace(
        trajectory(), status=EpisodeStatus.FAILED, failure="x", reward=None
    )


def test_a_summary_of_sampled_and_greedy_runs():
    sampled = [
        seen([write(0, 0), write(2, 1)], score=1.0, tokens_total=10, tokens_peak=4),
        seen([write(2, 1)], score=0.0, tokens_total=30, tokens_peak=8),
    ]
    got = summarise(sampled, [seen([], score=1.0), failed()])
    assert got["success_sampled"]["mean"] == 0.5
    assert got["success_greedy"]["mean"] == 0.5
    assert got["write_precision"]["mean"] == pytest.approx(1 / 3)
    assert got["write_recall"]["mean"] == pytest.approx(1 / 4)
    assert got["tokens_total"]["mean"] == 20
    assert got["tokens_peak"]["mean"] == 6
    assert got["failed"] == {"sampled": 0, "greedy": 1}
    json.dumps(got, allow_nan=False)


def reward(task, malformed):
    raw = {"task": task, "malformed": malformed}
    return Reward(raw, {"task": task, "malformed": -0.1 * malformed}, task)


def test_figures_of_a_step():
    error = OpRecord(0, "malformed", "error", error="unclosed_tag")
    log = [
        write(0, 0),
        write(2, 1, "duplicate"),
        write(3, 1, "merged", (0,)),
        recall(0, 0),
        recall(1),
        note(2, "skip"),
        error,
    ]
    made = [
        seen(
            log,
            reward=reward(1.0, 1.0),
            seconds_recall=[0.001, 0.003],
            bank_size=4,
            rebuilds=3,
            tokens_total=20,
            tokens_peak=7,
            cut_turns=(0, 3),
        ),
        seen(
            [],
            reward=reward(0.0, 0.0),
            status=EpisodeStatus.OVERFLOW,
            bank_size=2,
            rebuilds=0,
            tokens_total=40,
            tokens_peak=9,
        ),
    ]
    got = step_stats(made, 2)
    expected = {
        "success": 0.5,
        "malformed_rate": 1 / 8,
        "duplicate_rate": 1 / 3,
        "merge_rate": 1 / 2,
        "recall_hit_rate": 1 / 2,
        "recall_ms_p50": 2.0,
        "bank_size": 3.0,
        "rebuilds": 1.5,
        "truncated_rate": 0.0,
        "write_precision": 2 / 3,
        "write_recall": 2 / 4,
        "turns": 4.0,
        "tokens_per_trajectory": 30.0,
        "tokens_peak": 9,
        "failed_trajectories": 0,
        "overflow_rate": 0.5,
        "cut_turn_rate": 2 / 8,
        "cut_trajectory_rate": 1 / 2,
        "ops_per_turn/write": 3 / 8,
        "ops_per_turn/recall": 2 / 8,
        "ops_per_turn/skip": 1 / 8,
        "reward_raw/malformed": 0.5,
        "reward_weighted/malformed": -0.05,
    }
    assert {name: got[name] for name in expected} == pytest.approx(expected)
    json.dumps(got, allow_nan=False)


def test_a_failed_trajectory_is_counted_and_has_no_reward():
    got = step_stats([seen([], reward=reward(1.0, 0.0)), failed()], 2)
    assert got["failed_trajectories"] == 1
    assert got["success"] == got["reward"] == 1.0


@pytest.mark.parametrize("made", [[], [failed()]])
def test_a_step_with_nothing_to_count_has_no_figures(made):
    got = step_stats(made, 8)
    assert got["success"] is None
    assert got["write_precision"] is None
    json.dumps(got, allow_nan=False)


def test_edit_distance_compares_members_of_a_group_only():
    def acting(*actions):
        return seen([], actions=list(actions))

    same = [acting("a", "b"), acting("a", "b"), acting("x", "y"), acting("x", "y")]
    assert step_stats(same, 2)["edit_distance"] == 0
    assert step_stats(same, 4)["edit_distance"] == pytest.approx(1 / 3)
    assert step_stats([acting("a", "b"), acting("b")], 2)["edit_distance"] == 0.5
    assert step_stats([acting("a"), acting("b", "a", "c")], 2)[
        "edit_distance"
    ] == pytest.approx(2 / 3)
