"""An engine on another machine: an OpenAI-compatible server samples the turns.

Token ids go out; token ids and their log-probs come back. A turn is cut by the same
rules as in the local engine. Requests run at the same time, each in a thread, so that
the server can batch them. Which tokens a request gets depends on its own seed, as far
as the server is deterministic.

New weights reach the server as a model directory that it is asked to read
(``DirectoryPublisher``).
"""

from __future__ import annotations

import collections
import errno
import fcntl
import functools
import json
import math
import operator
import pathlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.http_client import (
    JsonClient,
    RequestSampling,
    ServerError,
    ServerFaultError,
    end_at_stop,
    read_answer,
    request_body,
)
from mempo_jax.rollout.sampler import (
    Counters,
    Generation,
    Request,
    SampledTurn,
    SamplingFault,
    WeightSubscriber,
    check_fit,
    never,
)
from mempo_jax.rollout.time_limits import get, nothing

# Completions, not chat: the context is a list of ids that the server must not template.
COMPLETIONS, MODELS = "/v1/completions", "/v1/models"
LOOK_S = 0.01  # between two looks at whether something else can go on
MOST_FAULTS = 8  # requests in a row that fail before the server counts as gone
DIRECTORY = "{directory}"  # in a body: the path of the directory that was written
WEIGHTS = "model.safetensors"
LOCK = "mempo.lock"


class HttpEngine:
    """A ``Sampler`` whose turns an HTTP server samples.

    Args:
      client: the server.
      tokenizer: the policy's; the server's must be the same.
      model: the name under which the server knows the model.
      slots: trajectories under way at once.
      max_length: tokens of the longest context and turn together.
      vocab_size: ids are below it.
      closing_tags: texts that end a turn.
      max_concurrent: requests sent at the same time.
      publish: makes the server use parameters; None: its weights stay as they are.

    Attributes:
      slots, max_length: as above.
      counters: work done so far.
      between: called while ``wait`` waits; what it raises ends that.
    """

    def __init__(
        self,
        client: JsonClient,
        tokenizer: Tokenizer,
        *,
        model: str,
        slots: int,
        max_length: int,
        vocab_size: int,
        closing_tags: Sequence[str],
        max_concurrent: int,
        publish: Callable[[Any], None] | None,
    ) -> None:
        self._client, self._tokenizer, self._model = client, tokenizer, model
        self.slots, self.max_length = slots, max_length
        self._vocab_size, self._tags = vocab_size, tuple(closing_tags)
        self._publish = publish
        self.counters, self.between = Counters(), nothing
        self._published: list[Any] | None = None  # leaves of what the server has
        self._subscribers: list[WeightSubscriber] = []
        self._threads = RequestThreads(max_concurrent)
        self._done: queue.SimpleQueue = queue.SimpleQueue()
        self._open: dict[int, _Ticket] = {}  # by slot
        self._round = self._submissions = self._faults = 0

    def check_model(self) -> None:
        """Asks the server once for the names it serves.

        Raises:
          ServerError: nothing answers, or ``model`` is not among the names.
        """
        check_served(self._client, self._model)

    def set_params(self, params: Any) -> None:
        """Publishes new parameters; when it returns, the server has the new weights.

        Args:
          params: parameters of the model.

        Raises:
          RuntimeError: requests are under way.
          ServerError: the weights did not reach the server.
        """
        if self._open:
            raise RuntimeError(
                f"{len(self._open)} requests are under way; wait for them or cancel "
                "them before the weights change"
            )
        if self._publish is not None:
            leaves = jax.tree.leaves(params)
            # Compared by leaf: the same arrays may come in another tree.
            comparable = self._published is not None and len(leaves) == len(
                self._published
            )
            # Identity of arrays: publishing writes all weights to disk, so it is worth
            # skipping.
            if not comparable or any(map(operator.is_not, leaves, self._published)):
                self._published = None  # unless all goes well, another call tries again
                self._publish(params)
                self._published = leaves
        for subscriber in self._subscribers:
            subscriber.set_params(params)

    def subscribe(self, subscriber: WeightSubscriber) -> None:
        """Passes the parameters on, see ``Sampler``.

        Args:
          subscriber: whatever else runs the same policy.
        """
        self._subscribers.append(subscriber)

    def warm_up(self, *, filtered: bool = False) -> None:
        """Warms the subscribers up; the server has started long before.

        Args:
          filtered: changes nothing here.
        """
        for subscriber in self._subscribers:
            subscriber.warm_up()

    def submit(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> None:
        """Takes requests and sends them from threads, see ``Sampler``.

        Args:
          requests: each for a slot that has none under way.
          temperature, top_p, top_k: how to draw, the same for all requests under way.

        Raises:
          ValueError: a request does not fit, or the sampling differs.
        """
        sampling = RequestSampling(temperature, top_p, top_k)
        self._check(requests, sampling)
        for request in requests:
            ticket = _Ticket(self._submissions, self._round, request, sampling)
            self._submissions += 1
            self._open[request.slot] = ticket
            self.counters.tokens_fed += len(request.tokens)
            self._threads.start(functools.partial(self._serve, ticket))

    def wait(
        self, until: Callable[[], bool] = never
    ) -> list[tuple[Request, Generation | SamplingFault]]:
        """Waits for answers, see ``Sampler``; they come in the order that the network
        gives.

        Args:
          until: asked every ``LOOK_S``.

        Raises:
          ServerError: an answer that no further request would mend, or ``MOST_FAULTS``
            requests in a row that got none.
        """
        ended: list[tuple[_Ticket, Generation | SamplingFault]] = []
        while self._open and not (ended and self._done.empty()):
            try:
                limit_s = math.inf if until is never else LOOK_S
                ticket, result, computed = get(self._done, self.between, limit_s)
            except queue.Empty:
                if until():
                    break
                self.between()
                continue
            # An answer to a request of a round that was cancelled.
            if ticket.round != self._round:
                continue  # of a round that was cancelled
            del self._open[ticket.request.slot]
            self._note(result)
            if isinstance(result, Generation):
                self.counters.tokens_prefilled += computed
                self.counters.tokens_generated += len(result.tokens)
            ended.append((ticket, result))
        # By submission, so that what follows does not depend on which answer came
        # first.
        ended.sort(key=lambda pair: pair[0].place)
        return [(ticket.request, result) for ticket, result in ended]

    def cancel(self) -> None:
        """Forgets all requests under way; the server is not stopped, but its answers
        are ignored."""
        self._threads.drop()
        self._open.clear()
        self._round += 1

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> list[Generation]:
        """Samples one turn for each request, see ``Sampler``.

        Args:
          requests: at most one for each slot.
          temperature, top_p, top_k: as for ``submit``.

        Returns:
          Generations in the order of the requests.

        Raises:
          RuntimeError: other requests are under way.
          SamplingFault: a request could not be served.
        """
        if self._open:
            raise RuntimeError(f"{len(self._open)} other requests are under way")
        self.submit(requests, temperature=temperature, top_p=top_p, top_k=top_k)
        generations = {}
        while self._open:
            for request, result in self.wait():
                if isinstance(result, SamplingFault):
                    self.cancel()
                    raise result
                generations[request.slot] = result
        return [generations[request.slot] for request in requests]

    def _serve(self, ticket: _Ticket) -> None:
        try:
            result, computed = self._sample(ticket.request, ticket.sampling)
        except ServerFaultError as error:
            result, computed = SamplingFault(str(error)), 0
        except Exception as error:  # raised again by wait(), in the caller's thread
            result, computed = error, 0
        self._done.put((ticket, result, computed))

    def _sample(
        self, request: Request, sampling: RequestSampling
    ) -> tuple[Generation, int]:
        """One turn, and how many prompt tokens the server computed for it."""
        room = self.max_length - len(request.tokens)
        limit = min(request.max_new_tokens, room)
        turn = SampledTurn(request, self._tokenizer, self._tags, limit)
        # No room, so nothing to ask a server for; the local engine returns an empty
        # turn too.
        if limit < 1:
            return turn.result(), 0
        content = self._client.post(
            COMPLETIONS,
            request_body(
                request,
                sampling,
                model=self._model,
                max_tokens=limit,
                tags=self._tags,
                stop_ids=self._tokenizer.stop_ids,
            ),
        )
        answer = read_answer(
            content, request.tokens, vocab_size=self._vocab_size, max_tokens=limit
        )
        ended_answer = end_at_stop(answer, self._tokenizer)
        # The same cut as in the local engine: servers differ in what they keep after an
        # end.
        turn.add(ended_answer.tokens, ended_answer.log_probs)
        if turn.open:
            raise ServerError(
                f"the server ended a turn ({answer.finish!r}) after "
                f"{len(turn.tokens)} of {limit} tokens, at the id {turn.tokens[-1]}, "
                "which is neither a stop id of the policy nor the end of a closing "
                "tag: it has stop tokens of its own, cuts ends off, or its longest "
                "context is too short (vLLM: --generation-config vllm, --max-model-len)"
            )
        return turn.result(), answer.computed

    def _note(self, result: Any) -> None:
        """Raises what ends the run; counts faults in a row."""
        if isinstance(result, Generation):
            self._faults = 0
            return
        if isinstance(result, SamplingFault):
            # A single fault costs one trajectory; a server that is gone would fail all
            # of them.
            self._faults += 1
            if self._faults < MOST_FAULTS:
                return
            result = ServerError(f"{self._faults} requests in a row failed: {result}")
            self._faults = 0
        self.cancel()
        raise result

    def _check(self, requests: Sequence[Request], sampling: RequestSampling) -> None:
        slots = [request.slot for request in requests]
        taken = [slot for slot in slots if slot in self._open]
        if len(set(slots)) != len(slots) or taken:
            raise ValueError(
                f"expected one request a slot, got the slots {slots} while "
                f"{sorted(self._open)} are taken"
            )
        under_way = {ticket.sampling for ticket in self._open.values()}
        if under_way - {sampling}:
            raise ValueError(
                f"expected {next(iter(under_way))} as of the requests under way, got "
                f"{sampling}"
            )
        check_fit(requests, self.slots, self.max_length)


class _Ticket(NamedTuple):
    """A request under way.

    place: in the order of submission. round: increases with each ``cancel``.
    """

    place: int
    round: int
    request: Request
    sampling: RequestSampling


def check_served(client: JsonClient, model: str) -> None:
    """Asks a server once for the names it serves; this changes nothing there.

    Args:
      client: of the server.
      model: the name that must be among them.

    Raises:
      ServerError: nothing answers, or ``model`` is not served.
    """
    # No retries: this runs before anything expensive, and a wrong address should show
    # at once.
    content = client.get(MODELS, retries=0)
    try:
        names = [str(entry["id"]) for entry in content["data"]]
    except (TypeError, KeyError) as error:
        raise ServerError(
            f"{client.url}{MODELS}: expected a list of models, got "
            f"{content!r:.200}; is it an OpenAI-compatible server?"
        ) from error
    if model not in names:
        raise ServerError(
            f"{client.url} serves {names}, not {model!r} (config.engine.http.model)"
        )


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


class DirectoryPublisher:
    """Writes the policy's weights and then has the server read them.

    From its first call on, other processes' publishers are kept out of the directory:
    the server would otherwise serve one run's weights to the other.

    Args:
      client: the server.
      directory: written anew with every call; used by this program alone.
      save: writes parameters as a Hugging Face directory.
      calls: made in order after each writing; "{directory}" in a body becomes the
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
        """Publishes parameters and returns when the server has read them.

        Args:
          params: parameters of the model.

        Raises:
          ServerError: the server did not read them, or another process publishes here.
        """
        self._keep_others_out()
        self._save(self._directory, params)
        for call in self._calls:
            body = _filled(call.body, str(self._directory))
            content = self._client.post(call.path, body, timeout_s=self._timeout)
            # A server may report a failed update in its body alone, with status 200.
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


def _filled(body: Any, directory: str) -> Any:
    if isinstance(body, str):
        return body.replace(DIRECTORY, directory)
    if isinstance(body, list):
        return [_filled(item, directory) for item in body]
    if isinstance(body, dict):
        return {name: _filled(item, directory) for name, item in body.items()}
    return body
