"""Runs host calls on daemon threads: in order under a time limit, or some at a time.

A call that outlives its limit is abandoned with its thread, which cannot be killed but
ends with the process. The calls after it go on in a new thread.
"""

from __future__ import annotations

import collections
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

PAUSE_S = 0.5  # between two looks at whether waiting should go on
_HUNG = "expected an answer within {} s, got none; see config.env.step_timeout_s"


class HungCallError(TimeoutError):
    """A call did not return within its time limit."""


def nothing() -> None:
    """Does nothing: what is called between two pieces of work by default."""


def call_with_limit(
    calls: Sequence[Callable[[], Any]],
    limit_s: float,
    between: Callable[[], None] = nothing,
) -> list[Any]:
    """Makes calls in order, each under a time limit.

    Args:
      calls: what to call.
      limit_s: seconds for each single call, counted from when it could have started.
      between: called now and then while waiting; what it raises is raised, and the call
        under way is abandoned.

    Returns:
      Results in order, with a call's exception in place of its result.
    """
    results: list[Any] = []
    while len(results) < len(calls):
        worker = _Worker(calls[len(results) :])
        results += worker.results(limit_s, between)
    return results


def get(
    results: queue.SimpleQueue,
    between: Callable[[], None],
    limit_s: float = math.inf,
) -> Any:
    """Waits for the next of some results.

    Args:
      results: the queue that they come in.
      between: called twice a second until then.
      limit_s: the most seconds to wait.

    Raises:
      queue.Empty: nothing came in time.
    """
    end = time.monotonic() + limit_s
    while True:
        seconds_left = end - time.monotonic()
        # Short waits, so that a signal or a failed peer is noticed while a call hangs.
        try:
            return results.get(timeout=max(0.0, min(seconds_left, PAUSE_S)))
        except queue.Empty:
            if seconds_left <= PAUSE_S:
                raise
        between()


class _Worker:
    """A thread that makes calls in order until it is abandoned.

    The lock decides which comes first: each call is either begun by this thread, or
    left to the next thread after ``_abandon``; never both.
    """

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        self._calls = calls
        self._lock = threading.Lock()
        self._begun = 0
        self._stopped = False
        self._results: queue.SimpleQueue = queue.SimpleQueue()
        # A daemon, so that a call that hangs for ever cannot keep the process alive.
        threading.Thread(target=self._work, daemon=True).start()

    def results(self, limit_s: float, between: Callable[[], None]) -> list[Any]:
        """Results up to the first call that hung, which is then the last."""
        results: list[Any] = []

        def call_between() -> None:
            try:
                between()
            except BaseException:
                self._abandon(len(results))
                raise

        for index in range(len(self._calls)):
            try:
                results.append(get(self._results, call_between, limit_s))
            except queue.Empty:
                if self._abandon(index):
                    results.append(HungCallError(_HUNG.format(limit_s)))
                    break
                results.append(self._results.get())  # it came in at the last moment
        return results

    def _abandon(self, at: int) -> bool:
        """Stops the thread, unless it has got beyond call ``at`` after all."""
        with self._lock:
            # More calls begun than waited for: the late call has returned just now.
            self._stopped = self._begun <= at + 1
            return self._stopped

    def _work(self) -> None:
        for call in self._calls:
            with self._lock:
                if self._stopped:
                    return
                self._begun += 1
            try:
                self._results.put(call())
            # Kept as a result: it belongs to one trajectory, and the calls after it go
            # on.
            except Exception as error:
                self._results.put(error)


class RequestThreads:
    """Makes calls in threads, which end when there is nothing left to call.

    They are daemons: an exit must not wait for a call that hangs.

    Args:
      most: threads at one time.

    Attributes:
      threads: running threads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._queued: collections.deque[Callable[[], None]] = collections.deque()
        self.threads = 0

    def start(self, call: Callable[[], None]) -> None:
        """Makes a call as soon as a thread is free.

        Args:
          call: what to call; it must not raise.
        """
        # Counted under the lock, so that a thread that is about to end is not counted
        # on.
        with self._lock:
            self._queued.append(call)
            starts_thread = self.threads < self._most
            self.threads += starts_thread
        if starts_thread:
            # ``concurrent.futures`` would join its threads at exit, hanging calls
            # included.
            threading.Thread(target=self._work, daemon=True).start()

    def drop(self) -> None:
        """Forgets the calls that have not begun."""
        with self._lock:
            self._queued.clear()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queued:
                    self.threads -= 1
                    return
                call = self._queued.popleft()
            call()
