"""Calls at the same time, no more than so many, and none after they were dropped."""

import functools
import threading

import pytest

from mempo_jax.rollout.time_limits import RequestThreads


@pytest.mark.parametrize("most", [1, 3])
def test_so_many_calls_run_at_once_and_all_are_made(most):
    go, all_made = threading.Event(), threading.Semaphore(0)
    made, begun = [], []

    def call(number):
        begun.append(number)
        go.wait(10)
        made.append(number)
        all_made.release()

    daemons = RequestThreads(most)
    for number in range(5):
        daemons.start(functools.partial(call, number))
    assert daemons.threads == most
    go.set()
    assert all(all_made.acquire(timeout=10) for _ in range(5))
    assert sorted(made) == list(range(5))
    if most == 1:
        assert begun == list(range(5)), "in order"


def test_what_was_dropped_is_not_called():
    go, made = threading.Event(), []
    first = threading.Event()

    def call(number):
        first.set()
        go.wait(10)
        made.append(number)

    daemons = RequestThreads(1)
    for number in range(3):
        daemons.start(functools.partial(call, number))
    assert first.wait(10)
    daemons.drop()
    go.set()
    done = threading.Event()
    daemons.start(done.set)
    assert done.wait(10)
    assert made == [0]
