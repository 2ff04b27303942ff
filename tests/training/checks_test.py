import dataclasses
import warnings

import numpy as np
import pytest

from mempo_jax.distributed.hosts import RunStopped
from mempo_jax.envs import EpisodeStatus
from mempo_jax.training import checks
from mempo_jax.types import Rows
from tests.rollout.assemble_test import trajectory


def rows(behaviour, action=None, valid=(True, True)):
    shape = np.shape(behaviour)
    action = np.ones(shape, bool) if action is None else np.asarray(action)
    return Rows(
        tokens=np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape) + 100,
        token_mask=np.ones(shape, bool),
        action_mask=action,
        behaviour_log_probs=np.asarray(behaviour, np.float32),
        turn_id=np.tile(np.arange(shape[1], dtype=np.int32) + 20, (shape[0], 1)),
        op_id=np.full(shape, -1, np.int32),
        trajectory_index=np.arange(shape[0], dtype=np.int32) + 7,
        valid=np.asarray(valid),
    )


SAMPLED = np.array([[0.0, -1.0, -2.0], [0.0, -3.0, -4.0]], np.float32)


def change(at, by, values=SAMPLED):
    changed = values.copy()
    changed[at] += by
    return changed


def test_the_largest_gap_of_all_rows_is_reported():
    scored = [
        (rows(SAMPLED), change((0, 1), 1e-4), None),
        (rows(SAMPLED), change((1, 2), -5e-4), None),
    ]
    assert checks.log_prob_gap(scored, 1e-3) == pytest.approx(5e-4, rel=1e-2)
    assert checks.log_prob_gap([], 1e-3) is None


def test_a_gap_is_named_by_trajectory_row_turn_and_token():
    scored = [
        (rows(SAMPLED), SAMPLED, None),
        (rows(SAMPLED), change((1, 2), 0.5), None),
    ]
    with pytest.raises(RunStopped) as caught:
        checks.log_prob_gap(scored, 1e-3)
    expected = "trajectory 8, row 1, turn 22, token 2 (id 105)"
    assert expected in str(caught.value)
    assert "0.5" in str(caught.value)
    assert "config.train.max_log_prob_gap" in str(caught.value)


def test_what_is_no_action_or_no_row_is_not_compared():
    action = np.ones(SAMPLED.shape, bool)
    action[0, 1] = False
    far = change((0, 1), np.nan, change((1, 1), 9.0))
    scored = [(rows(SAMPLED, action, valid=(True, False)), far, None)]
    assert checks.log_prob_gap(scored, 1e-3) == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_gap_that_is_no_number_stops_too(value):
    scored = [(rows(SAMPLED), change((1, 1), value), None)]
    with pytest.raises(RunStopped, match=r"trajectory 8, row 1, turn 21, token 1"):
        checks.log_prob_gap(scored, 1e-3)


def test_an_equal_reference_passes_and_another_stops():
    same = [(rows(SAMPLED), SAMPLED, SAMPLED + np.float32(1e-4))]
    checks.reference_is_policy(same)
    other = [*same, (rows(SAMPLED), SAMPLED, change((0, 1), 0.1))]
    with pytest.raises(
        RunStopped, match=r"mean KL 0\.000\d* before the first.*ref_path"
    ):
        checks.reference_is_policy(other)


def test_the_reference_is_compared_on_counted_actions_alone():
    action = np.ones(SAMPLED.shape, bool)
    action[0, 1] = False
    far = change((0, 1), 5.0, change((1, 1), 5.0))
    scored = [(rows(SAMPLED, action, valid=(True, False)), SAMPLED, far)]
    checks.reference_is_policy(scored)
    checks.reference_is_policy([])


def test_a_reference_that_gives_nan_stops():
    scored = [(rows(SAMPLED), SAMPLED, change((0, 1), np.nan))]
    with pytest.raises(RunStopped, match="mean KL nan"):
        checks.reference_is_policy(scored)


def test_too_many_failures_stop_with_the_first_reason():
    made = [trajectory() for _ in range(8)]
    for number in (2, 5):
        made[number] = dataclasses.replace(made[number], failure=f"reason {number}")
    checks.failed_share(made, 0.25)
    checks.failed_share([], 0.0)
    with pytest.raises(RunStopped, match=r"2 of 8 .*at most 20%.*first: reason 2"):
        checks.failed_share(made, 0.2)


def test_steps_without_training_are_told_of_now_and_then():
    told = []
    for count in range(1, 12):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            checks.empty_in_a_row(count, [trajectory()])
        told += [(count, str(w.message)) for w in caught]
    assert [count for count, _ in told] == [5, 10]
    assert told[1][1].startswith("10 steps in a row trained on nothing")
    assert "config.sampling.max_resample_rounds" in told[1][1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checks.empty_in_a_row(0, [])


def test_steps_in_which_nobody_counted_are_told_by_their_reason():
    failed = dataclasses.replace(
        trajectory(), status=EpisodeStatus.FAILED, failure="the server is gone"
    )
    with pytest.warns(UserWarning, match=r"none of 2 .* counted.*server is gone"):
        checks.empty_in_a_row(5, [failed, failed])
    mute = dataclasses.replace(trajectory(), segments=[])
    with pytest.warns(UserWarning, match="never acted; see config.context"):
        checks.empty_in_a_row(5, [mute])
    with pytest.warns(UserWarning, match="all rewards of a group were equal"):
        checks.empty_in_a_row(5, [failed, trajectory()])


def test_skipped_updates_in_a_row():
    checks.skipped_in_a_row(5, 5)
    with pytest.raises(RunStopped, match=r"6 updates in a row.*at most 5"):
        checks.skipped_in_a_row(6, 5)
