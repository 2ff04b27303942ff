"""Runs host calls under time limits: in order, or several at the same time.

A call that outlives its limit is abandoned with its thread, which cannot be killed but
ends with the process. The calls after it go on in a new thread. Seconds in which the
process was stopped do not count.

``call_with_limit`` makes calls one after another. ``InOrder`` and ``CallPool`` take
calls of many owners, one of each at a time, and give their results back; the first
makes them in the order in which they came, the second in several threads.
``RequestThreads`` makes calls that keep limits of their own, some at the same time.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import queue
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from mempo_jax.envs.base import described
from mempo_jax.envs.tools import AWAKE

PAUSE_S = 0.5  # between two looks at whether waiting should go on
# Calls that answer at once are waited for, so that what follows is the same each time:
# which turns are sampled together would otherwise depend on the threads' order.
GRACE_S = 0.005
MOST_STUCK = 256  # threads in calls that were given up; a thread takes memory
_HUNG = "expected an answer within {} s, got none; see config.env.step_timeout_s"


class HungCallError(TimeoutError):
    """A call gave no result: it took too long, or would have ended its thread."""


class StuckThreads:
    """Counts the threads of this process that are in calls that were given up.

    Attributes:
      count: how many there are now.
    """

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def change(self, by: int) -> None:
        """Counts threads.

        Args:
          by: 1 for a call that is given up, -1 for one of these that has returned.
        """
        with self._lock:
            self.count += by

    def refusal(self) -> HungCallError | None:
        """Returns why no further call may begin; None if it may."""
        if self.count < MOST_STUCK:
            return None
        why = f"{self.count} calls of environments have not returned"
        return HungCallError(f"{why}; see config.env.step_timeout_s")


STUCK = StuckThreads()


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
        if (refusal := STUCK.refusal()) is not None:
            return results + [refusal] * (len(calls) - len(results))
        worker = _Worker(calls[len(results) :])
        results += worker.results(limit_s, between)
    return results


class LimitedEnvironment:
    """An object, such as an environment, each of whose methods has a time limit.

    Args:
      env: what has the methods.
      limit_s: seconds for each call, after which it raises ``HungCallError``.
    """

    def __init__(self, env: Any, limit_s: float) -> None:
        self._env, self._limit = env, limit_s

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._env, name)
        if not callable(value):
            return value

        @functools.wraps(value)
        def limited(*args: Any, **named: Any) -> Any:
            call = functools.partial(value, *args, **named)
            (result,) = call_with_limit([call], self._limit)
            # An exception is how ``call_with_limit`` tells that a call failed.
            if isinstance(result, Exception):
                raise result
            return result

        return limited


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
    end = AWAKE.now() + limit_s
    while True:
        seconds_left = end - AWAKE.now()
        # Short waits, so that a signal or a failed peer is noticed while a call hangs.
        try:
            return results.get(timeout=max(0.0, min(seconds_left, PAUSE_S)))
        except queue.Empty:
            if AWAKE.now() >= end:
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
        self._stopped = self._over = self._counted = False
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
            if self._stopped and not self._over:
                self._counted = True
                STUCK.change(1)
            return self._stopped

    def _work(self) -> None:
        for call in self._calls:
            with self._lock:
                if self._stopped:
                    break
                self._begun += 1
            self._results.put(_outcome(call))
        with self._lock:
            self._over = True
            if self._counted:
                STUCK.change(-1)


def _outcome(call: Callable[[], Any]) -> Any:
    """What a call returned, or the exception that it raised."""
    try:
        return call()
    # Kept as a result: it belongs to one trajectory, and the calls of others go on.
    except Exception as error:
        return error
    # Such as SystemExit: it would end this thread, and its result be waited for.
    except BaseException as error:
        return HungCallError(f"expected an answer, got {described(error)}")


class Calls(Protocol):
    """Makes the calls of many owners, at most one of each at a time."""

    def start(
        self, owner: Hashable, call: Callable[[], Any], limited: bool = True
    ) -> None:
        """Takes a call and returns at once.

        Args:
          owner: whose call it is; none of its own is under way.
          call: what to call.
          limited: whether the time limit applies; False for a call that keeps limits
            of its own.
        """

    def take(
        self, between: Callable[[], None], *, block: bool
    ) -> list[tuple[Hashable, Any]]:
        """Results of calls that have ended, an exception in place of one that failed.

        Args:
          between: called now and then while waiting; what it raises is raised.
          block: whether to wait until there is one, if any call is under way.

        Returns:
          (owner, result) in the order in which the calls were taken.
        """

    def ready(self) -> bool:
        """Whether ``take`` would give a result at once."""

    def close(self) -> None:
        """Ends the threads that wait for calls; results are no longer taken."""

    def __len__(self) -> int:
        """How many calls have been taken and not given back."""


class InOrder:
    """``Calls`` that are made one after another, when their results are taken.

    Args:
      limit_s: seconds for each call.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit = limit_s
        self._taken: list[tuple[Hashable, Callable[[], Any], bool]] = []

    def start(
        self, owner: Hashable, call: Callable[[], Any], limited: bool = True
    ) -> None:
        """See ``Calls``."""
        self._taken.append((owner, call, limited))

    def take(
        self, between: Callable[[], None], *, block: bool
    ) -> list[tuple[Hashable, Any]]:
        """See ``Calls``; all that were taken are made now."""
        taken, self._taken = self._taken, []
        calls = [call for _, call, limited in taken if limited]
        results = iter(call_with_limit(calls, self._limit, between))
        return [
            (owner, next(results) if limited else call())
            for owner, call, limited in taken
        ]

    def ready(self) -> bool:
        """See ``Calls``."""
        return bool(self._taken)

    def close(self) -> None:
        """See ``Calls``."""

    def __len__(self) -> int:
        return len(self._taken)


@dataclasses.dataclass(eq=False)
class _Ticket:
    """A call that a ``CallPool`` has taken.

    Attributes:
      number: in the order of taking.
      owner, call, limited: see ``Calls.start``.
      began: when a thread began with it, by ``AWAKE``; None before.
      over: whether the call has returned, or has been given up.
    """

    number: int
    owner: Hashable
    call: Callable[[], Any]
    limited: bool
    began: float | None = None
    over: bool = False


class CallPool:
    """``Calls`` that are made in threads, ``workers`` of them at a time.

    A call that outlives its limit keeps its thread, and another one takes the thread's
    place. Threads are started when they are needed.

    Args:
      workers: the most calls at a time.
      limit_s: seconds for each call, from when it has begun.
    """

    def __init__(self, workers: int, limit_s: float) -> None:
        self._most, self._limit = workers, limit_s
        self._waiting: queue.SimpleQueue = queue.SimpleQueue()
        self._ended: queue.SimpleQueue = queue.SimpleQueue()
        self._open: dict[int, _Ticket] = {}
        self._lock = threading.Lock()
        self._threads = self._number = 0
        self._newest = -math.inf  # when the last call was taken
        self._closed = False

    def start(
        self, owner: Hashable, call: Callable[[], Any], limited: bool = True
    ) -> None:
        """See ``Calls``."""
        ticket = _Ticket(self._number, owner, call, limited)
        self._number += 1
        self._open[ticket.number] = ticket
        if (refusal := STUCK.refusal()) is not None:
            ticket.over = True
            self._ended.put((ticket, refusal))
            return
        self._newest = time.monotonic()
        self._waiting.put(ticket)
        if self._threads < min(self._most, len(self._open)):
            self._new_thread()

    def take(
        self, between: Callable[[], None], *, block: bool
    ) -> list[tuple[Hashable, Any]]:
        """See ``Calls``."""
        ended = self._drain(self._newest + GRACE_S - time.monotonic())
        while block and self._open and not ended:
            between()
            ended = self._drain(self._until_expiry())
        # Answers of the same moment come in any order, which must not decide what
        # follows.
        ended.sort(key=lambda pair: pair[0].number)
        return [(ticket.owner, result) for ticket, result in ended]

    def ready(self) -> bool:
        """See ``Calls``."""
        return not self._ended.empty() or bool(self._expired())

    def close(self) -> None:
        """See ``Calls``."""
        self._closed = True  # what has not begun never will
        for _ in range(self._threads):
            self._waiting.put(None)

    def __len__(self) -> int:
        return len(self._open)

    def _drain(self, wait_s: float) -> list[tuple[_Ticket, Any]]:
        """What has ended, after waiting so long at most for what is under way."""
        ended: list[tuple[_Ticket, Any]] = []
        until = time.monotonic() + wait_s
        while self._open:
            left = until - time.monotonic()
            try:
                # With a first result at hand only those of the same moment are awaited.
                left = max(0.0, min(left, GRACE_S) if ended else left)
                ticket, result = self._ended.get(timeout=left)
            except queue.Empty:
                break
            del self._open[ticket.number]
            ended.append((ticket, result))
        return ended + [(ticket, self._give_up(ticket)) for ticket in self._expired()]

    def _until_expiry(self) -> float:
        """Seconds until a call could be given up, at most those between two looks."""
        now = AWAKE.now()
        limited = [ticket for ticket in self._open.values() if ticket.limited]
        began = [ticket.began for ticket in limited if ticket.began is not None]
        left = min(began) + self._limit - now if began else PAUSE_S
        return min(max(left, 0.0), PAUSE_S)

    def _expired(self) -> list[_Ticket]:
        now = AWAKE.now()
        return [
            ticket
            for ticket in self._open.values()
            if ticket.limited
            and ticket.began is not None
            and not ticket.over
            and now - ticket.began > self._limit
        ]

    def _give_up(self, ticket: _Ticket) -> Any:
        """Leaves a call to itself; the result, if it came in at the last moment."""
        with self._lock:
            late, ticket.over = ticket.over, True
        if late:
            # Its thread has ended it meanwhile: the result is on its way.
            other, result = self._ended.get()
            while other is not ticket:
                self._ended.put((other, result))
                other, result = self._ended.get()
        else:
            result = HungCallError(_HUNG.format(self._limit))
            STUCK.change(1)
            self._threads -= 1
            self._new_thread()
        del self._open[ticket.number]
        return result

    def _new_thread(self) -> None:
        self._threads += 1
        # A daemon, so that a call that hangs for ever cannot keep the process alive.
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while (ticket := self._waiting.get()) is not None and not self._closed:
            ticket.began = AWAKE.now()
            result = _outcome(ticket.call)
            with self._lock:
                given_up, ticket.over = ticket.over, True
            if given_up:  # another thread has taken this one's place
                STUCK.change(-1)
                return
            self._ended.put((ticket, result))


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
