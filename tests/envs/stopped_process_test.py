"""Calls of a process that was stopped for a while have the time that they had left."""

import signal
import subprocess
import sys
import time
import types

import pytest

from mempo_jax.envs import tools
from mempo_jax.envs.tools import BEAT_S, GAP_S, AwakeClock
from tests.experiments.process import ROOT

# Four calls at the same time, each of which takes less than its limit.
CALLS = """
import asyncio, threading, time
from mempo_jax.envs.own_environments import AwaitedEnvironment
from mempo_jax.envs.tools import Tool, ToolConfig
from mempo_jax.rollout.time_limits import CallPool, call_with_limit, nothing

TAKES, LIMIT = 1.5, 3.0

class Environment:
    async def step(self):
        await asyncio.sleep(TAKES)
        return "done"

def slow():
    time.sleep(TAKES)
    return "done"

def pool():
    calls = CallPool(1, LIMIT)
    calls.start("owner", slow)
    return calls.take(nothing, block=True)[0][1]

def hung():
    [result] = call_with_limit([lambda: time.sleep(60)], LIMIT)
    return type(result).__name__

ways = {
    "in order": lambda: call_with_limit([slow], LIMIT)[0],
    "pool": pool,
    "tool": lambda: Tool(ToolConfig(LIMIT, 0, False))(slow).value,
    "awaited": lambda: AwaitedEnvironment(Environment(), LIMIT).step(),
    "hung": hung,
}
results = {}

def run(name, way):
    try:
        results[name] = way()
    except Exception as error:
        results[name] = repr(error)

threads = [threading.Thread(target=run, args=item) for item in ways.items()]
for thread in threads:
    thread.start()
time.sleep(0.3)
print("begun", flush=True)
for thread in threads:
    thread.join()
for name in ways:
    print(name, results[name], sep=": ", flush=True)
"""


def test_calls_go_on_after_sigstop_and_sigcont():
    process = subprocess.Popen(
        [sys.executable, "-c", CALLS], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(6)  # longer than every limit
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=60)
    results = dict(line.split(": ", 1) for line in out.splitlines())
    names = ("in order", "pool", "tool", "awaited")
    assert results == dict.fromkeys(names, "done") | {"hung": "HungCallError"}


@pytest.fixture
def machine(monkeypatch):
    """A clock of the system that the test moves; no thread notes anything."""
    now = types.SimpleNamespace(s=100.0)
    fake = types.SimpleNamespace(monotonic=lambda: now.s, sleep=time.sleep)
    monkeypatch.setattr(tools, "time", fake)
    monkeypatch.setattr(AwakeClock, "_beat", lambda self: None)
    return now


def test_seconds_that_nothing_could_note_do_not_count(machine):
    clock = AwakeClock()
    assert clock.now() == 0
    machine.s += BEAT_S
    assert clock.now() == BEAT_S
    machine.s += 3600
    assert clock.now() == GAP_S
    clock._awake, clock._noted = clock.now(), machine.s  # as the thread does
    machine.s += 1
    assert clock.now() == GAP_S + 1


def test_a_forked_process_begins_anew(machine):
    clock = AwakeClock()
    clock.now()
    machine.s += 3600
    clock._forget_thread()
    before = clock.now()
    machine.s += 1
    assert clock.now() == before + 1
