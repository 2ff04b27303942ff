"""Environments that are called at the same time, while the engine goes on."""

import asyncio
import sys
import threading
import time

import numpy as np
import pytest

from mempo_jax.envs import EpisodeStatus, own_environments
from mempo_jax.envs.own_environments import AwaitedEnvironment
from mempo_jax.rollout import time_limits
from mempo_jax.rollout.time_limits import (
    STUCK,
    CallPool,
    HungCallError,
    InOrder,
    call_with_limit,
)
from tests.envs.scripted_env import ScriptedEnv
from tests.rollout.tiny import (
    LINES,
    ScriptedEngine,
    decoding,
    jobs,
    make_collector,
    make_engine,
)

SCRIPT = ["<mem_write> one</mem_write> two", "three", "<answer> gold</answer>"]
LONG_S = 60  # nothing here takes so long unless it waits in vain


class Env(ScriptedEnv):
    """Calls ``wait`` before each answer."""

    def __init__(self, wait):
        super().__init__(LINES)
        self._wait = wait

    def reset(self, seed):
        self._wait("reset")
        return super().reset(seed)

    def step(self, action, *, final=False):
        self._wait("step")
        return super().step(action, final=final)

    def score(self):
        self._wait("score")
        return super().score()


def essence(trajectories):
    return [
        (
            t.sample,
            t.actions,
            t.observations,
            t.answers,
            t.status,
            t.reward.total,
            [(r.kind, r.outcome, r.token_span) for r in t.log],
        )
        for t in trajectories
    ]


def assert_stuck(count):
    """Waits until so many threads are in calls that were given up."""
    end = time.monotonic() + LONG_S
    while STUCK.count != count and time.monotonic() < end:
        time.sleep(0.01)
    assert STUCK.count == count


def log_probs(trajectories):
    segments = [s for t in trajectories for s in t.segments]
    return np.concatenate([s.log_probs for s in segments])


def test_all_environments_are_called_at_once():
    """Each answer comes only when every environment has been asked."""
    barrier = threading.Barrier(16, timeout=LONG_S)
    engine = ScriptedEngine(SCRIPT, slots=16)
    collector = make_collector(
        engine, env=lambda job: Env(lambda call: barrier.wait()), workers=16
    )
    made = collector.run(jobs(16), decoding())
    assert [t.status for t in made] == [EpisodeStatus.DONE] * 16
    assert barrier.n_waiting == 0


def test_whoever_is_ready_goes_on():
    """One environment answers first when all other trajectories have ended."""
    ended, others = threading.Semaphore(0), 7

    def patient(call):
        if call == "step":
            for _ in range(others):
                assert ended.acquire(timeout=LONG_S)
            for _ in range(others):
                ended.release()

    engine = make_engine(slots=4)
    collector = make_collector(
        engine,
        env=lambda job: Env(patient if job.sample == 0 else lambda call: None),
        workers=4,
        timeout_s=2 * LONG_S,
    )
    order = []

    def on_done(trajectory):
        order.append(trajectory.sample)
        ended.release()

    made = collector.run(jobs(8), decoding(), on_done)
    assert order[-1] == 0
    assert [t.sample for t in made] == list(range(8))
    assert not any(t.failure for t in made)


@pytest.mark.parametrize("seed", range(3))
def test_trajectories_do_not_depend_on_when_answers_come(seed):
    in_order = make_collector(make_engine()).run(jobs(12), decoding())
    rng = np.random.default_rng(seed)
    delays = iter(rng.choice([0.0, 0.001, 0.02], size=10_000))
    lock = threading.Lock()

    def wait(call):
        with lock:
            delay = next(delays)
        time.sleep(delay)

    collector = make_collector(make_engine(), env=lambda job: Env(wait), workers=5)
    made = collector.run(jobs(12), decoding())
    assert essence(made) == essence(in_order)
    np.testing.assert_allclose(log_probs(made), log_probs(in_order), rtol=0, atol=1e-5)


def test_answers_that_come_at_once_change_no_bit():
    in_order = make_collector(make_engine()).run(jobs(12), decoding())
    collector = make_collector(
        make_engine(), env=lambda job: Env(lambda call: None), workers=12
    )
    made = collector.run(jobs(12), decoding())
    assert essence(made) == essence(in_order)
    np.testing.assert_array_equal(log_probs(made), log_probs(in_order))


@pytest.mark.parametrize("method", ["reset", "step"])
def test_one_that_hangs_costs_its_own_trajectory_alone(method):
    gate, before = threading.Event(), STUCK.count

    def hang(call):
        if call == method:
            gate.wait(LONG_S)

    # Two threads, and one of them hangs: another one takes its place.
    collector = make_collector(
        ScriptedEngine(SCRIPT),
        env=lambda job: Env(hang if job.sample == 3 else lambda call: None),
        workers=2,
        timeout_s=0.2,
    )
    made = collector.run(jobs(8), decoding())
    assert [t.status is EpisodeStatus.FAILED for t in made] == [
        n == 3 for n in range(8)
    ]
    assert "HungCallError" in made[3].failure
    assert STUCK.count == before + 1
    gate.set()
    assert_stuck(before)  # its thread has ended


def test_a_stop_does_not_wait_for_environments():
    class Stop(Exception):
        pass

    gate, asked = threading.Event(), []

    def stop():
        asked.append(0)
        if len(asked) > 3:
            raise Stop

    collector = make_collector(
        ScriptedEngine(SCRIPT),
        env=lambda job: Env(lambda call: gate.wait(LONG_S)),
        workers=4,
        timeout_s=LONG_S,
    )
    collector.ask_between(stop)
    with pytest.raises(Stop):
        collector.run(jobs(8), decoding())
    gate.set()


def test_a_bug_of_this_program_is_raised():
    collector = make_collector(
        ScriptedEngine(SCRIPT), env=lambda job: 1 // 0, workers=4
    )
    with pytest.raises(ZeroDivisionError):
        collector.run(jobs(8), decoding())


@pytest.mark.parametrize("calls", [CallPool(2, 5.0), InOrder(5.0)])
def test_too_many_hanging_calls_are_not_added_to(monkeypatch, calls):
    monkeypatch.setattr(time_limits, "MOST_STUCK", 0)
    pool = calls
    pool.start("a", lambda: 1)
    [(owner, result)] = pool.take(lambda: None, block=True)
    pool.close()
    assert owner == "a"
    assert isinstance(result, HungCallError)
    assert "have not returned" in str(result)


def test_calls_that_were_given_up_in_order_are_counted_until_they_return():
    before, gate = STUCK.count, threading.Event()
    hung, answer = call_with_limit([lambda: gate.wait(LONG_S), lambda: 2], 0.1)
    assert isinstance(hung, HungCallError)
    assert answer == 2
    assert STUCK.count == before + 1
    gate.set()
    assert_stuck(before)


@pytest.mark.parametrize("make", [lambda: CallPool(1, LONG_S), lambda: InOrder(LONG_S)])
def test_a_call_that_exits_fails_at_once_and_keeps_its_thread(make):
    pool, before = make(), STUCK.count
    pool.start("exits", lambda: sys.exit(3))
    pool.start("goes on", lambda: 2)
    results = {}
    while pool:
        results |= dict(pool.take(lambda: None, block=True))
    pool.close()
    assert isinstance(results["exits"], HungCallError)
    assert "SystemExit: 3" in str(results["exits"])
    assert results["goes on"] == 2
    assert STUCK.count == before


def test_calls_are_limited_and_come_back_in_their_order():
    pool, gate = CallPool(3, 5.0), threading.Event()

    def fail():
        raise OSError("no")

    pool.start("late", lambda: gate.wait(LONG_S))
    pool.start("early", lambda: 2)
    pool.start("broken", fail)
    seen = []
    while len(seen) < 2:
        seen += pool.take(lambda: None, block=True)
    assert [owner for owner, _ in sorted(seen, key=lambda pair: pair[0])] == [
        "broken",
        "early",
    ]
    assert len(pool) == 1
    assert not pool.ready()
    gate.set()
    assert pool.take(lambda: None, block=True) == [("late", True)]
    assert pool.take(lambda: None, block=True) == []
    pool.close()


class Coroutines:
    """An environment whose answers all wait for each other, in one event loop."""

    goal = "go"
    met = 0

    def __init__(self):
        self._inner = ScriptedEnv(LINES)

    async def reset(self, seed):
        await self._meet()
        return self._inner.reset(seed)

    async def step(self, action, *, final=False):
        await self._meet()
        return self._inner.step(action, final=final)

    async def _meet(self):
        Coroutines.met += 1
        wanted = -(-Coroutines.met // 8) * 8
        while Coroutines.met < wanted:
            await asyncio.sleep(0.001)

    def score(self):
        return self._inner.score()

    def useful(self):
        return self._inner.useful()


def test_coroutines_are_awaited():
    in_order = make_collector(ScriptedEngine(SCRIPT)).run(jobs(8), decoding())
    collector = make_collector(
        ScriptedEngine(SCRIPT),
        env=lambda job: AwaitedEnvironment(Coroutines()),
        workers=8,
    )
    made = collector.run(jobs(8), decoding())
    assert [t.actions for t in made] == [t.actions for t in in_order]
    assert Coroutines.met == 8 * 4


class Unruly:
    """Coroutines that hang and exit."""

    def __init__(self):
        self.cancelled = threading.Event()

    async def reset(self, seed):
        try:
            await asyncio.sleep(1_000_000)
        finally:
            self.cancelled.set()

    async def step(self, action):
        sys.exit(3)

    async def score(self):
        return 0.5

    async def useful(self):
        raise TimeoutError("its own")


def test_a_coroutine_that_takes_too_long_is_cancelled():
    env = Unruly()
    with pytest.raises(TimeoutError, match=r"env\.step_timeout_s"):
        AwaitedEnvironment(env, 0.05).reset(0)
    assert env.cancelled.wait(LONG_S)
    with pytest.raises(TimeoutError, match="its own"):
        AwaitedEnvironment(env, LONG_S).useful()


def test_a_coroutine_that_exits_leaves_the_others_their_loop():
    env = AwaitedEnvironment(Unruly(), LONG_S)
    with pytest.raises(SystemExit):
        env.step("")
    assert env.score() == 0.5


def test_threads_that_come_at_once_share_one_event_loop():
    own_environments._started_event_loop.cache_clear()
    barrier, loops = threading.Barrier(16, timeout=LONG_S), []

    def ask():
        barrier.wait()
        loops.append(own_environments._event_loop())

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert len(loops) == 16
    assert len(set(map(id, loops))) == 1
