import threading
import time

import pytest

from mempo_jax.rollout import http_client, time_limits
from mempo_jax.rollout.time_limits import HungCallError, call_with_limit
from tests.rollout.http_case import make_http_engine, requests


def give(value):
    return lambda: value


def fail(error):
    def call():
        raise error

    return call


def test_results_come_in_order_and_exceptions_in_their_place():
    error = ValueError("no")
    assert call_with_limit([give(1), fail(error), give(3)], 5) == [1, error, 3]
    assert call_with_limit([], 5) == []


def test_a_hung_call_costs_its_own_place_only():
    event = threading.Event()
    results = call_with_limit([give(1), event.wait, give(3), event.wait, give(5)], 0.15)
    event.set()
    assert [results[i] for i in (0, 2, 4)] == [1, 3, 5]
    for at in (1, 3):
        assert isinstance(results[at], HungCallError)
        assert "0.15 s" in str(results[at])
        assert "config.env.step_timeout_s" in str(results[at])


def test_the_limit_is_for_each_call():
    calls = [lambda: time.sleep(0.1)] * 16
    assert call_with_limit(calls, 1.5) == [None] * 16


def test_calls_run_one_at_a_time_in_one_thread():
    seen = call_with_limit([threading.get_ident] * 20, 5)
    assert len(set(seen)) == 1
    assert seen[0] != threading.get_ident()


def test_a_call_that_wakes_up_does_not_go_on_with_the_rest():
    event, made = threading.Event(), []
    call_with_limit([event.wait, lambda: made.append(1), lambda: made.append(2)], 0.1)
    event.set()
    time.sleep(0.1)
    assert made == [1, 2]


@pytest.mark.parametrize("limit", [0.0005, 0.001, 0.002])
def test_no_call_is_made_twice_however_close_the_race(limit):
    for _ in range(60):
        made = []

        def call(number, made=made):
            made.append(number)
            time.sleep(limit)
            return number

        results = call_with_limit([lambda n=n: call(n) for n in range(4)], limit)
        assert made == [0, 1, 2, 3]
        assert len(results) == 4
        for number, result in enumerate(results):
            assert result == number or isinstance(result, HungCallError)


class Enough(BaseException):
    pass


def test_whoever_waits_may_be_told_that_it_is_enough(monkeypatch):
    monkeypatch.setattr(time_limits, "PAUSE_S", 0.01)
    gate, later, asked = threading.Event(), threading.Event(), []

    def between():
        asked.append(0)
        if len(asked) == 3:
            raise Enough

    with pytest.raises(Enough):
        call_with_limit([gate.wait, later.set], 60, between)
    gate.set()
    assert not later.wait(0.1), "what had not begun is not begun any more"
    assert call_with_limit([give(1)], 60, between) == [1]


def test_a_wait_for_the_server_can_be_left(monkeypatch):
    monkeypatch.setattr(time_limits, "PAUSE_S", 0.01)
    gate = threading.Event()

    class Silent:
        url, retries = "nowhere", 0

        def post_once(self, *given):
            gate.wait(20)
            raise http_client.ServerFaultError("late")

    engine = make_http_engine("nowhere", Silent())

    def leave():
        raise KeyboardInterrupt

    engine.between = leave
    engine.submit(requests(2), temperature=1.0)
    with pytest.raises(KeyboardInterrupt):
        engine.wait()
    engine.cancel()
    gate.set()
