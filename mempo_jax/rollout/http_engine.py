"""An engine on another machine: an OpenAI-compatible server samples the turns.

Token ids go out; token ids and their log-probs come back. A turn is cut by the same
rules as in the local engine. Requests run at the same time, each in a thread, so that
the server can batch them. Which tokens a request gets depends on its own seed, as far
as the server is deterministic.

There may be several servers, and weights may reach them in several ways: see
``http_servers``.

The form of a request is that of vLLM and of newer SGLang: prompts as token ids, and
sampled ids in the answer (``return_token_ids``, or log-prob entries named
"token_id:17"). Text is never turned back into ids, since the policy may have spelled it
with other ones.
"""

from __future__ import annotations

import functools
import math
import operator
import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.http_client import ServerError, ServerFaultError
from mempo_jax.rollout.http_servers import Servers
from mempo_jax.rollout.sampler import (
    Generation,
    Request,
    SampledTurn,
    SamplingFault,
    WeightSubscriber,
    check_fit,
    never,
)
from mempo_jax.rollout.time_limits import RequestThreads, get, nothing

# Completions, not chat: the context is a list of ids that the server must not template.
COMPLETIONS = "/v1/completions"
LOOK_S = 0.01  # between two looks at whether something else can go on
MOST_FAULTS = 8  # requests in a row that fail before the servers count as gone
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


class HttpEngine:
    """A ``Sampler`` whose turns HTTP servers sample.

    Args:
      servers: one or more of the same policy.
      tokenizer: the policy's; the servers' must be the same.
      slots: trajectories under way at once.
      max_length: tokens of the longest context and turn together.
      vocab_size: ids are below it.
      closing_tags: texts that end a turn.
      max_concurrent: requests sent at the same time, to all servers together.

    Attributes:
      servers, slots, max_length: as above.
      counters: work done so far.
      between: called while ``wait`` waits; what it raises ends that.
    """

    def __init__(
        self,
        servers: Servers,
        tokenizer: Tokenizer,
        *,
        slots: int,
        max_length: int,
        vocab_size: int,
        closing_tags: Sequence[str],
        max_concurrent: int,
    ) -> None:
        self.servers, self._tokenizer = servers, tokenizer
        self.slots, self.max_length = slots, max_length
        self._vocab_size, self._tags = vocab_size, tuple(closing_tags)
        self.counters, self.between = servers.counters, nothing
        self._published: list[Any] | None = None  # leaves of what the servers have
        self._subscribers: list[WeightSubscriber] = []
        self._threads = RequestThreads(max_concurrent)
        self._done: queue.SimpleQueue = queue.SimpleQueue()
        self._open: dict[int, _Ticket] = {}  # by slot
        self._round = self._submissions = self._faults = 0

    def set_params(self, params: Any, *, all_must: bool = False) -> None:
        """Publishes new parameters; when it returns, all servers that are asked from
        now on have them.

        Args:
          params: parameters of the model.
          all_must: refuse to go on without one of the servers.

        Raises:
          RuntimeError: requests are under way.
          ServerError: the weights reached no server, or not one that must have them.
        """
        if self._open:
            raise RuntimeError(
                f"{len(self._open)} requests are under way; wait for them or cancel "
                "them before the weights change"
            )
        if self.servers.publishes:
            leaves = jax.tree.leaves(params)
            # Compared by leaf: the same arrays may come in another tree.
            comparable = self._published is not None and len(leaves) == len(
                self._published
            )
            # Identity of arrays: publishing writes all weights to disk, so it is worth
            # skipping.
            if not comparable or any(map(operator.is_not, leaves, self._published)):
                self._published = None  # unless all goes well, another call tries again
                self.servers.publish(params, all_must=all_must)
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
        """Warms the subscribers up; the servers have started long before.

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
        content = self.servers.post(
            COMPLETIONS,
            request_body(
                request,
                sampling,
                model=self.servers.model,
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
            # A single fault costs one trajectory; servers that are gone would fail all
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
