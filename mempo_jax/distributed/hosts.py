"""Ending a run early: SIGTERM and Ctrl-C, and the places where a run obeys them.

A run asks its ``Stop`` at places where everything it would save is whole: between two
chunks of sampled tokens, between scored or accumulated micro-batches as long as the
step has changed no weights, and behind each step. A step that is left there is done
over, and as all of its draws are keyed, to the same end.

While nothing is unsaved the process ends at once, also amid a compilation, which
nothing else can interrupt. A second signal ends it at once in any case.

Several processes that run one program together, one for each host of a pod.

Each process samples on its own devices; the arrays of training lie on the devices of
all. What a process made on its host reaches the others by ``gather``, and from there on
all hold the same data and decide the same. So every process must come to each of these
functions alike. With one process none of them communicates.

A process that dies ends the others: at once where they wait for its arrays on a CPU,
else within HEARTBEAT_S and a little.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from mempo_jax.settings import ConfigError


class RunStopped(RuntimeError):
    """The run cannot go on; the message says what was seen and where to look."""


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


T = TypeVar("T")


class ProcessFailed(RunStopped):
    """One of several processes failed; its traceback, and then which one it was."""


AUTO = "auto"  # in place of an address: a TPU pod, Slurm and the like are asked for it
CONNECT_S = 300  # for the others to start
NOT_AUTO = "; elsewhere give --coordinator=HOST:PORT --processes=N --process=I"
MOST_PORT = 65_535
HEARTBEAT_S = 30  # without a sign of life a process counts as dead
MISSING_EXIT, ALONE_EXIT = 2, 3
CHUNK = 1 << 20  # bytes that all processes exchange at a time: one compiled program
# What a message of one line says in full; other errors travel with their traceback.
PLAIN = (ConfigError, RunStopped)
# These end the process that they come to, whatever the others do.
AT_ONCE = (KeyboardInterrupt, SystemExit)  # but not ``Stopped``


def start(
    coordinator: str,
    processes: int | None = None,
    process: int | None = None,
    *,
    connect_s: int = CONNECT_S,
) -> None:
    """Joins the other processes of this run; before anything touches a device.

    Args:
      coordinator: HOST:PORT at which process 0 listens; "auto" where the machines know
        of each other (TPU pods, Slurm, Open MPI); "" for a run of one process.
      processes: how many there are, with HOST:PORT.
      process: which of them this is, from 0, with HOST:PORT.

    Raises:
      ConfigError: half of that is given. Where the others do not come in time, the
        process ends with a message and exit code 2.
    """
    given = (processes, process)
    if not coordinator:
        if given != (None, None):
            raise ConfigError(
                "--processes and --process: expected --coordinator=HOST:PORT, where "
                "process 0 listens, beside them; leave all three out for one process"
            )
        return
    if coordinator != AUTO:
        _check_address(coordinator, processes, process)
    elif given != (None, None):
        raise ConfigError(
            "--coordinator=auto finds the number of processes itself: leave out "
            "--processes and --process, or give --coordinator=HOST:PORT"
        )
    # Its handler of SIGTERM would come before ours.
    jax.config.update("jax_enable_preemption_service", False)
    address = {} if coordinator == AUTO else {"coordinator_address": coordinator}
    if coordinator != AUTO:
        address["cluster_detection_method"] = "deactivate"
    try:
        with _limited(connect_s, coordinator, processes):
            jax.distributed.initialize(
                num_processes=processes,
                process_id=process,
                initialization_timeout=2 * connect_s,
                heartbeat_timeout_seconds=HEARTBEAT_S,
                shutdown_timeout_seconds=HEARTBEAT_S,
                **address,
            )
    except (RuntimeError, ValueError) as error:
        remedy = NOT_AUTO if coordinator == AUTO else ""
        raise ConfigError(f"--coordinator={coordinator}: {error}{remedy}") from error
    _check_devices()
    agree(False)  # now, as all are here: connections must come up together


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """Ends what ``start`` began: all processes take leave of each other and end alike.

    Where one fails alone it says why and ends at once, and so the others will.
    """
    try:
        yield
    except (*PLAIN, Stopped, SystemExit):
        _take_leave()
        raise
    except BaseException:
        if count() > 1:
            traceback.print_exc()
            sys.stderr.write(
                f"error: process {jax.process_index()} of {count()} cannot go on; "
                "perhaps another one ended before it. The others end as well; the "
                "same command continues from what is saved\n"
            )
            sys.stderr.flush()
            os._exit(ALONE_EXIT)  # taking leave would wait for the others
        raise
    _take_leave()


def _take_leave() -> None:
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def count() -> int:
    """How many processes run together."""
    return jax.process_count()


def primary() -> bool:
    """Whether this one speaks for all: it alone writes files."""
    return jax.process_index() == 0


def share(items: Sequence[T]) -> list[T]:
    """What of ``items`` this process takes: a run of neighbours, as many as others do
    or one more or less; the shares of all, in order, are ``items``."""
    index, whole = jax.process_index(), len(items)
    begin, end = (whole * n // count() for n in (index, index + 1))
    return list(items[begin:end])


def agree(flag: bool) -> bool:
    """True in all processes where one says True; waits for all of them."""
    if count() == 1:
        return bool(flag)
    return bool(multihost_utils.process_allgather(np.array([flag])).any())


def from_primary(work: Callable[[], T]) -> T:
    """Does ``work`` in process 0 alone; all get its result, or its exception."""
    return gather(lambda: work() if primary() else None)[0]


def on_primary(work: Callable[[], T]) -> T | None:
    """Does ``work`` in process 0, which keeps the result; its exception reaches all.

    For all that is written to files.
    """
    kept: list[T] = []
    gather(lambda: kept.append(work()) if primary() else None)
    return kept[0] if kept else None


def gather(work: Callable[[], T]) -> list[T]:
    """Each process does its own ``work``; all get the results of all, in order.

    Results travel pickled. They come from processes of the same run and user only.

    Raises:
      ProcessFailed: the work failed in some process; in all the same, with the first
        one's traceback on top. ConfigError and RunStopped travel as they are, and
        before all others what is no ``Exception``, such as ``stopping.Preempted``.
    """
    if count() == 1:
        return [work()]
    own: BaseException | None = None
    try:
        outcome = _packed(_Outcome(work(), None, ""))
    except BaseException as error:
        if isinstance(error, AT_ONCE) and not isinstance(error, Stopped):
            raise
        own, outcome = error, _failed(error)
    made = [pickle.loads(each) for each in _exchange(outcome)]
    failures = [(n, each) for n, each in enumerate(made) if each.told]
    if failures:
        _raise_first(failures, own)
    return [each.value for each in made]


class _Outcome(NamedTuple):
    """What one process tells of its work: a value, or an error in two forms."""

    value: Any
    error: bytes | None  # pickled, where it travels as it is
    told: str  # the traceback


def _failed(error: BaseException) -> bytes:
    travels = isinstance(error, PLAIN) or not isinstance(error, Exception)
    told = "".join(traceback.format_exception(error))
    return _packed(_Outcome(None, _packed(error) if travels else None, told))


def _packed(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _raise_first(
    failures: list[tuple[int, _Outcome]], own: BaseException | None
) -> NoReturn:
    carried = [
        (pickle.loads(each.error) if each.error else None, each.told, n)
        for n, each in failures
    ]
    stops = [each for each in carried if each[0] and not isinstance(each[0], Exception)]
    error, told, n = (stops or carried)[0]
    if error is not None:
        raise error from own
    raise ProcessFailed(f"{told}error: process {n} of {count()} failed") from own


def _exchange(data: bytes) -> list[bytes]:
    """The bytes of every process, in order; in chunks, so that one program serves."""
    sizes = multihost_utils.process_allgather(np.array([len(data)]))[:, 0]
    parts: list[list[bytes]] = [[] for _ in sizes]
    for begin in range(0, int(sizes.max()), CHUNK):
        chunk = np.zeros(CHUNK, np.uint8)
        piece = np.frombuffer(data[begin : begin + CHUNK], np.uint8)
        chunk[: len(piece)] = piece
        for part, received in zip(parts, multihost_utils.process_allgather(chunk)):
            part.append(received.tobytes())
    return [b"".join(part)[:size] for part, size in zip(parts, sizes)]


@contextlib.contextmanager
def _limited(limit_s: float, coordinator: str, processes: int | None) -> Iterator[None]:
    """Ends the process with one line where the others do not come; left to itself JAX
    ends it too, with a stack of its own calls."""

    def give_up() -> None:
        sys.stderr.write(
            f"error: --coordinator={coordinator}: expected all "
            f"{processes or ''} processes there within {limit_s:g} s; is the command "
            "running on every host, each with its own --process, and can they reach "
            "that address?\n"
        )
        sys.stderr.flush()
        os._exit(MISSING_EXIT)

    timer = threading.Timer(limit_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _check_address(coordinator: str, processes: int | None, process: int | None):
    host, _, port = coordinator.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) <= MOST_PORT):
        raise ConfigError(
            f"--coordinator={coordinator}: expected HOST:PORT, where process 0 "
            f"listens (a port from 1 to {MOST_PORT}), or auto"
        )
    if processes is None or process is None:
        raise ConfigError(
            f"--coordinator={coordinator}: expected --processes=N and --process=I, "
            "from 0 to N - 1, beside it"
        )
    if processes < 1:
        raise ConfigError(f"--processes={processes}: expected at least 1")
    if not 0 <= process < processes:
        raise ConfigError(
            f"--process={process}: expected 0 to {processes - 1}, as --processes="
            f"{processes} says"
        )


def _check_devices() -> None:
    own, all_ = jax.local_device_count(), jax.device_count()
    if own * count() != all_:
        raise ConfigError(
            f"process {jax.process_index()} has {own} devices, {count()} processes "
            f"have {all_}: expected the same number in each"
        )
