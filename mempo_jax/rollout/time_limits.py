"""Runs host calls under a time limit, in order, on a daemon thread.

A call that outlives its limit is abandoned with its thread, which cannot be killed but
ends with the process; the calls behind it go on in a new thread.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

PAUSE_S = 0.5  # between two looks at whether waiting should go on


class HungCallError(TimeoutError):
    """A call did not return within its time limit."""


def nothing() -> None:
    """What is done between two pieces of work, unless somebody asks for more."""


def call_with_limit(
    calls: Sequence[Callable[[], Any]],
    limit_s: float,
    between: Callable[[], None] = nothing,
) -> list[Any]:
    """Results of ``calls`` in order; a call's exception stands in its place.

    Args:
      limit_s: seconds for each single call, counted from when it could have started.
      between: called now and then while waiting; what it raises is raised, and the
        call under way is abandoned.
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
    """The next of ``results``; until it is there, calls ``between`` twice a second.

    Raises queue.Empty after ``limit_s`` seconds.
    """
    end = time.monotonic() + limit_s
    while True:
        left = end - time.monotonic()
        try:
            return results.get(timeout=max(0.0, min(left, PAUSE_S)))
        except queue.Empty:
            if left <= PAUSE_S:
                raise
        between()


class _Worker:
    """A thread that makes calls in order until it is abandoned.

    The lock decides who comes first: a call is either begun by this thread, or left to
    the next one after ``abandon``; never both.
    """

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        self._calls = calls
        self._lock = threading.Lock()
        self._begun = 0
        self._stopped = False
        self._done: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def results(self, limit_s: float, between: Callable[[], None]) -> list[Any]:
        """Results up to the first call that hung, which is then the last."""
        results: list[Any] = []

        def ask() -> None:
            try:
                between()
            except BaseException:
                self._abandon(len(results))
                raise

        for at in range(len(self._calls)):
            try:
                results.append(get(self._done, ask, limit_s))
            except queue.Empty:
                if self._abandon(at):
                    results.append(HungCallError(_HUNG.format(limit_s)))
                    break
                results.append(self._done.get())  # it came in at the last moment
        return results

    def _abandon(self, at: int) -> bool:
        """Stops the thread, unless it has got beyond call ``at`` after all."""
        with self._lock:
            self._stopped = self._begun <= at + 1
            return self._stopped

    def _work(self) -> None:
        for call in self._calls:
            with self._lock:
                if self._stopped:
                    return
                self._begun += 1
            try:
                self._done.put(call())
            except Exception as error:
                self._done.put(error)


_HUNG = "expected an answer within {} s, got none; see config.env.step_timeout_s"
