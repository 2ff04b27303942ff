"""Several processes as one run, and the ending of a run before its time.

**Processes.** With several hosts (a pod), one process runs on each. Each samples on its
own devices; the arrays of training are spread over the devices of all. What a process
computed on its host reaches the others by ``gather``, and from there on all hold the
same data and make the same decisions. So every process must come to each of these
functions in the same order. With one process none of them communicates. A process that
dies ends the others: at once if they wait for its arrays on a CPU, else within
HEARTBEAT_S and a little.

**Stopping.** A run checks its ``Stop`` for SIGTERM and Ctrl-C at places where all that
it would save is complete: between two chunks of sampled tokens, between scored or
accumulated micro-batches as long as the step has changed no weights, and after each
step. A step that is left there is done again later, and since all of its draws are
keyed, with the same result. While nothing is unsaved the process ends at once, also
during a compilation, which nothing else can interrupt. A second signal ends it at once
in any case.
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

AUTO = "auto"  # instead of an address: TPU pods, Slurm and the like know it themselves
CONNECT_S = 300  # for the others to start; hosts of a pod may start minutes apart
NOT_AUTO = "; elsewhere give --coordinator=HOST:PORT --processes=N --process=I"
MOST_PORT = 65_535
HEARTBEAT_S = 30  # a process that is silent for so long counts as dead
MISSING_EXIT, ALONE_EXIT = 2, 3  # exit codes: the others did not come; one failed
# Bytes that all processes exchange at a time. One size for all messages, so that one
# compiled program serves.
CHUNK = 1 << 20
SIGNALS = (signal.SIGTERM, signal.SIGINT)
T = TypeVar("T")


class RunStopped(RuntimeError):
    """The run cannot go on; the message says what was seen and where to look."""


class Stopped(BaseException):
    """The run ends here, by request.

    Like KeyboardInterrupt it is no Exception: it may be raised within any call, and
    what guards that call against faults must let it pass.
    """


class Preempted(Stopped):
    """The run ends by SIGTERM, sent to this process or to another one of the run."""


class Interrupted(Stopped, KeyboardInterrupt):
    """The run ends by Ctrl-C."""


# Errors whose message of one line says everything; others travel with a traceback.
PLAIN = (ConfigError, RunStopped)
# These end the process that they come to, whatever the others do.
AT_ONCE = (KeyboardInterrupt, SystemExit)  # but not ``Stopped``


class Stop:
    """Knows whether a run is to end early.

    Without a listener (see ``listening``) it handles signals itself, within ``unsaved``
    and on the main thread only.
    """

    def __init__(self, leave: Callable[[int, bool], None] | None = None) -> None:
        """Makes one that nobody has asked to stop.

        Args:
          leave: ends the process now; called with the signal's number and whether it is
            a second one. None: there is no listener.
        """
        self._leave = leave
        self._agree: Callable[[bool], bool] | None = None
        self._number: int | None = None
        self._unsaved = False
        self._lock = threading.RLock()

    def share(self, agree: Callable[[bool], bool]) -> None:
        """Makes several processes stop together from now on.

        Args:
          agree: flag of this process -> whether any process raised its flag; each must
            call it equally often.
        """
        self._agree = agree

    @property
    def requested(self) -> bool:
        """Whether a signal came to this process, whatever the others know."""
        return self._number is not None

    @property
    def number(self) -> int:
        """The signal that came; SIGTERM if it came to another process of the run."""
        return self._number or signal.SIGTERM

    def request(self, number: int) -> None:
        """Handles a signal as the module docstring says.

        Args:
          number: of the signal.
        """
        with self._lock:
            again, self._number = self.requested, self._number or number
            alone = self._agree is None
            if self._leave is not None and (again or (alone and not self._unsaved)):
                self._leave(number, again)

    def check(self) -> None:
        """Ends the run here if it is to end; else does nothing.

        With several processes, all must call it equally often.

        Raises:
          Preempted, Interrupted: by which signal it ends.
        """
        stopping = self.requested
        if self._agree is not None:
            stopping = self._agree(stopping)
        if stopping:
            self._raise()

    def _raise(self) -> NoReturn:
        kind = Interrupted if self.number == signal.SIGINT else Preempted
        raise kind("stopped with nothing unsaved")

    def check_alone(self) -> None:
        """``check`` for places that each process passes at its own pace.

        To be called within ``hosts.gather``, which brings what is raised here to the
        other processes.
        """
        if self.requested:
            self._raise()

    @contextlib.contextmanager
    def unsaved(self) -> Iterator[None]:
        """While it is open there is something to save: signals wait for a ``check``.

        At its end everything has been saved, and the run ends if a signal came.
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
        """Handles the first signal, and leaves a second one to end the process."""
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
    """A Stop that hears signals on a thread of its own, so at once.

    Python runs handlers on the main thread only, between two of its instructions, and a
    compilation can be one instruction that takes a minute.

    Args:
      leave: see ``Stop``; called on that thread.

    Yields:
      The Stop.
    """
    stop = Stop(leave)
    out, into = os.pipe()
    os.set_blocking(into, False)  # Python refuses a wakeup descriptor that blocks

    def hear() -> None:
        while number := os.read(out, 1):
            if number[0] in SIGNALS:
                stop.request(number[0])

    thread = threading.Thread(target=hear, name="signals", daemon=True)
    thread.start()
    # Without a handler of Python's own, nothing is written into the pipe.
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
    """Handles SIGNALS with ``handler``, and puts the old handlers back at the end."""
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class ProcessFailed(RunStopped):
    """One of several processes failed; the message is its traceback and its number."""


def start(
    coordinator: str,
    processes: int | None = None,
    process: int | None = None,
    *,
    connect_s: int = CONNECT_S,
) -> None:
    """Joins the other processes of this run; to be called before any use of a device.

    If the others do not come in time, the process ends with a message and exit code 2.

    Args:
      coordinator: HOST:PORT at which process 0 listens; "auto" if the machines know
        of each other (TPU pods, Slurm, Open MPI); "" for a run of one process.
      processes: how many there are, with HOST:PORT.
      process: which of them this is, from 0, with HOST:PORT.
      connect_s: seconds to wait for the others.

    Raises:
      ConfigError: only part of that is given, or it does not fit.
    """
    numbers = (processes, process)
    if not coordinator:
        if numbers != (None, None):
            raise ConfigError(
                "--processes and --process: expected --coordinator=HOST:PORT, where "
                "process 0 listens, beside them; leave all three out for one process"
            )
        return
    if coordinator != AUTO:
        _check_address(coordinator, processes, process)
    elif numbers != (None, None):
        raise ConfigError(
            "--coordinator=auto finds the number of processes itself: leave out "
            "--processes and --process, or give --coordinator=HOST:PORT"
        )
    # JAX's preemption service would handle SIGTERM before ``Stop`` does.
    jax.config.update("jax_enable_preemption_service", False)
    address = {} if coordinator == AUTO else {"coordinator_address": coordinator}
    if coordinator != AUTO:
        # What was given counts: no scheduler is asked.
        address["cluster_detection_method"] = "deactivate"
    try:
        with _limited(connect_s, coordinator, processes):
            jax.distributed.initialize(
                num_processes=processes,
                process_id=process,
                initialization_timeout=2 * connect_s,  # ``_limited`` comes first
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
    """Ends what ``start`` began: all processes disconnect and end alike.

    A process that fails alone prints why and ends at once, and so will the others.
    """
    try:
        yield
    except (*PLAIN, Stopped, SystemExit):
        _disconnect()
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
            os._exit(ALONE_EXIT)  # to disconnect would wait for the others
        raise
    _disconnect()


def _disconnect() -> None:
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def count() -> int:
    """How many processes run together."""
    return jax.process_count()


def primary() -> bool:
    """Whether this process is the one that writes files and prints for all."""
    return jax.process_index() == 0


def share(items: Sequence[T]) -> list[T]:
    """This process's share of the work: neighbours, of nearly equal number everywhere.

    Args:
      items: the same in every process; the shares of all, in order, are ``items``.
    """
    index, total = jax.process_index(), len(items)
    begin, end = (total * n // count() for n in (index, index + 1))
    return list(items[begin:end])


def agree(flag: bool) -> bool:
    """True in all processes if it is True in any; waits for all of them.

    Args:
      flag: of this process.
    """
    if count() == 1:
        return bool(flag)
    return bool(multihost_utils.process_allgather(np.array([flag])).any())


def from_primary(work: Callable[[], T]) -> T:
    """Does ``work`` in process 0 alone; all get its result, or its exception.

    Args:
      work: its result must be one that can be pickled.
    """
    return gather(lambda: work() if primary() else None)[0]


def on_primary(work: Callable[[], T]) -> T | None:
    """Does ``work`` in process 0, for its effects; its exception reaches all.

    Everything that is written to files goes through this.

    Args:
      work: what to do.

    Returns:
      Its result in process 0, None in the others.
    """
    results: list[T] = []
    gather(lambda: results.append(work()) if primary() else None)
    return results[0] if results else None


def gather(work: Callable[[], T]) -> list[T]:
    """Each process does its own ``work``; all get the results of all, in order.

    Results are sent pickled. They come from processes of the same run and user only.

    Args:
      work: what this process does.

    Raises:
      ProcessFailed: the work failed in some process. All raise the same, with the
        traceback of the first that failed. ConfigError and RunStopped are raised as
        they are; what is no ``Exception``, such as ``Preempted``, goes before all.
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
    outcomes = [pickle.loads(each) for each in _exchange(outcome)]
    failures = [(n, each) for n, each in enumerate(outcomes) if each.traceback]
    if failures:
        _raise_first(failures, own)
    return [each.value for each in outcomes]


class _Outcome(NamedTuple):
    """The outcome of one process's work: a value, or an error in two forms."""

    value: Any
    error: bytes | None  # pickled, if all are to raise it as it is
    traceback: str  # empty without an error


def _failed(error: BaseException) -> bytes:
    travels = isinstance(error, PLAIN) or not isinstance(error, Exception)
    trace = "".join(traceback.format_exception(error))
    return _packed(_Outcome(None, _packed(error) if travels else None, trace))


def _packed(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _raise_first(
    failures: list[tuple[int, _Outcome]], own: BaseException | None
) -> NoReturn:
    """Raises the first failure, the same in all processes; a request to stop first."""
    errors = [
        (pickle.loads(each.error) if each.error else None, each.traceback, n)
        for n, each in failures
    ]
    stops = [each for each in errors if each[0] and not isinstance(each[0], Exception)]
    error, trace, n = (stops or errors)[0]
    if error is not None:
        raise error from own
    raise ProcessFailed(f"{trace}error: process {n} of {count()} failed") from own


def _exchange(data: bytes) -> list[bytes]:
    """The bytes of every process, in order; all take part for as long as the longest
    message lasts."""
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
    """Ends the process with one line if the others do not come in time. JAX would end
    it too, but with a stack of its own calls."""

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
    """Raises ConfigError unless all processes have the same number of devices."""
    own, all_ = jax.local_device_count(), jax.device_count()
    if own * count() != all_:
        raise ConfigError(
            f"process {jax.process_index()} has {own} devices, {count()} processes "
            f"have {all_}: expected the same number in each"
        )
