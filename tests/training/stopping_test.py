"""When a run obeys a signal: at once, at a check, or with all other processes."""

import os
import queue
import signal
import time

import pytest

from mempo_jax.distributed.hosts import Interrupted, Preempted, Stop, listening
from mempo_jax.training.step import LARGEST_STRIDE, RunAheadLimit


class Left(Exception):
    pass


def leave(number, again):
    raise Left(int(number), again)


def unsaved(stop, *signals, end=lambda: None):
    """Signals come while something is unsaved."""
    with stop.unsaved():
        for number in signals:
            stop.request(number)
        end()


def test_with_nothing_unsaved_it_leaves_at_once_and_else_at_the_next_check():
    with pytest.raises(Left, match=r"15, False"):
        Stop(leave).request(signal.SIGTERM)
    stop = Stop(leave)
    unsaved(stop, end=stop.check)
    with pytest.raises(Preempted):
        unsaved(stop, signal.SIGTERM, end=stop.check)
    assert stop.requested


def test_what_is_saved_after_the_signal_is_behind_it():
    stop, saved = Stop(leave), []
    with pytest.raises(Interrupted):
        unsaved(stop, signal.SIGINT, end=lambda: saved.append("all"))
    assert saved == ["all"]
    assert issubclass(Interrupted, KeyboardInterrupt)
    assert not issubclass(Preempted, Exception)


def test_a_second_signal_leaves_at_once():
    with pytest.raises(Left, match=r"2, True"):
        unsaved(Stop(leave), signal.SIGTERM, signal.SIGINT)


def test_several_processes_leave_where_all_are():
    flags = []

    def agree(flag):
        flags.append(flag)
        return len(flags) > 2  # another process is asked to end

    stop = Stop(leave)
    stop.share(agree)
    stop.request(signal.SIGTERM)  # nothing is unsaved, but the others would wait
    with pytest.raises(Preempted):  # it travels with what the process was at
        stop.check_alone()
    assert not flags
    stop.check()
    stop.check()
    with pytest.raises(Preempted):
        stop.check()
    assert flags == [True] * 3
    with pytest.raises(Left, match=r"15, True"):
        stop.request(signal.SIGTERM)


def test_a_process_that_got_no_signal_stops_with_the_others():
    stop = Stop(leave)
    stop.share(lambda flag: True)
    with pytest.raises(Preempted):
        stop.check()
    assert stop.number == signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_heard_on_another_thread(number):
    heard, before = queue.SimpleQueue(), signal.getsignal(number)
    with listening(lambda *given: heard.put(given)) as stop:
        os.kill(os.getpid(), number)
        assert heard.get(timeout=20) == (number, False)
        os.kill(os.getpid(), number)
        assert heard.get(timeout=20) == (number, True)
        assert stop.number == number
    assert signal.getsignal(number) == before


def test_without_a_listener_it_answers_itself_while_something_is_unsaved():
    before = signal.getsignal(signal.SIGINT)
    stop = Stop()

    def ctrl_c():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)  # where the second one is answered

    def again():
        ctrl_c()
        with pytest.raises(KeyboardInterrupt) as second:
            ctrl_c()
        assert second.type is KeyboardInterrupt

    with pytest.raises(Interrupted):
        unsaved(stop, end=again)
    assert signal.getsignal(signal.SIGINT) == before


def test_the_host_waits_for_each_result_only_where_that_takes_seconds(monkeypatch):
    waited, clock = [], [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("jax.block_until_ready", waited.append)
    for seconds, count in ((3.0, 10), (1e-3, 10 * LARGEST_STRIDE)):
        waited.clear()
        pace = RunAheadLimit()
        for n in range(count):
            clock[0] += seconds
            pace(n)
        assert len(waited) == count if seconds > 1 else len(waited) < 20
