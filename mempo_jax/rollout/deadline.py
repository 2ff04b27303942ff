"""Runs host calls under a time limit, in order, on a daemon thread.

A call that outlives its limit is abandoned with its thread, which cannot be killed but
ends with the process; the calls behind it go on in a new thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any


class HungCallError(TimeoutError):
    """A call did not return within its time limit."""


def run_all(calls: Sequence[Callable[[], Any]], limit_s: float) -> list[Any]:
    """Results of ``calls`` in order; a call's exception stands in its place.

    Args:
      limit_s: seconds for each single call, counted from when it could have started.
    """
    results: list[Any] = []
    while len(results) < len(calls):
        worker = _Worker(calls[len(results) :])
        results += worker.results(limit_s)
    return results


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

    def results(self, limit_s: float) -> list[Any]:
        """Results up to the first call that hung, which is then the last."""
        results: list[Any] = []
        for at in range(len(self._calls)):
            try:
                results.append(self._done.get(timeout=limit_s))
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
