"""JSON over HTTP to one server: a time limit, some retries, and errors in words."""

from __future__ import annotations

import functools
import http.client
import io
import json
import time
import urllib.parse
from typing import Any, NamedTuple

LONGEST_PAUSE_S = 30.0  # between two tries
SHOWN_CHARS = 300  # of what a server says about an error
BUSY, FIRST_SERVER_ERROR = 429, 500
HINTS = {
    401: "; it wants a key: see config.engine.http.api_key_env",
    403: "; it refuses this key: see config.engine.http.api_key_env",
    404: "; see config.engine.http.model, and config.engine.http.url or .reload",
}


class ServerError(RuntimeError):
    """The server's answer cannot be used, and asking again would not help."""


class ServerFaultError(ServerError):
    """No usable answer within the time limit and all retries; the next may do."""


class Reply(NamedTuple):
    status: int
    body: bytes


class JsonClient:
    """Calls one server, from any thread.

    Args:
      url: where it listens, such as "http://host:8000"; a trailing "/v1" is dropped.
      api_key: sent as a bearer token; "" sends none. It shows up in no message.
      timeout_s: seconds for one try, from connecting to the last byte.
      retries: further tries after a lost connection, a time-out, an answer that is no
        JSON, or status 429 or 5xx; other errors are never tried again.
      pause_s: before the first retry; it doubles from one to the next.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str,
        timeout_s: float,
        retries: int,
        pause_s: float = 1.0,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._key = api_key
        self._timeout, self._retries, self._pause = timeout_s, retries, pause_s

    def get(self, path: str, *, retries: int | None = None) -> Any:
        """The answer of a GET; errors as ``post``."""
        return self._call("GET", path, None, self._timeout, retries)

    def post(self, path: str, body: Any, *, timeout_s: float | None = None) -> Any:
        """The answer to a JSON body; None where the server answers with nothing.

        Raises:
          ServerFaultError: all tries failed, the last one as the message says.
          ServerError: the server refuses the request.
        """
        return self._call("POST", path, body, timeout_s or self._timeout, None)

    def _call(
        self,
        method: str,
        path: str,
        body: Any,
        timeout_s: float,
        retries: int | None,
    ) -> Any:
        retries = self._retries if retries is None else retries
        for failed in range(retries + 1):
            if failed:
                time.sleep(min(self._pause * 2 ** (failed - 1), LONGEST_PAUSE_S))
            try:
                return self._once(method, path, body, timeout_s)
            except ServerFaultError as error:
                fault = error
        tries = "1 try" if not retries else f"{retries + 1} tries"
        raise ServerFaultError(
            f"{method} {self.url}{path}: {fault} ({tries}; see config.engine.http)"
        ) from fault

    def _once(self, method: str, path: str, body: Any, timeout_s: float) -> Any:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            reply = exchange(method, self.url + path, headers, data, timeout_s)
        except TimeoutError as error:
            raise ServerFaultError(
                f"no answer within {timeout_s:g} s (config.engine.http.timeout_s)"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            raise ServerFaultError(f"no answer: {why}") from error
        if reply.status == BUSY or reply.status >= FIRST_SERVER_ERROR:
            raise ServerFaultError(self._said(reply))
        if not 200 <= reply.status < 300:
            hint = HINTS.get(reply.status, "")
            raise ServerError(f"{method} {self.url}{path}: {self._said(reply)}{hint}")
        try:
            return json.loads(reply.body) if reply.body else None
        except ValueError as error:
            # A proxy or a dying server cuts answers off: worth another try.
            raise ServerFaultError(
                f"the answer of {len(reply.body)} bytes is no whole JSON ({error})"
            ) from error

    def _said(self, reply: Reply) -> str:
        text = reply.body.decode(errors="replace")
        try:
            content = json.loads(text)
            inner = content.get("error", content)
            text = str(inner["message"] if isinstance(inner, dict) else inner)
        except (ValueError, KeyError, AttributeError):
            pass  # not in the form of this API: show it as it is
        if self._key:
            text = text.replace(self._key, "***")
        return f"status {reply.status}: {' '.join(text.split())[:SHOWN_CHARS]}"


def exchange(
    method: str, url: str, headers: dict[str, str], body: bytes | None, timeout_s: float
) -> Reply:
    """One request on a connection of its own; proxies and redirects are not followed.

    Raises TimeoutError where the whole takes longer than ``timeout_s`` (and where a
    host has several addresses, as long for each that is tried in vain), OSError or
    HTTPException where the connection fails.
    """
    deadline = time.monotonic() + timeout_s
    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection
    if parts.scheme == "http":
        kind = http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=timeout_s)
    connection.response_class = functools.partial(_Response, deadline=deadline)
    try:
        connection.connect()
        connection.sock.settimeout(_left(deadline))
        connection.request(method, parts.path, body, headers)
        response = connection.getresponse()
        return Reply(response.status, response.read())
    finally:
        connection.close()


class _Response(http.client.HTTPResponse):
    """One whose status, headers and body must all have come by ``deadline``."""

    def __init__(self, sock: Any, *args: Any, deadline: float, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Reader(self.fp, sock, deadline))


class _Reader(io.RawIOBase):
    """Reads ``file`` of a socket. A timeout of a socket is one of each read: what drips
    in needs another, less each time."""

    def __init__(self, file: Any, socket: Any, deadline: float) -> None:
        self._file, self._socket, self._deadline = file, socket, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(_left(self._deadline))
        return self._file.raw.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the time is over")
    return left
