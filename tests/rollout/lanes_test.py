import threading

import pytest

from mempo_jax.rollout.engine import LaneThreads


def test_calls_run_at_the_same_time_and_results_keep_their_order():
    meeting = threading.Barrier(3)

    def call(name):
        meeting.wait(5)  # breaks unless all three are there
        return name

    together = LaneThreads(3)
    assert together([lambda n=n: call(n) for n in "abc"]) == ["a", "b", "c"]


def test_one_call_and_one_lane_stay_on_the_callers_thread():
    here = threading.current_thread
    assert LaneThreads(2)([here]) == [threading.current_thread()]
    assert LaneThreads(1)([here, here]) == [threading.current_thread()] * 2


def test_an_error_is_raised_once_all_have_ended():
    ended = threading.Event()

    def fail():
        raise ZeroDivisionError

    def slow():
        threading.Event().wait(0.2)
        ended.set()

    with pytest.raises(ZeroDivisionError):
        LaneThreads(2)([fail, slow])
    assert ended.is_set()
