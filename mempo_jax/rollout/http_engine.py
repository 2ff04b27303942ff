"""An engine on another machine: an OpenAI-compatible server samples the turns.

Token ids go out, token ids and their log-probs come back; a turn is cut by the same
rules as in the local engine. Requests run at the same time, each in a thread, so the
server can batch them; which tokens a request gets depends on its own seed, as far as
the server is deterministic.
"""

from __future__ import annotations

import functools
import operator
import queue
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.daemons import Daemons
from mempo_jax.rollout.deadline import get, nothing
from mempo_jax.rollout.http_answers import (
    Sampling,
    end_at_stop,
    read_answer,
    request_body,
)
from mempo_jax.rollout.http_client import JsonClient, ServerError, ServerFaultError
from mempo_jax.rollout.sampler import Counters, Follower, SamplingFault
from mempo_jax.rollout.slots import Request, check_fit
from mempo_jax.rollout.turns import Generation, Turn

COMPLETIONS, MODELS = "/v1/completions", "/v1/models"
MOST_FAULTS = 8  # requests in a row that fail before the server counts as gone


class _Ticket(NamedTuple):
    """A request under way: its place in the order of submission, and its round."""

    place: int
    round: int
    request: Request
    sampling: Sampling


class HttpEngine:
    """A ``Sampler`` over HTTP.

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
        self._followers: list[Follower] = []
        self._daemons = Daemons(max_concurrent)
        self._done: queue.SimpleQueue = queue.SimpleQueue()
        self._open: dict[int, _Ticket] = {}  # by slot
        self._round = self._placed = self._faults = 0

    def check_model(self) -> None:
        """Asks the server once for the names it serves.

        Raises ServerError where nothing answers, or where ``model`` is not among them.
        """
        content = self._client.get(MODELS, retries=0)
        try:
            names = [str(entry["id"]) for entry in content["data"]]
        except (TypeError, KeyError) as error:
            raise ServerError(
                f"{self._client.url}{MODELS}: expected a list of models, got "
                f"{content!r:.200}; is it an OpenAI-compatible server?"
            ) from error
        if self._model not in names:
            raise ServerError(
                f"{self._client.url} serves {names}, not {self._model!r} "
                "(config.engine.http.model)"
            )

    def set_params(self, params: Any) -> None:
        """See ``Sampler``; the server has the new weights when this returns.

        Raises ServerError where they did not reach the server.
        """
        if self._open:
            raise RuntimeError(
                f"{len(self._open)} requests are under way; wait for them or cancel "
                "them before the weights change"
            )
        if self._publish is not None:
            leaves = jax.tree.leaves(params)
            # The same arrays may come in another tree.
            known = self._published is not None and len(leaves) == len(self._published)
            if not known or any(map(operator.is_not, leaves, self._published)):
                self._published = None  # unless all goes well, another call tries again
                self._publish(params)
                self._published = leaves
        for follower in self._followers:
            follower.set_params(params)

    def lead(self, follower: Follower) -> None:
        self._followers.append(follower)

    def warm_up(self, *, filtered: bool = False) -> None:
        """Warms the followers up; the server has its own start behind it."""
        for follower in self._followers:
            follower.warm_up()

    def submit(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> None:
        """See ``Sampler``."""
        sampling = Sampling(temperature, top_p, top_k)
        self._check(requests, sampling)
        for request in requests:
            ticket = _Ticket(self._placed, self._round, request, sampling)
            self._placed += 1
            self._open[request.slot] = ticket
            self.counters.tokens_fed += len(request.tokens)
            self._daemons.start(functools.partial(self._serve, ticket))

    def wait(self) -> list[tuple[Request, Generation | SamplingFault]]:
        """See ``Sampler``; what comes is as the network has it.

        Raises ServerError on an answer that no further one would mend, and where
        ``MOST_FAULTS`` requests in a row got none.
        """
        ended: list[tuple[_Ticket, Generation | SamplingFault]] = []
        while self._open and not (ended and self._done.empty()):
            ticket, result, computed = get(self._done, self.between)
            if ticket.round != self._round:
                continue  # of a round that was cancelled
            del self._open[ticket.request.slot]
            self._note(result)
            if isinstance(result, Generation):
                self.counters.tokens_prefilled += computed
                self.counters.tokens_generated += len(result.tokens)
            ended.append((ticket, result))
        ended.sort(key=lambda pair: pair[0].place)
        return [(ticket.request, result) for ticket, result in ended]

    def cancel(self) -> None:
        """See ``Sampler``; what the server is at is not stopped, but not looked at."""
        self._daemons.drop()
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
        """See ``Sampler``; raises SamplingFault where a request could not be served."""
        if self._open:
            raise RuntimeError(f"{len(self._open)} other requests are under way")
        self.submit(requests, temperature=temperature, top_p=top_p, top_k=top_k)
        made = {}
        while self._open:
            for request, result in self.wait():
                if isinstance(result, SamplingFault):
                    self.cancel()
                    raise result
                made[request.slot] = result
        return [made[request.slot] for request in requests]

    def _serve(self, ticket: _Ticket) -> None:
        try:
            result, computed = self._sample(ticket.request, ticket.sampling)
        except ServerFaultError as error:
            result, computed = SamplingFault(str(error)), 0
        except Exception as error:  # raised again by wait(), in the caller's thread
            result, computed = error, 0
        self._done.put((ticket, result, computed))

    def _sample(self, request: Request, sampling: Sampling) -> tuple[Generation, int]:
        """One turn, and how many prompt tokens the server computed for it."""
        room = self.max_length - len(request.tokens)
        limit = min(request.max_new_tokens, room)
        turn = Turn(request, self._tokenizer, self._tags, limit)
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
        kept = end_at_stop(answer, self._tokenizer)
        turn.add(kept.tokens, kept.log_probs)
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
            self._faults += 1
            if self._faults < MOST_FAULTS:
                return
            result = ServerError(f"{self._faults} requests in a row failed: {result}")
            self._faults = 0
        self.cancel()
        raise result

    def _check(self, requests: Sequence[Request], sampling: Sampling) -> None:
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
