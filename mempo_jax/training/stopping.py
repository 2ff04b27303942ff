"""Ending a run early: SIGTERM and Ctrl-C, and the places where a run obeys them.

A run asks its ``Stop`` at places where everything it would save is whole: between two
chunks of sampled tokens, between scored or accumulated micro-batches as long as the
step has changed no weights, and behind each step. A step that is left there is done
over, and as all of its draws are keyed, to the same end.

While nothing is unsaved the process ends at once, also amid a compilation, which
nothing else can interrupt. A second signal ends it at once in any case.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(BaseException):
    """The run ends here, by request.

    No Exception, like KeyboardInterrupt: it may be raised within any call, and what
    guards that call against faults must let it pass.
    """


class Preempted(Stopped):
    """By SIGTERM, of this process or of another one of the run."""


class Interrupted(Stopped, KeyboardInterrupt):
    """By Ctrl-C."""


class Stop:
    """Whether a run is to end early. Without a listener it answers signals itself,
    within ``unsaved`` and on the main thread only.

    leave: ends the process now; given the signal's number and whether it was a second
    one. None: no listener.
    """

    def __init__(self, leave: Callable[[int, bool], None] | None = None) -> None:
        self._leave = leave
        self._agree: Callable[[bool], bool] | None = None
        self._number: int | None = None
        self._unsaved = False
        self._lock = threading.RLock()

    def share(self, agree: Callable[[bool], bool]) -> None:
        """Several processes run together: from now on they decide alike.

        Args:
          agree: whether the flag is up in any process; each must call it equally often.
        """
        self._agree = agree

    @property
    def requested(self) -> bool:
        """Whether this process was asked to end, whatever the others know."""
        return self._number is not None

    @property
    def number(self) -> int:
        """Of the signal that came, SIGTERM where another process of the run got it."""
        return self._number or signal.SIGTERM

    def request(self, number: int) -> None:
        """A signal came; see the module docstring."""
        with self._lock:
            again, self._number = self.requested, self._number or number
            alone = self._agree is None
            if self._leave is not None and (again or (alone and not self._unsaved)):
                self._leave(number, again)

    def check(self) -> None:
        """Raises Preempted or Interrupted if the run ends here.

        With several processes: at places that all of them pass equally often.
        """
        asked = self.requested
        if self._agree is not None:
            asked = self._agree(asked)
        if asked:
            self._raise()

    def _raise(self) -> NoReturn:
        kind = Interrupted if self.number == signal.SIGINT else Preempted
        raise kind("stopped with nothing unsaved")

    def check_alone(self) -> None:
        """``check`` for places that each of several processes passes at its own pace,
        within ``processes.gather``: that tells the others of what is raised here."""
        if self.requested:
            self._raise()

    @contextlib.contextmanager
    def unsaved(self) -> Iterator[None]:
        """Within it there is something to save: signals wait for the next ``check``.

        Whoever leaves it has saved that, and ends where a signal came since.
        """
        with self._handlers(), self._holding():
            yield
        self.check()

    @contextlib.contextmanager
    def _holding(self) -> Iterator[None]:
        with self._lock:
            self._unsaved = True
        try:
            yield
        finally:
            with self._lock:
                self._unsaved = False

    @contextlib.contextmanager
    def _handlers(self) -> Iterator[None]:
        main = threading.current_thread() is threading.main_thread()
        if self._leave is not None or not main:
            yield
            return
        at_once = dict(zip(SIGNALS, (signal.SIG_DFL, signal.default_int_handler)))

        def on_signal(number: int, frame: Any) -> None:
            self.request(number)
            for each, handler in at_once.items():
                signal.signal(each, handler)

        with _handled(on_signal):
            yield


@contextlib.contextmanager
def listening(leave: Callable[[int, bool], None]) -> Iterator[Stop]:
    """A Stop that hears signals on a thread of its own: at once, whatever the main
    thread is at. Python runs handlers on the main thread only, between two of its
    instructions, and a compilation can be one instruction of a minute.

    Args:
      leave: see ``Stop``; called on that thread.
    """
    stop = Stop(leave)
    out, into = os.pipe()
    os.set_blocking(into, False)

    def hear() -> None:
        while number := os.read(out, 1):
            if number[0] in SIGNALS:
                stop.request(number[0])

    thread = threading.Thread(target=hear, name="signals", daemon=True)
    thread.start()
    with _handled(lambda number, frame: None):
        before = signal.set_wakeup_fd(into, warn_on_full_buffer=False)
        try:
            yield stop
        finally:
            signal.set_wakeup_fd(before)
            os.close(into)  # ends the thread
            thread.join()
            os.close(out)


@contextlib.contextmanager
def _handled(handler: Callable[[int, Any], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
