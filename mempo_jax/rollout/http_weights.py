"""How new weights reach a server: as a model directory that it is told to read."""

from __future__ import annotations

import errno
import fcntl
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from mempo_jax.rollout.http_client import JsonClient, ServerError

DIRECTORY = "{directory}"  # in a body: the path of the directory that was written
WEIGHTS = "model.safetensors"
LOCK = "mempo.lock"


class Call(NamedTuple):
    """A POST: its path, and its JSON body (None: an empty one)."""

    path: str
    body: Any


def read_call(text: str) -> Call:
    """A call from one line: "/path" or "/path {json}".

    Raises ValueError on another form.
    """
    path, _, body = text.strip().partition(" ")
    if not path.startswith("/"):
        raise ValueError(f"expected '/path' or '/path {{json}}', got {text!r}")
    try:
        return Call(path, json.loads(body) if body.strip() else None)
    except ValueError as error:
        raise ValueError(f"{text!r}: the body is no JSON ({error})") from error


class DirectoryPublisher:
    """Writes the policy, then has the server read it.

    From its first call on, other processes' publishers are kept out of the directory:
    the server would serve one run's weights to the other.

    Args:
      client: the server.
      directory: written anew with every call; this program's own.
      save: writes a Hugging Face directory with some parameters.
      calls: made in order behind each writing; "{directory}" in a body stands for the
        absolute path.
      timeout_s: seconds for each of these calls.
    """

    def __init__(
        self,
        client: JsonClient,
        directory: pathlib.Path,
        save: Callable[[pathlib.Path, Any], None],
        calls: Sequence[Call],
        timeout_s: float,
    ) -> None:
        self._client, self._save = client, save
        self._directory = directory.absolute()
        self._calls, self._timeout = tuple(calls), timeout_s
        self._lock: Any = None  # an open file; the system frees it with the process

    def __call__(self, params: Any) -> None:
        """Returns when the server has read these parameters.

        Raises ServerError where it did not, or where another process publishes here.
        """
        self._keep_others_out()
        self._save(self._directory, params)
        for call in self._calls:
            body = _filled(call.body, str(self._directory))
            content = self._client.post(call.path, body, timeout_s=self._timeout)
            if isinstance(content, dict) and content.get("success") is False:
                raise ServerError(
                    f"POST {self._client.url}{call.path}: the server did not take the "
                    f"new weights: {str(content)[:300]}"
                )

    def _keep_others_out(self) -> None:
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
    """Raises ValueError where the directory has weights that would stand beside ours:
    a server could go on reading those."""
    kinds = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.gguf")
    found = {path.name for kind in kinds for path in directory.glob(kind)}
    if others := sorted(found - {WEIGHTS}):
        raise ValueError(
            f"{directory} holds {', '.join(others[:3])}, which the server could read "
            f"in place of the {WEIGHTS} that is written there; expected a directory "
            "of its own: a new one, or a model in a single file"
        )


def _filled(body: Any, directory: str) -> Any:
    if isinstance(body, str):
        return body.replace(DIRECTORY, directory)
    if isinstance(body, list):
        return [_filled(item, directory) for item in body]
    if isinstance(body, dict):
        return {name: _filled(item, directory) for name, item in body.items()}
    return body
