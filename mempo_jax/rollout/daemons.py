"""Calls that wait for others, at the same time and off the main thread."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable


class Daemons:
    """Makes calls in threads that end when there is nothing left to call.

    They are daemons: an exit must not wait for a call that hangs.

    Args:
      most: threads at one time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._queued: collections.deque[Callable[[], None]] = collections.deque()
        self.threads = 0

    def start(self, call: Callable[[], None]) -> None:
        """Makes the call as soon as a thread is free; it must not raise."""
        with self._lock:
            self._queued.append(call)
            more = self.threads < self._most
            self.threads += more
        if more:
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
