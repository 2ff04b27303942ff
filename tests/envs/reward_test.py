import functools
import math
import re

import numpy as np
import pytest

from mempo_jax.core.advantages import group_advantage
from mempo_jax.envs.reward import (
    EFFICIENCY,
    PENALTIES,
    RewardConfig,
    RewardError,
    call_reward_function,
    compose,
    efficiency_shares,
    rescored,
)
from tests.envs.scripted_env import REWARD

NONE = dict.fromkeys(PENALTIES, 0)


def settings(**changes):
    values = dict.fromkeys((*PENALTIES, "penalty_floor", *EFFICIENCY), 0.0)
    fixed = {"task_weight": 1.0, "function": "", "outcome_gate": True}
    return RewardConfig(**{**fixed, **values, **changes})


def test_components_are_named_raw_and_weighted():
    counts = {"malformed": 3, "duplicate": 1, "overflow": 1, "write_cost": 2}
    reward = compose(0.5, counts, REWARD)
    assert reward.raw == {"task": 0.5, **{k: float(v) for k, v in counts.items()}}
    assert reward.weighted == pytest.approx(
        {
            "task": 0.5,
            "malformed": -0.15,
            "duplicate": -0.02,
            "overflow": -0.2,
            "write_cost": -0.02,
        }
    )
    assert reward.total == pytest.approx(0.5 - 0.39)
    assert reward.total == pytest.approx(sum(reward.weighted.values()))


def test_the_task_weight_scales_the_score_alone():
    assert compose(0.25, NONE, settings(task_weight=2.0)).total == 0.5


def test_penalties_stop_at_the_floor():
    reward = compose(1.0, {**NONE, "malformed": 100}, REWARD)
    assert reward.weighted["malformed"] == pytest.approx(-5)
    assert reward.total == 0.5


def test_partial_scores_are_not_truncated():
    assert compose(np.float32(0.999), NONE, REWARD).total == pytest.approx(0.999)


@pytest.mark.parametrize(
    "score", [None, "0.5", math.nan, math.inf, -0.1, 1.1, True, [0.5], 1j]
)
def test_a_score_outside_the_contract_is_refused(score):
    with pytest.raises(RewardError, match=r"score\(\): expected") as caught:
        compose(score, NONE, REWARD)
    assert repr(score) in str(caught.value)


PARTS = (9, 11, 18, 20, 21, 49, 98, 103, 107)  # of which many a sum is not 1


def added(parts, kind):
    """A score that an environment has added up, part by part."""
    score = kind(0)
    for _ in range(parts):
        score = kind(score + kind(1) / kind(parts))
    return score


@pytest.mark.parametrize("parts", [*PARTS, 1000, 9973])
@pytest.mark.parametrize("kind", [float, np.float64])
def test_a_score_that_was_added_up_of_parts_is_whole(parts, kind):
    score = added(parts, kind)
    assert score == pytest.approx(1, abs=1e-9)
    total = compose(score, NONE, REWARD).raw["task"]
    assert total == min(score, 1.0)
    over = compose(2.0 - score, NONE, REWARD).raw["task"]
    assert over == min(2.0 - score, 1.0)
    assert compose(score - 1.0, NONE, REWARD).raw["task"] == max(score - 1.0, 0.0)


@pytest.mark.parametrize("parts", PARTS)
def test_nor_is_one_of_float32_parts_refused(parts):
    score = added(parts, np.float32)
    assert abs(float(score) - 1) < 2e-6
    assert compose(score, NONE, REWARD).raw["task"] == min(float(score), 1.0)


def test_the_sums_above_are_not_all_exact():
    assert {added(parts, float) > 1 for parts in range(2, 200)} == {True, False}
    assert any(added(parts, np.float32) > 1 for parts in PARTS)


@pytest.mark.parametrize(
    "score", [1 + 1.1e-6, -1.1e-6, 1.001, np.float32(1.0001), np.float16(1.1)]
)
def test_more_than_rounding_is_refused(score):
    with pytest.raises(RewardError, match=r"expected a number in \[0, 1\]"):
        compose(score, NONE, REWARD)


@pytest.mark.parametrize("field", [*PENALTIES, "penalty_floor"])
@pytest.mark.parametrize("value", [0.1, -math.inf, math.nan])
def test_penalties_are_finite_and_never_rewards(field, value):
    with pytest.raises(ValueError, match=rf"config\.reward\.{field}: expected"):
        settings(**{field: value})


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_the_task_weighs_something(value):
    with pytest.raises(ValueError, match=r"config\.reward\.task_weight"):
        settings(task_weight=value)


def test_active_components():
    assert settings().active() == ["task"]
    assert REWARD.active() == ["task", *PENALTIES]


def test_efficiency_earns_by_shares_and_is_no_penalty():
    weights = settings(efficiency_size=0.05, efficiency_hits=0.1, penalty_floor=-0.5)
    shares = {"efficiency_size": 0.75, "efficiency_hits": 0.5}
    reward = compose(0.5, NONE, weights, efficiency=shares)
    assert reward.total == pytest.approx(0.5 + 0.0375 + 0.05)
    assert {n: reward.raw[n] for n in shares} == shares
    assert reward.weighted["efficiency_size"] == pytest.approx(0.0375)
    off = compose(0.5, NONE, settings(), efficiency=shares)
    assert (off.total, off.raw) == (0.5, reward.raw)


@pytest.mark.parametrize(
    ("size", "hits", "task", "most"),
    [(0.3, 0.0, 1.0, "0.2"), (0.11, 0.1, 1.0, "0.2"), (0.0, 0.11, 0.5, "0.1")],
)
def test_efficiency_weighs_at_most_a_fifth_of_the_task(size, hits, task, most):
    given = {"efficiency_size": size, "efficiency_hits": hits, "task_weight": task}
    with pytest.raises(ValueError, match=f"at most {most}.*remembering nothing would"):
        settings(**given)
    half = {"efficiency_size": task * 0.1, "efficiency_hits": task * 0.1}
    assert settings(**half, task_weight=task).active() == ["task", *EFFICIENCY]


@pytest.mark.parametrize("field", EFFICIENCY)
@pytest.mark.parametrize("value", [-0.1, math.inf, math.nan])
def test_efficiency_is_finite_and_never_a_penalty(field, value):
    with pytest.raises(ValueError, match=rf"config\.reward\.{field}: expected"):
        settings(**{field: value})


def test_another_task_score_leaves_the_other_components():
    weights = settings(malformed=-0.1, efficiency_size=0.1, penalty_floor=-0.5)
    shares = {"efficiency_size": 0.25}
    made = compose(1.0, {**NONE, "malformed": 2}, weights, efficiency=shares)
    again = rescored(made, 0.5, weights, "mine")
    assert again.raw == made.raw | {"task": 0.5}
    assert again.total == pytest.approx(made.total - 0.5)
    with pytest.raises(RewardError, match="mine: expected"):
        rescored(made, 1.5, weights, "mine")


@pytest.mark.parametrize("gate", [True, False])
def test_in_an_all_failed_group_a_small_bank_is_no_success(gate):
    # Eight wrong answers; banks of 10 to 17 entries, of at most 20.
    weights = settings(efficiency_size=0.2)
    made = [
        compose(0.0, NONE, weights, efficiency=efficiency_shares([], [size], 20))
        for size in range(10, 18)
    ]
    reward = np.array([[each.total for each in made]])
    score = np.array([[each.raw["task"] for each in made]])
    options = {"eps": 1e-4, "ddof": 0, "divide_by_std": True, "outcome_gate": gate}
    valid = np.ones((1, 8), bool)
    got = np.asarray(group_advantage(reward, score, valid, **options))
    assert np.ptp(reward) == pytest.approx(0.07)
    assert np.argmax(got) == 0
    if gate:
        np.testing.assert_allclose(got, reward - reward.mean(), atol=1e-6)
    else:
        assert np.abs(got).max() > 1.4


def reward_function(values):
    def own_reward(trajectories):
        return values

    return own_reward


@pytest.mark.parametrize(
    "values",
    [[0, 0.5, -3], (0.0, np.float32(0.5), np.int64(-3)), np.array([0.0, 0.5, -3.0])],
)
def test_one_finite_number_per_trajectory_passes_in_order(values):
    got = call_reward_function(reward_function(values), ["a", "b", "c"])
    assert got == [0.0, 0.5, -3.0]
    assert all(type(value) is float for value in got)


def test_the_function_sees_the_trajectories():
    def lengths(trajectories):
        return [len(t) for t in trajectories]

    assert call_reward_function(lengths, ["a", "bb"]) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("values", "came"),
    [
        (None, "NoneType"),
        (0.5, "float"),
        ("0.5", "str"),
        ("12345678", "str"),
        (b"\1\1\1\1\1\1\1\1", "bytes"),
        (dict.fromkeys(range(8), 0.5), "dict"),
        (set(range(8)), "set"),
        (iter([1.0] * 8), "iterator"),
        (np.float32(1), "float32"),
        (np.array(1.0), "ndarray"),
        ([1.0], "1 values"),
        ([], "0 values"),
        ([1.0] * 9, "9 values"),
        ([0.5] * 7 + [None], "None"),
        ([0.5] * 7 + ["0.5"], "'0.5'"),
        ([0.5] * 7 + [math.nan], "nan"),
        ([0.5] * 7 + [-math.inf], "-inf"),
        ([0.5] * 7 + [True], "True"),
        ([0.5] * 7 + [[0.5]], r"\[0.5\]"),
        (np.ones((8, 1)), "array"),
    ],
)
def test_a_broken_reward_function_is_named_with_what_came(values, came):
    with pytest.raises(RewardError, match=rf"own_reward.*expected.*{came}"):
        call_reward_function(reward_function(values), list(range(8)))


def test_the_faulty_trajectory_is_named():
    function = reward_function([1.0, math.nan, 1.0])
    with pytest.raises(RewardError, match="trajectory 1: expected one finite float"):
        call_reward_function(function, [0, 1, 2])


def test_a_function_without_a_name_is_still_told_apart():
    partial = functools.partial(reward_function([1.0]))
    with pytest.raises(RewardError, match=r"reward function functools\.partial"):
        call_reward_function(partial, [0, 1])


def fails(trajectories):
    return [inner(each) for each in trajectories]


def inner(trajectory):
    return {"a": 1}[trajectory]


def test_a_function_that_raises_gives_its_own_traceback_in_short():
    with pytest.raises(RewardError) as caught:
        call_reward_function(fails, ["a", "b"])
    text, details = str(caught.value), caught.value.details
    assert "\n" not in text
    assert re.fullmatch(
        r"reward function fails raised KeyError: 'b' \(reward_test\.py:\d+, "
        r"in inner\); see config\.reward\.function",
        text,
    )
    lines = details.splitlines()
    assert lines[0].startswith("Traceback")
    assert [line.split(", in ")[1] for line in lines if ", in " in line] == [
        "fails",
        *([] if "<listcomp>" not in details else ["<listcomp>"]),
        "inner",
    ]
    assert "call_reward_function" not in details


class UnprintableError(Exception):
    def __str__(self):
        raise ValueError("not even this")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UnprintableError(), "its message cannot be shown"),
        (ValueError("y" * 10_000_000), r"y\.\.\. \("),
        (ValueError("two\nlines\x1b"), "two lines"),
        (SystemExit(3), "SystemExit: 3"),
        (RecursionError("deep"), "RecursionError"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_whatever_a_function_raises_is_one_short_line(error, said):
    def raising(trajectories):
        raise error

    with pytest.raises(RewardError, match=said) as caught:
        call_reward_function(raising, [1])
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_ctrl_c_is_no_fault_of_the_function():
    def interrupted(trajectories):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_reward_function(interrupted, [1])


def test_what_came_is_shown_in_short():
    # No parameters: pytest would write them out.
    for value in (10**400, -(10**5000), np.zeros(10**6), "x" * 10**7):
        with pytest.raises(RewardError, match="expected one finite float") as caught:
            call_reward_function(reward_function([value]), [1])
        assert len(str(caught.value)) < 400
