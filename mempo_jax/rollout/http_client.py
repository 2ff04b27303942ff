"""JSON calls to one HTTP server, and the form of a completions request.

Every call has a time limit and some retries, and its errors say what to change.

The form is that of vLLM and of newer SGLang: prompts as token ids, and sampled ids in
the answer (``return_token_ids``, or log-prob entries named "token_id:17"). Text is
never turned back into ids, since the policy may have spelled it with other ones.
"""

from __future__ import annotations

import functools
import http.client
import io
import json
import math
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.sampler import Request

LONGEST_PAUSE_S = 30.0  # between two tries
SHOWN_CHARS = 300  # of what a server says about an error
BUSY, FIRST_SERVER_ERROR = 429, 500
HINTS = {
    401: "; it wants a key: see config.engine.http.api_key_env",
    403: "; it refuses this key: see config.engine.http.api_key_env",
    404: "; see config.engine.http.model, and config.engine.http.url or .reload",
}
ID_PREFIX = "token_id:"
NO_IDS = (
    "the server sent no token ids. It must know return_token_ids (a recent vLLM or "
    "SGLang does), or be started so that log-prob entries are named by id (vLLM: "
    "--return-tokens-as-token-ids)"
)
NO_LOG_PROBS = (
    "the server sent no log-prob for each sampled token. It must serve `logprobs` in "
    "/v1/completions (vLLM: --max-logprobs of at least 1)"
)


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
        """Returns the JSON answer of a GET; it raises what ``post`` raises.

        Args:
          path: with its leading slash.
          retries: further tries; None for the client's own number.
        """
        return self._call("GET", path, None, self._timeout, retries)

    def post(self, path: str, body: Any, *, timeout_s: float | None = None) -> Any:
        """Returns the JSON answer to a JSON body, or None if the server sends no body.

        Args:
          path: with its leading slash.
          body: what to send.
          timeout_s: seconds for one try; None for the client's own limit.

        Raises:
          ServerFaultError: all tries failed; the message says how the last one did.
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
        for attempt in range(retries + 1):
            if attempt:
                # Doubling pauses give a server that restarts time, up to a bound that
                # stays bearable.
                time.sleep(min(self._pause * 2 ** (attempt - 1), LONGEST_PAUSE_S))
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
        # Busy or broken: the same request may succeed later.
        if reply.status == BUSY or reply.status >= FIRST_SERVER_ERROR:
            raise ServerFaultError(self._describe(reply))
        if not 200 <= reply.status < 300:
            hint = HINTS.get(reply.status, "")
            raise ServerError(
                f"{method} {self.url}{path}: {self._describe(reply)}{hint}"
            )
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
    """The server's answer cannot be used, and asking again would not help."""


class ServerFaultError(ServerError):
    """No usable answer within the time limit and all retries; the next request may get
    one."""


class Reply(NamedTuple):
    """A status code and the whole body of an answer."""

    status: int
    body: bytes


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
        return Reply(response.status, response.read())
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


class RequestSampling(NamedTuple):
    """How tokens are drawn; temperature 0 is greedy, top_p 1 and top_k 0 are off."""

    temperature: float
    top_p: float
    top_k: int


class CompletionAnswer(NamedTuple):
    """One answer, as sampled, before anything is cut off.

    Attributes:
      tokens: sampled ids.
      log_probs: f32, one for each of them.
      finish: "stop" or "length", as the server says.
      computed: prompt tokens that it computed and did not take from a cache, as far as
        it says.
    """

    tokens: list[int]
    log_probs: np.ndarray
    finish: str
    computed: int


def request_body(
    request: Request,
    sampling: RequestSampling,
    *,
    model: str,
    max_tokens: int,
    tags: Sequence[str],
    stop_ids: Sequence[int],
) -> dict[str, Any]:
    """Returns the body of one request.

    Every field that shapes the distribution is set, because servers fill in missing
    ones from the model's own generation_config.json.

    Args:
      request: the turn to sample.
      sampling: how to draw.
      model: the name under which the server knows the model.
      max_tokens: the most tokens to sample.
      tags: texts that end a turn.
      stop_ids: ids that end a turn.
    """
    return {
        "model": model,
        "prompt": list(request.tokens),
        "max_tokens": max_tokens,
        "n": 1,
        "stream": False,
        "seed": seed_of(request.key),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        # Servers turn top-k off with -1, this program with 0.
        "top_k": sampling.top_k or -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        # The log-prob of each sampled token: the loss needs it as behaviour log-prob.
        "logprobs": 1,
        # Either is enough; an answer that shows ids in neither form is refused when
        # read.
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stop": list(tags),
        # The tag that ends a turn is part of the turn.
        "include_stop_str_in_output": True,
        "stop_token_ids": list(stop_ids),
        "no_stop_trim": True,  # SGLang: the token that ends a turn stays in the ids
        # Tags may be special tokens, and a stop text is looked for in the text.
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }


def seed_of(key: np.ndarray) -> int:
    """Returns a seed below 2^63 (the most that servers take) from the ``key`` of a
    turn."""
    # Both words of the key count, so that seeds of different turns differ.
    high, low = (int(word) for word in key)
    return (high << 32 | low) & (2**63 - 1)


def read_answer(
    content: Any, prompt: Sequence[int], *, vocab_size: int, max_tokens: int
) -> CompletionAnswer:
    """Checks one answer and takes it apart.

    Args:
      content: the JSON body.
      prompt: the ids that were sent.
      vocab_size: ids must be below it.
      max_tokens: the most that were asked for.

    Raises:
      ServerError: it lacks ids or log-probs, or they cannot be of this policy.
      ServerFaultError: the server gave this one request up.
    """
    choice = _only_choice(content)
    if (finish := choice.get("finish_reason")) not in ("stop", "length"):
        raise ServerFaultError(f"the server ended the request with {finish!r}")
    _check_prompt(choice, content, prompt)
    tokens = _tokens(choice)
    log_probs = _log_probs(choice, len(tokens))
    unknown = [t for t in tokens if not 0 <= t < vocab_size]
    if unknown:
        raise ServerError(
            f"the server sampled the id {unknown[0]}, expected ids below {vocab_size}: "
            "it serves another model or another vocabulary than config.policy"
        )
    if not 1 <= len(tokens) <= max_tokens:
        raise ServerError(
            f"expected 1 to {max_tokens} sampled ids (max_tokens), got {len(tokens)}"
        )
    return CompletionAnswer(tokens, log_probs, finish, _computed(content, len(prompt)))


def end_at_stop(answer: CompletionAnswer, tokenizer: Tokenizer) -> CompletionAnswer:
    """Drops what a server sampled after the first stop id.

    Args:
      answer: as read.
      tokenizer: knows the stop ids.
    """
    ends = (i for i, t in enumerate(answer.tokens, 1) if t in tokenizer.stop_ids)
    end = next(ends, len(answer.tokens))
    return answer._replace(tokens=answer.tokens[:end], log_probs=answer.log_probs[:end])


def _only_choice(content: Any) -> Mapping[str, Any]:
    choices = content.get("choices") if isinstance(content, Mapping) else None
    if not isinstance(choices, list) or len(choices) != 1:
        got = "none" if not isinstance(choices, list) else len(choices)
        raise ServerError(
            f"expected one choice in the answer (n = 1), got {got}; is "
            "config.engine.http.url an OpenAI-compatible /v1/completions server?"
        )
    if not isinstance(choices[0], Mapping):
        raise ServerError(f"expected an object as choice, got {choices[0]!r:.80}")
    return choices[0]


def _check_prompt(choice: Mapping, content: Mapping, prompt: Sequence[int]) -> None:
    """Checks that the ids that the server read are those that were sent."""
    echoed = choice.get("prompt_token_ids")
    if echoed is not None and echoed != list(prompt):
        raise ServerError(
            f"the server read {len(echoed)} prompt ids that are not the {len(prompt)} "
            "sent: it cuts prompts off or adds to them"
        )
    # Not every server repeats the ids, but most count them.
    usage = content.get("usage")
    counted = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    if isinstance(counted, int) and counted != len(prompt):
        raise ServerError(
            f"the server counts {counted} prompt tokens where {len(prompt)} were sent: "
            "it cuts prompts off or adds to them"
        )


def _tokens(choice: Mapping[str, Any]) -> list[int]:
    tokens = choice.get("token_ids")
    if tokens is None:
        # Servers without token_ids can name log-prob entries by id.
        names = _entries(choice).get("tokens")
        names = names if isinstance(names, list) else []
        parts = [str(name).removeprefix(ID_PREFIX) for name in names]
        spelled = all(str(name).startswith(ID_PREFIX) for name in names)
        if not names or not spelled or not all(part.isdecimal() for part in parts):
            raise ServerError(NO_IDS)
        return [int(part) for part in parts]
    if not isinstance(tokens, list) or not all(type(t) is int for t in tokens):
        raise ServerError(f"expected a list of ids in token_ids, got {tokens!r:.80}")
    return tokens


def _log_probs(choice: Mapping[str, Any], count: int) -> np.ndarray:
    values = _entries(choice).get("token_logprobs")
    if not isinstance(values, list) or any(type(v) not in (int, float) for v in values):
        raise ServerError(NO_LOG_PROBS)
    if len(values) != count:
        raise ServerError(
            f"{count} ids came with {len(values)} log-probs; the server must leave the "
            "token that ends a turn in both (SGLang: it must know no_stop_trim)"
        )
    # Rounding may leave a certain token slightly above 0.
    impossible = [v for v in values if not (math.isfinite(v) and v <= 1e-3)]
    if impossible:
        raise ServerError(f"expected log-probs of at most 0, got {impossible[0]}")
    return np.asarray(values, np.float32)


def _entries(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    entries = choice.get("logprobs")
    return entries if isinstance(entries, Mapping) else {}


def _computed(content: Mapping[str, Any], count: int) -> int:
    usage = content.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, Mapping) else None
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    # Without a count, all of the prompt is taken as computed.
    return count - cached if isinstance(cached, int) else count
