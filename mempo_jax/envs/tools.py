"""Calls of outside code, which may be slow, fail or hang, and draw random numbers.

A call has a time limit and is repeated a bounded number of times. One that fails for
good gives a ``ToolResult`` with an error in words, which an environment shows as its
observation instead of losing the trajectory. With ``deterministic`` the global random
numbers that a tool draws (``random``, ``numpy.random``) depend only on the seed that it
was made with and on its earlier calls, whatever else draws them.

``AWAKE`` is the clock of all limits of calls.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

BEAT_S = 0.5  # between two notes of the clock, and two looks at a call's end
GAP_S = 2.0  # a longer one is no load of the machine: the process was stopped
MAX_ERROR_CHARS = 160  # characters of an exception's message in an observation


@dataclasses.dataclass(frozen=True)
class ToolConfig:
    """Limits of a tool's calls.

    Attributes:
      timeout_s: time limit of one call, in seconds.
      retries: number of further calls after one that failed.
      deterministic: whether a tool draws from random numbers of its own.
    """

    timeout_s: float
    retries: int
    deterministic: bool

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise ValueError(
                f"config.env.tools.timeout_s: expected > 0 s, got {self.timeout_s}"
            )
        if not 0 <= self.retries <= 10:
            raise ValueError(
                f"config.env.tools.retries: expected 0 to 10, got {self.retries}"
            )

    @property
    def longest_s(self) -> float:
        """Seconds after which a tool has answered or failed for good."""
        return self.timeout_s * (1 + self.retries)


@dataclasses.dataclass(frozen=True)
class ToolResult:
    """Result of a call.

    Attributes:
      value: what the call returned; None after an error.
      error: "" if the call succeeded, else what went wrong, in words.
    """

    value: Any
    error: str


class HungToolError(TimeoutError):
    """A tool that keeps a state did not return: it cannot be used any more."""


class Tool:
    """Makes calls with limits; see the module docstring.

    Args:
      settings: the limits.
      seed: seed of its random numbers, if they are deterministic.
      stateful: whether a call that hangs leaves the state of the tool unknown; such a
        call is not repeated, and raises HungToolError.
    """

    def __init__(
        self, settings: ToolConfig, *, seed: int = 0, stateful: bool = False
    ) -> None:
        self._settings, self._stateful = settings, stateful
        self._draws = _Draws(seed) if settings.deterministic else None

    def __call__(self, function: Callable[..., Any], *args: Any) -> ToolResult:
        """Returns the result of ``function(*args)``, or why there is none.

        Raises:
          HungToolError: the tool is stateful and did not return in time.
        """
        error = ""
        for _ in range(1 + self._settings.retries):
            with self._draws.in_place() if self._draws else contextlib.nullcontext():
                outcome = _within(self._settings.timeout_s, function, args)
            if outcome is None:
                error = f"no answer within {self._settings.timeout_s:g} s"
                if self._stateful:
                    raise HungToolError(f"{error}; see config.env.tools.timeout_s")
                continue
            value, failure = outcome
            if failure is None:
                return ToolResult(value, "")
            message = " ".join(str(failure).split())[:MAX_ERROR_CHARS]
            error = f"{type(failure).__name__}: {message}".rstrip(": ")
        return ToolResult(None, error)


def _within(
    limit_s: float, function: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Any, Exception | None] | None:
    """Returns (value, None) or (None, exception); None if the time ran out.

    The call runs on a daemon thread: a call that hangs stays there, and ends with the
    process.
    """
    outcome: queue.SimpleQueue = queue.SimpleQueue()

    def work() -> None:
        try:
            outcome.put((function(*args), None))
        except Exception as error:
            outcome.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    end = AWAKE.now() + limit_s
    while (left := end - AWAKE.now()) > 0:
        with contextlib.suppress(queue.Empty):
            return outcome.get(timeout=min(left, BEAT_S))
    return None


class AwakeClock:
    """Seconds in which this process could run.

    While a process is stopped (SIGSTOP, Ctrl-Z) or the machine sleeps, the clock of the
    system goes on. A limit that counted those seconds would give up every call under
    way as soon as the process goes on, though none has had its time.

    A thread notes that time has passed twice a second; where it could not, nothing
    else could run either.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._awake = 0.0
        self._noted: float | None = None  # by the system's clock; None: no thread yet
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget_thread)

    def now(self) -> float:
        """Seconds since the first call."""
        with self._lock:
            if self._noted is None:
                self._noted = time.monotonic()
                threading.Thread(target=self._beat, daemon=True).start()
            return self._awake + self._since()

    def _since(self) -> float:
        """Seconds since the thread's last note, as far as it can have been awake."""
        return min(time.monotonic() - self._noted, GAP_S)

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_S)
            with self._lock:
                self._awake += self._since()
                self._noted = time.monotonic()

    def _forget_thread(self) -> None:
        # No thread lives on in a forked child, and a lock may be held there for ever.
        self._lock, self._noted = threading.Lock(), None


AWAKE = AwakeClock()


class _Draws:
    """States of the global random numbers, put in place for one call at a time."""

    def __init__(self, seed: int) -> None:
        self._own = (
            random.Random(seed).getstate(),
            # RandomState takes 32 bits.
            np.random.RandomState(seed % 2**32).get_state(),
        )

    # The states are those of the process: two threads in turn, or each would draw from
    # the other's.
    _one_at_a_time = threading.Lock()

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        with self._one_at_a_time:
            yield from self._in_place()

    def _in_place(self) -> Iterator[None]:
        # The global states are put back, so that the caller's own draws are unaffected.
        before = random.getstate(), np.random.get_state()
        random.setstate(self._own[0])
        np.random.set_state(self._own[1])
        try:
            yield
        finally:
            self._own = random.getstate(), np.random.get_state()
            random.setstate(before[0])
            np.random.set_state(before[1])
