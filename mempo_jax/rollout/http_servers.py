"""The servers behind an HTTP engine: who is asked, and how weights reach them all.

A request goes to the server with the fewest requests under way. One that fails is tried
again, on another server if there is one, with the same seed. A server that cannot be
reached, or that fails several times in a row, is set aside. After a while it is looked
at again, and it gets no request before it has been given the current weights. A server
that does not take new weights is set aside too.

New weights reach a server as files that it is asked to read: a whole model
(``DirectoryPublisher``), or the adapters alone (``AdapterPublisher``).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import fcntl
import functools
import hashlib
import pathlib
import queue
import shutil
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import jax

from mempo_jax.rollout.http_client import (
    Call,
    JsonClient,
    ServerError,
    ServerFaultError,
    check_served,
    filled,
    served_names,
)
from mempo_jax.rollout.sampler import Counters

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
FAULTS_IN_A_ROW = 3  # of a server that still takes connections, before it is set aside
AGAIN_S = 30.0  # from setting a server aside to looking at it again
ANSWER_S = 5.0  # for its list of models, which a server that is well sends at once
NOT_FOUND = 404
WEIGHTS = "model.safetensors"
LOCK = "mempo.lock"
T = TypeVar("T")


class Publisher(Protocol):
    """Brings weights to servers, see ``DirectoryPublisher``."""

    @property
    def served_as(self) -> str:
        """The name under which servers have what was written; "": the model's own."""

    def write(self, params: Any) -> None:
        """Writes weights where servers can read them.

        With several processes each must call it.

        Args:
          params: parameters of the model.

        Raises:
          ServerError: another process publishes in the same place.
        """

    def send(self, client: JsonClient) -> None:
        """Returns when a server has read what was written last.

        Args:
          client: of the server.

        Raises:
          ServerError: it did not.
        """


@dataclasses.dataclass
class ServerCounters(Counters):
    """Work done by servers.

    Attributes:
      server_faults: tries of requests that failed, most of them to be tried again.
      servers_set_aside: how often a server was set aside.
    """

    server_faults: int = 0
    servers_set_aside: int = 0


class Servers:
    """One or more servers of the same policy; requests may come from any thread.

    A server that is alone is set aside only if it has lost its adapters: there is
    nobody to ask in its place, so it is tried again as it is.

    Args:
      clients: one for each server.
      model: the name under which all of them serve the policy.
      publisher: brings them weights; None: they keep those they have.
      from_primary: work -> its result, done in the first of several processes and told
        to all of them; ``hosts.from_primary`` for a run.

    Attributes:
      counters: ``server_faults`` and ``servers_set_aside`` are counted here, the rest
        by the engine.
    """

    def __init__(
        self,
        clients: Sequence[JsonClient],
        model: str,
        publisher: Publisher | None = None,
        *,
        from_primary: Callable[[Callable[[], T]], T] = lambda work: work(),
    ) -> None:
        self._servers = [_Server(n, client) for n, client in enumerate(clients)]
        self._asked = list(self._servers)  # those that requests may go to
        self._model, self._publisher = model, publisher
        self._from_primary = from_primary
        self._lock = threading.Lock()  # of the counts, and of who is set aside
        self.counters = ServerCounters()

    @property
    def publishes(self) -> bool:
        """Whether the servers are given new weights."""
        return self._publisher is not None

    @property
    def model(self) -> str:
        """The name that requests must give."""
        published = self._publisher.served_as if self._publisher else ""
        return published or self._model

    @property
    def set_aside(self) -> list[str]:
        """Addresses of the servers that get no requests at the moment."""
        return [server.client.url for server in self._servers if server.aside]

    def check(self) -> None:
        """Asks each server once for the names it serves; this changes nothing there.

        Raises:
          ServerError: one does not answer, or does not serve the model.
        """
        for server in self._servers:
            check_served(server.client, self._model)

    @contextlib.contextmanager
    def one_by_one(self) -> Iterator[Iterator[str]]:
        """Sends requests to one server after the other, to see what each answers.

        Yields:
          An iterator over the addresses: requests go to the server whose address came
          last.
        """

        def each() -> Iterator[str]:
            for server in self._servers:
                self._asked = [server]
                yield server.client.url

        try:
            yield each()
        finally:
            self._asked = list(self._servers)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Returns the JSON answer of one of the servers.

        There is one try for each server, and the client's ``retries`` besides.

        Args:
          path: with its leading slash.
          body: names the model.

        Raises:
          ServerFaultError: all tries failed; the message says how the last one did.
          ServerError: a server refuses the request.
        """
        asked = list(self._asked)
        tries = asked[0].client.retries + len(asked)
        faults: dict[_Server, ServerFaultError] = {}
        failed: collections.Counter[_Server] = collections.Counter()
        for _ in range(tries):
            server = self._take(asked, failed)
            try:
                self._pause(server, failed[server], faults.get(server))
                return self._ask(server, path, body, alone=len(asked) == 1)
            except ServerFaultError as error:
                faults[server] = fault = error
                failed[server] += 1
            finally:
                with self._lock:
                    server.under_way -= 1
        raise server.client.gave_up("POST", path, fault, tries) from fault

    def publish(self, params: Any, *, all_must: bool = False) -> None:
        """Publishes parameters; returns when the servers that are well have read them.

        With several processes each must call it: the first one writes and asks the
        servers, and all wait for it.

        Args:
          params: parameters of the model.
          all_must: refuse to go on without one of the servers.

        Raises:
          ServerError: no server read them, or one did not that must.
        """
        if self._publisher is None:
            return
        with contextlib.ExitStack() as locks:
            # Nothing is brought back meanwhile: the files may be half written.
            for server in self._servers:
                locks.enter_context(server.bringing_back)
            self._publisher.write(params)
            errors = self._from_primary(functools.partial(self._send_all, all_must))
        refused = [error for error in errors if error]
        lost = len(refused) == len(errors)
        for server, error in zip(self._servers, errors, strict=True):
            if error and not lost:
                self._set_aside(server, error)
            elif not error:
                self._put_back(server)
        if lost or (all_must and refused):
            raise ServerError(refused[0])

    def _send_all(self, all_must: bool) -> list[str]:
        """Has all servers read the weights at once; an error for each, "" if it did."""
        now = time.monotonic()
        waits = [bool(s.aside) and now < s.again_at for s in self._servers]
        # A dead server costs its time limit, which not every update should wait for.
        skips = [w and not all_must and not all(waits) for w in waits]
        if len(self._servers) == 1:
            return [self._send(self._servers[0])]
        done: queue.SimpleQueue = queue.SimpleQueue()

        def send(server: _Server) -> None:
            done.put((server.number, self._send(server)))

        errors = [server.aside for server in self._servers]
        asked = [s for s, skip in zip(self._servers, skips, strict=True) if not skip]
        for server in asked:
            # Daemons: an exit must not wait for a server that hangs.
            threading.Thread(target=send, args=(server,), daemon=True).start()
        for _ in asked:
            number, errors[number] = done.get()
        return errors

    def _send(self, server: _Server) -> str:
        try:
            if server.aside:
                check_served(server.client, self._model, most_s=ANSWER_S)
            if self._publisher is not None:
                self._publisher.send(server.client)
        except ServerError as error:
            server.again_at = time.monotonic() + AGAIN_S
            return str(error)
        return ""

    def _take(self, asked: list[_Server], failed: dict[_Server, int]) -> _Server:
        """Chooses a server for one try, and counts the try as under way."""
        now = time.monotonic()

        def reluctance(server: _Server) -> tuple:
            busy = server.busy_until > now
            # Equally busy ones take turns; the number makes the choice definite.
            load = server.under_way, server.asked, server.number
            # What costs most comes first: a dead server costs a time limit.
            return (bool(server.aside), failed[server], busy, *load)

        with self._lock:
            server = min(asked, key=reluctance)
            server.under_way += 1
            server.asked += 1
            due = [s for s in asked if s.aside and s.again_at <= now and s != server]
            for other in due:
                other.again_at = now + AGAIN_S
        # In threads, as the request can go on without them.
        for other in due:
            threading.Thread(target=self._try_back, args=(other,), daemon=True).start()
        return server

    @staticmethod
    def _pause(server: _Server, failed: int, fault: ServerFaultError | None) -> None:
        """Leaves a server alone that failed just now, or that asked for it."""
        own = server.client.pause_s(failed, fault) if fault is not None else 0.0
        if (pause_s := max(own, server.busy_until - time.monotonic())) > 0:
            time.sleep(pause_s)

    def _ask(
        self, server: _Server, path: str, body: dict[str, Any], *, alone: bool
    ) -> Any:
        """Makes one try; counts it, and sets the server aside if that is due."""
        try:
            if server.aside:
                self._bring_back(server)
            content = self._post_again(server, path, body)
        except ServerFaultError as error:
            with self._lock:
                self.counters.server_faults += 1
                server.faults += not error.busy
                # For all requests: the server asked to be left alone.
                server.busy_until = time.monotonic() + error.asked_pause_s
                broken = error.lost or server.faults >= FAULTS_IN_A_ROW
            if broken and not error.busy and not alone:
                self._set_aside(server, str(error))
            raise
        # Faults in a row: a bad request now and then is no broken server.
        server.faults = 0
        return content

    def _post_again(self, server: _Server, path: str, body: dict[str, Any]) -> Any:
        """Posts to a server, once more if it had lost the adapters of the run."""
        try:
            return server.client.post_once(path, body)
        except ServerError as error:
            has_adapters = body["model"] == self.model != self._model
            if error.status != NOT_FOUND or not has_adapters:
                raise
            # Only a server that started anew does not know them.
            self._set_aside(server, str(error))
        self._bring_back(server)
        return server.client.post_once(path, body)

    def _try_back(self, server: _Server) -> None:
        # It stays aside, and whoever needs it meets the error again.
        with contextlib.suppress(ServerError):
            self._bring_back(server)

    def _bring_back(self, server: _Server) -> None:
        """Gives a server that was set aside the current weights, and then requests.

        Raises:
          ServerFaultError: it cannot be reached, or does not take them.
        """
        began = time.monotonic()
        with server.bringing_back:
            if not server.aside:
                return  # another thread did it meanwhile
            # Another thread may have tried in vain while this one waited for it.
            if server.failed_at < began and (error := self._send(server)):
                server.aside, server.failed_at = error, time.monotonic()
            if server.failed_at >= began:
                raise ServerFaultError(server.aside)
            self._put_back(server)

    def _set_aside(self, server: _Server, why: str) -> None:
        with self._lock:
            known, server.aside = bool(server.aside), why
            if not known:
                server.again_at = time.monotonic() + AGAIN_S
                self.counters.servers_set_aside += 1
        if not known:
            warnings.warn(
                f"{server.client.url} gets no requests for now, and is looked at again "
                f"every {AGAIN_S:g} s: {why}",
                stacklevel=2,
            )

    def _put_back(self, server: _Server) -> None:
        with self._lock:
            server.aside, server.faults, server.busy_until = "", 0, 0.0


@dataclasses.dataclass(eq=False)
class _Server:
    """One server, and what was seen of it.

    aside: why it gets no requests; "" if it gets some. again_at: when it may be looked
    at again. busy_until: when it wants requests again. faults: in a row.
    """

    number: int
    client: JsonClient
    under_way: int = 0
    asked: int = 0
    faults: int = 0
    aside: str = ""
    again_at: float = 0.0
    failed_at: float = -1.0
    busy_until: float = 0.0
    bringing_back: Any = dataclasses.field(default_factory=threading.Lock)


class DirectoryPublisher:
    """Writes the policy's weights, for servers that read them from that directory.

    From its first call on, other processes' publishers are kept out of the directory:
    the servers would otherwise serve one run's weights to the other.

    Args:
      directory: written anew with every call; used by this program alone.
      save: writes parameters as a Hugging Face directory.
      calls: made in order to each server; "{directory}" in a body becomes the absolute
        path.
      timeout_s: seconds for each of these calls.

    Attributes:
      served_as: "", as the weights are those of the model itself.
    """

    served_as = ""

    def __init__(
        self,
        directory: pathlib.Path,
        save: Callable[[pathlib.Path, Any], None],
        calls: Sequence[Call],
        timeout_s: float,
    ) -> None:
        self._directory, self._save = directory.absolute(), save
        self._calls, self._timeout = tuple(calls), timeout_s
        self._own = _Ownership(self._directory)

    def write(self, params: Any) -> None:
        """Writes parameters, see ``Publisher``.

        Args:
          params: parameters of the model.

        Raises:
          ServerError: another process publishes here.
        """
        self._own.claim()
        self._save(self._directory, params)

    def send(self, client: JsonClient) -> None:
        """Has a server read what was written, see ``Publisher``.

        Args:
          client: of the server.

        Raises:
          ServerError: it did not read them.
        """
        for call in self._calls:
            body = filled(call.body, str(self._directory))
            content = client.post(call.path, body, timeout_s=self._timeout)
            # A server may report a failed update in its body alone, with status 200.
            if isinstance(content, dict) and content.get("success") is False:
                raise ServerError(
                    f"POST {client.url}{call.path}: the server did not take the "
                    f"new weights: {str(content)[:300]}"
                )


class AdapterPublisher:
    """Writes low-rank adapters alone, each time under a name of their own.

    The name holds a digest of the files. A server that has missed an update so refuses
    requests for it, where it would answer with the old adapters if all had one name;
    and what it has computed for a context under other adapters cannot be taken for
    theirs (vLLM finds its prefix cache by name and path).

    Args:
      directory: holds one directory for each of the last adapters; used by this program
        alone.
      save: writes the adapters among parameters as a directory that `peft` reads.
      model: the name under which the servers serve the base.
      timeout_s: seconds for a server to load adapters.
      from_primary: as for ``Servers``.

    Attributes:
      served_as: the name of the adapters that were written last.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        save: Callable[[pathlib.Path, Any], None],
        model: str,
        timeout_s: float,
        from_primary: Callable[[Callable[[], str]], str] = lambda work: work(),
    ) -> None:
        self._directory, self._save = directory.absolute(), save
        self._timeout, self._from_primary = timeout_s, from_primary
        # Runs with directories of their own can share a server.
        own = zlib.crc32(str(self._directory).encode())
        self._prefix = f"{model}-{own:08x}-"
        self._own = _Ownership(self._directory)
        self.served_as = ""

    def write(self, params: Any) -> None:
        """Writes the adapters, see ``Publisher``.

        Args:
          params: all parameters, whole in each process.

        Raises:
          ServerError: another process publishes here.
        """
        self.served_as = self._from_primary(lambda: self._write(params))

    def _write(self, params: Any) -> str:
        self._own.claim()
        fresh = self._directory / "new"
        shutil.rmtree(fresh, ignore_errors=True)  # of a process that was killed
        self._save(fresh, params)
        digest = hashlib.sha256()
        for file in sorted(fresh.iterdir()):
            digest.update(file.read_bytes())
        name = self._prefix + digest.hexdigest()[:16]
        if (self._directory / name).exists():
            shutil.rmtree(fresh)  # the same files are there, perhaps in use
        else:
            fresh.rename(self._directory / name)
        # A server that is still busy with a cancelled request may read the adapters of
        # before once more.
        kept = {name, self.served_as}
        for path in self._directory.glob(f"{self._prefix}*"):
            if path.name not in kept:
                shutil.rmtree(path)
        return name

    def send(self, client: JsonClient) -> None:
        """Has a server load the adapters and forget older ones, see ``Publisher``.

        Args:
          client: of the server.

        Raises:
          ServerError: it did not load them.
        """
        names = served_names(client)
        if self.served_as in names:
            return
        for name in names:
            if name.startswith(self._prefix):
                # Not needed for anything but room: one that is gone already is fine.
                with contextlib.suppress(ServerError):
                    self._post(client, UNLOAD, {"lora_name": name})
        path = str(self._directory / self.served_as)
        try:
            self._post(client, LOAD, {"lora_name": self.served_as, "lora_path": path})
        except ServerError as error:
            raise ServerError(
                f"{error}; to load adapters, vLLM must see {self._directory} and be "
                "started with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and a "
                "--max-lora-rank of at least config.policy.lora.rank"
            ) from error

    def _post(self, client: JsonClient, path: str, body: Any) -> None:
        # vLLM answers with a sentence, not with JSON.
        client.post(path, body, timeout_s=self._timeout, reads_json=False)


class _Ownership:
    """Keeps other processes' publishers out of a directory."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._lock: Any = None  # an open file; the system frees it with the process

    def claim(self) -> None:
        """Raises ServerError if another process holds the directory."""
        if jax.process_index() != 0:  # the first process speaks for all of a run
            return
        if self._lock is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._lock = (self._directory / LOCK).open("w")
        try:
            # A lock of the process, so publishers of one process share it. Each call
            # asks anew, for one that is closed gives up the lock of them all.
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                return  # a file system without locks
            raise ServerError(
                f"{self._directory}: another process writes its weights there; wait "
                "for it, or use another config.engine.http.sync_dir (and a server of "
                "its own)"
            ) from error


def check_directory(directory: pathlib.Path) -> None:
    """Refuses a directory that has other weights: a server could go on reading those.

    Args:
      directory: where the weights will be written.

    Raises:
      ValueError: it names the files.
    """
    kinds = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.gguf")
    weight_files = {path.name for kind in kinds for path in directory.glob(kind)}
    if foreign := sorted(weight_files - {WEIGHTS}):
        raise ValueError(
            f"{directory} holds {', '.join(foreign[:3])}, which the server could read "
            f"in place of the {WEIGHTS} that is written there; expected a directory "
            "of its own: a new one, or a model in a single file"
        )
