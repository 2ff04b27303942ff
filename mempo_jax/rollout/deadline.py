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
        done: queue.SimpleQueue = queue.SimpleQueue()
        stop = threading.Event()
        todo = calls[len(results) :]
        worker = threading.Thread(target=_work, args=(todo, done, stop), daemon=True)
        worker.start()
        for _ in todo:
            try:
                results.append(done.get(timeout=limit_s))
            except queue.Empty:
                stop.set()
                results.append(
                    HungCallError(
                        f"expected an answer within {limit_s} s, got none; see "
                        "config.env.step_timeout_s"
                    )
                )
                break
    return results


def _work(
    calls: Sequence[Callable[[], Any]], done: queue.SimpleQueue, stop: threading.Event
) -> None:
    for call in calls:
        if stop.is_set():
            return
        try:
            done.put(call())
        except Exception as error:
            done.put(error)
