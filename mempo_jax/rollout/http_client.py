"""JSON calls to one HTTP server.

Every call has a time limit and some retries, and its errors say what to change.
"""

from __future__ import annotations

import datetime
import email.utils
import functools
import http.client
import io
import json
import math
import time
import urllib.parse
from typing import Any, NamedTuple

MODELS = "/v1/models"
DIRECTORY = "{directory}"  # in a body: stands for the path of a directory
LONGEST_PAUSE_S = 30.0  # between two tries, of its own accord
# What a server asks for is waited out up to this: a date that is far off, as of a clock
# that is wrong, must not stop a run for hours.
LONGEST_ASKED_PAUSE_S = 60.0
SHOWN_CHARS = 300  # of what a server says about an error
BUSY, FIRST_SERVER_ERROR, UNAVAILABLE = 429, 500, 503
HINTS = {
    401: "; it wants a key: see config.engine.http.api_key_env",
    403: "; it refuses this key: see config.engine.http.api_key_env",
    404: "; see config.engine.http.model, and config.engine.http.url or .reload",
}


class JsonClient:
    """Calls one server, from any thread.

    Args:
      url: where it listens, such as "http://host:8000"; a trailing "/v1" is dropped.
      api_key: sent as a bearer token; "" sends none. It shows up in no message.
      timeout_s: seconds for one try, from connecting to the last byte.
      retries: further tries after a lost connection, a time-out, an answer that is no
        JSON, or status 429 or 5xx; other errors are never tried again.
      pause_s: before the first retry; it doubles from one to the next, and is as long
        as a ``Retry-After`` of the server at least.

    Attributes:
      url, retries: as above.
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
        self._timeout, self.retries, self._pause = timeout_s, retries, pause_s

    def get(
        self, path: str, *, retries: int | None = None, most_s: float = math.inf
    ) -> Any:
        """Returns the JSON answer of a GET; it raises what ``post`` raises.

        Args:
          path: with its leading slash.
          retries: further tries; None for the client's own number.
          most_s: seconds for one try, if the client's own limit is longer.
        """
        limit = min(self._timeout, most_s)
        return self._call("GET", path, None, limit, retries)

    def post(
        self,
        path: str,
        body: Any,
        *,
        timeout_s: float | None = None,
        reads_json: bool = True,
    ) -> Any:
        """Returns the JSON answer to a JSON body, or None if the server sends no body.

        Args:
          path: with its leading slash.
          body: what to send.
          timeout_s: seconds for one try; None for the client's own limit.
          reads_json: False for an answer of plain text, which is returned as it is.

        Raises:
          ServerFaultError: all tries failed; the message says how the last one did.
          ServerError: the server refuses the request.
        """
        limit = timeout_s or self._timeout
        return self._call("POST", path, body, limit, None, reads_json)

    def post_once(self, path: str, body: Any) -> Any:
        """Makes one try of ``post``; its error tells neither the server nor the tries.

        Args:
          path, body: as for ``post``.
        """
        return self._read(self._once("POST", path, body, self._timeout), True)

    def pause_s(self, failed: int, fault: ServerFaultError) -> float:
        """Seconds to wait before another try.

        Args:
          failed: tries that have failed, from 1.
          fault: of the last of them.
        """
        # Doubling pauses give a server that restarts time, up to a bound that stays
        # bearable.
        own = min(self._pause * 2 ** (failed - 1), LONGEST_PAUSE_S)
        return max(own, fault.asked_pause_s)

    def _call(
        self,
        method: str,
        path: str,
        body: Any,
        timeout_s: float,
        retries: int | None,
        reads_json: bool = True,
    ) -> Any:
        retries = self.retries if retries is None else retries
        for failed in range(1, retries + 2):
            try:
                reply = self._once(method, path, body, timeout_s)
                return self._read(reply, reads_json)
            except ServerFaultError as error:
                fault = error
            if failed <= retries:
                time.sleep(self.pause_s(failed, fault))
        raise self.gave_up(method, path, fault, retries + 1) from fault

    def gave_up(
        self, method: str, path: str, fault: ServerFaultError, tries: int
    ) -> ServerFaultError:
        """Returns the error of a request that no further try is made for.

        Args:
          method, path: of the request.
          fault: of its last try, made here.
          tries: how many there were.
        """
        count = "1 try" if tries == 1 else f"{tries} tries"
        return ServerFaultError(
            f"{method} {self.url}{path}: {fault} ({count}; see config.engine.http)"
        )

    def _once(self, method: str, path: str, body: Any, timeout_s: float) -> Reply:
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
            raise ServerFaultError(f"no answer: {why}", lost=True) from error
        # Busy or broken: the same request may succeed later.
        if reply.status == BUSY or reply.status >= FIRST_SERVER_ERROR:
            asked = reply.status in (BUSY, UNAVAILABLE)
            pause_s = asked_pause_s(reply.retry_after) if asked else 0.0
            raise ServerFaultError(
                self._describe(reply),
                busy=reply.status == BUSY or pause_s > 0,
                asked_pause_s=pause_s,
            )
        if not 200 <= reply.status < 300:
            hint = HINTS.get(reply.status, "")
            raise ServerError(
                f"{method} {self.url}{path}: {self._describe(reply)}{hint}",
                status=reply.status,
            )
        return reply

    @staticmethod
    def _read(reply: Reply, reads_json: bool) -> Any:
        if not reads_json:
            return reply.body.decode(errors="replace")
        try:
            return json.loads(reply.body) if reply.body else None
        except ValueError as error:
            # A proxy or a dying server cuts answers off: worth another try.
            raise ServerFaultError(
                f"the answer of {len(reply.body)} bytes is no whole JSON ({error})"
            ) from error

    def _describe(self, reply: Reply) -> str:
        text = reply.body.decode(errors="replace")
        try:
            content = json.loads(text)
            inner = content.get("error", content)
            text = str(inner["message"] if isinstance(inner, dict) else inner)
        except (ValueError, KeyError, AttributeError):
            pass  # not in the form of this API: show it as it is
        if self._key:
            # A server may repeat the request's headers in its message.
            text = text.replace(self._key, "***")
        return f"status {reply.status}: {' '.join(text.split())[:SHOWN_CHARS]}"


class ServerError(RuntimeError):
    """The server's answer cannot be used, and asking again would not help.

    Args:
      message: what was asked, what came, and what to change.
      status: of the answer; 0 if that is not what was wrong.

    Attributes:
      status: as above.
    """

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ServerFaultError(ServerError):
    """No usable answer within the time limit and all retries; the next request may get
    one.

    Args:
      message: as above.
      lost: the connection could not be made, or broke.
      busy: the server says that it has too much to do.
      asked_pause_s: seconds that it wants to be left alone; 0: it says nothing of that.

    Attributes:
      lost, busy, asked_pause_s: as above.
    """

    def __init__(
        self,
        message: str,
        *,
        lost: bool = False,
        busy: bool = False,
        asked_pause_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.lost, self.busy, self.asked_pause_s = lost, busy, asked_pause_s


class Reply(NamedTuple):
    """A status code, the whole body of an answer, and its ``Retry-After``."""

    status: int
    body: bytes
    retry_after: str = ""


def asked_pause_s(retry_after: str) -> float:
    """Returns the seconds of a ``Retry-After``: 0 to LONGEST_ASKED_PAUSE_S.

    Args:
      retry_after: whole seconds or an HTTP date; anything else counts as 0.
    """
    text = retry_after.strip()
    if text.isascii() and text.isdecimal():
        # Not as an int, which refuses numbers of thousands of digits.
        return min(float(text), LONGEST_ASKED_PAUSE_S)
    try:
        until = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    # An HTTP date is in GMT, even where it does not say so.
    until = until if until.tzinfo else until.replace(tzinfo=datetime.UTC)
    seconds = until.timestamp() - time.time()
    return min(max(seconds, 0.0), LONGEST_ASKED_PAUSE_S)


def exchange(
    method: str, url: str, headers: dict[str, str], body: bytes | None, timeout_s: float
) -> Reply:
    """Makes one request on a connection of its own; proxies and redirects are not
    followed.

    Args:
      method: "GET" or "POST".
      url: of the server and the path.
      headers: sent as they are.
      body: JSON bytes, or None.
      timeout_s: seconds for the whole exchange. If a host has several addresses, each
        one that is tried in vain may take as long again.

    Raises:
      TimeoutError: it takes longer.
      OSError, HTTPException: the connection fails.
    """
    # One deadline for all: a socket's own timeout starts anew with each read.
    deadline = time.monotonic() + timeout_s
    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection
    if parts.scheme == "http":
        kind = http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=timeout_s)
    connection.response_class = functools.partial(_Response, deadline=deadline)
    try:
        connection.connect()
        # What connecting took is taken off the time for sending and waiting.
        connection.sock.settimeout(_left(deadline))
        connection.request(method, parts.path, body, headers)
        response = connection.getresponse()
        retry_after = response.headers.get("Retry-After", "")
        return Reply(response.status, response.read(), retry_after)
    finally:
        connection.close()


class _Response(http.client.HTTPResponse):
    """A response whose status, headers and body must all have come by ``deadline``."""

    def __init__(self, sock: Any, *args: Any, deadline: float, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Reader(self.fp, sock, deadline))


class _Reader(io.RawIOBase):
    """Reads the file of a socket until a deadline.

    A timeout of a socket holds for each read alone. An answer that drips in needs many
    reads, so each gets only the time that is left.
    """

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
    seconds_left = deadline - time.monotonic()
    if seconds_left <= 0:
        raise TimeoutError("the time is over")
    return seconds_left


def check_served(client: JsonClient, model: str, *, most_s: float = math.inf) -> None:
    """Asks a server once for the names it serves; this changes nothing there.

    Args:
      client: of the server.
      model: the name that must be among them.
      most_s: seconds for its answer, if the client's own limit is longer.

    Raises:
      ServerError: nothing answers, or ``model`` is not served.
    """
    names = served_names(client, most_s=most_s)
    if model not in names:
        raise ServerError(
            f"{client.url} serves {names}, not {model!r} (config.engine.http.model)"
        )


def served_names(client: JsonClient, *, most_s: float = math.inf) -> list[str]:
    """Returns the names that a server serves, asking once.

    Args:
      client: of the server.
      most_s: as for ``check_served``.

    Raises:
      ServerError: nothing answers, or something that is no list of models.
    """
    # No retries: this runs before anything expensive, and a wrong address should show
    # at once.
    content = client.get(MODELS, retries=0, most_s=most_s)
    try:
        return [str(entry["id"]) for entry in content["data"]]
    except (TypeError, KeyError) as error:
        raise ServerError(
            f"{client.url}{MODELS}: expected a list of models, got "
            f"{content!r:.200}; is it an OpenAI-compatible server?"
        ) from error


class Call(NamedTuple):
    """A POST: its path, and its JSON body (None: an empty one)."""

    path: str
    body: Any


def read_call(text: str) -> Call:
    """Reads a call from one line: "/path" or "/path {json}".

    Args:
      text: the line.

    Raises:
      ValueError: it has another form.
    """
    path, _, body = text.strip().partition(" ")
    if not path.startswith("/"):
        raise ValueError(f"expected '/path' or '/path {{json}}', got {text!r}")
    try:
        return Call(path, json.loads(body) if body.strip() else None)
    except ValueError as error:
        raise ValueError(f"{text!r}: the body is no JSON ({error})") from error


def filled(body: Any, directory: str) -> Any:
    """Returns a JSON body with "{directory}" replaced in each of its texts.

    Args:
      body: of a ``Call``.
      directory: what stands there instead.
    """
    if isinstance(body, str):
        return body.replace(DIRECTORY, directory)
    if isinstance(body, list):
        return [filled(item, directory) for item in body]
    if isinstance(body, dict):
        return {name: filled(item, directory) for name, item in body.items()}
    return body
