"""What a collector needs of an engine, no matter where the policy runs.

Two calls make continuous batching: ``submit`` hands over requests, and ``wait`` gives
back those that have ended while the others go on. A caller that submits the next turn
of what has ended keeps the slots busy.

Beside the interface ``Sampler`` this module has what engines share, all of it on the
host: the turn of one slot while it is sampled, and the record of what the slots' caches
hold.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np


def never() -> bool:
    """False: works on until some requests have ended."""
    return False


class Sampler(Protocol):
    """Samples turns for up to ``slots`` trajectories at a time.

    A slot is one trajectory's place: at most one request of a slot is under way, and
    what a slot has computed may serve its next request. A turn ends at a stop id
    ("stop"), after the first closing tag ("tag"), or at its limit ("length"); the token
    that ends it is part of it.

    Which tokens a request gets depends on its context, its key, the parameters and the
    sampling, never on its slot, on what else is under way or on how long anything took
    (up to rounding, as other requests may change the shapes of arrays).

    Attributes:
      slots: how many trajectories can run at the same time.
      counters: work done so far.
      between: called now and then while ``wait`` works; what it raises ends that.
    """

    slots: int
    counters: Counters
    between: Callable[[], None]

    def set_params(self, params: Any) -> None:
        """Uses new parameters from now on and drops all that is cached, here and in the
        subscribers. Needed before the first request.

        Args:
          params: parameters of the model.

        Raises:
          RuntimeError: requests are under way.
        """

    def subscribe(self, subscriber: WeightSubscriber) -> None:
        """Has another user of the weights follow this engine.

        Args:
          subscriber: its ``set_params`` and ``warm_up`` are called after the engine's
            own.
        """

    def warm_up(self, *, filtered: bool = False) -> None:
        """Does now what the first requests would have to wait for, such as compiling.

        Needs ``set_params`` first.

        Args:
          filtered: also for top-p and top-k.
        """

    def submit(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> None:
        """Takes requests, each for a slot with none under way, and returns at once.

        Args:
          requests: turns to sample.
          temperature: 0 is greedy; log-probs are then those at temperature 1.
          top_p: 1 is off. If it is on, log-probs are still those of the whole
            distribution.
          top_k: 0 is off; as for top_p.

        Raises:
          ValueError: a request does not fit, its slot is taken, or the sampling differs
            from that of the requests under way; then none of ``requests`` has been
            taken.
        """

    def wait(
        self, until: Callable[[], bool] = never
    ) -> list[tuple[Request, Generation | SamplingFault]]:
        """Works until some requests have ended and gives them back, as submitted.

        Never empty while requests are under way, unless ``until`` ended the work; empty
        when none are. In the order of submission. How many come together is up to the
        engine. If the engine computes itself, that depends on the requests alone, never
        on timing (but for ``until``); an engine over a network may give them as they
        come, a trajectory's text being the same either way. Only such an engine gives
        faults.

        Args:
          until: asked now and then; once it is true, what has ended so far is given
            back, though it may be nothing.
        """

    def cancel(self) -> None:
        """Forgets all requests under way, if any."""

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> list[Generation]:
        """Samples one turn for each request: ``submit``, then ``wait`` for all.

        Args:
          requests: turns to sample.
          temperature, top_p, top_k: as for ``submit``.

        Returns:
          Generations in the order of the requests.

        Raises:
          ValueError: as ``submit``.
          RuntimeError: other requests are under way.
          SamplingFault: one of the requests could not be served.
        """


class Request(NamedTuple):
    """One turn to sample.

    Attributes:
      slot: which cache row, below the engine's ``slots``.
      tokens: the *full* context, not only what is new.
      key: uint32[2], key data of this turn; token i is drawn with ``fold_in(key, i)``.
      max_new_tokens: the most to sample; the engine's ``max_length`` also bounds it.
    """

    # The full context, so that a request makes sense to any engine: one with no cache
    # computes it all, one with a cache finds out itself what is new.
    slot: int
    tokens: Sequence[int]
    key: np.ndarray
    max_new_tokens: int


class Generation(NamedTuple):
    """A sampled turn.

    Attributes:
      tokens: ids, including the one that ended the turn.
      log_probs: f32 [len(tokens)], at the sampling temperature.
      finish: "stop" (a stop id), "tag" (a closing tag, however tokenised) or "length".
      text: ``decode(tokens)``.
    """

    tokens: list[int]
    # At the temperature that drew the tokens: these are the behaviour log-probs of the
    # clipped ratio.
    log_probs: np.ndarray
    finish: str
    text: str


class SampledTurn:
    """Collects the chunks of one turn and cuts it at its end.

    Args:
      request: the request.
      tokenizer: the policy's.
      tags: texts that end a turn.
      limit: the most tokens to sample; None for the request's own limit.

    Attributes:
      request, slot, key: the request, and its fields.
      context: ids of the context.
      tokens: ids sampled so far.
    """

    def __init__(
        self, request, tokenizer, tags: tuple[str, ...], limit: int | None = None
    ):
        self.request = request
        self.slot, self.key = request.slot, request.key
        self.context = request.tokens
        self.tokens: list[int] = []
        # The engine lowers the limit if the cache has less room left than was
        # requested.
        self._limit = request.max_new_tokens if limit is None else limit
        self._log_probs: list[np.ndarray] = []
        self._finish: str | None = None
        self._tokenizer, self._tags = tokenizer, tags

    @property
    def open(self) -> bool:
        """Whether more tokens are to be sampled."""
        return self._finish is None and self.left > 0

    @property
    def left(self) -> int:
        """Tokens that may still be sampled."""
        return self._limit - len(self.tokens)

    @property
    def end(self) -> int:
        """Length of the context and of what has been sampled, together."""
        return len(self.context) + len(self.tokens)

    @property
    def last(self) -> int:
        """The last id of both together, which the cache does not hold yet."""
        return self.tokens[-1] if self.tokens else self.context[-1]

    def add(self, tokens: list[int], log_probs: np.ndarray) -> None:
        """Appends a chunk, and closes the turn if it has ended.

        Args:
          tokens: ids of the chunk.
          log_probs: f32, one for each of them.
        """
        self.tokens += tokens
        self._log_probs.append(log_probs)
        end = self._end_of_tag()
        # A chunk may go on after a tag that several ids spell, since the device stops
        # at single ids only: what follows the tag is dropped.
        if end is not None:
            self.tokens, self._finish = self.tokens[:end], "tag"
        elif self.tokens and self.tokens[-1] in self._tokenizer.stop_ids:
            self._finish = "stop"

    def result(self) -> Generation:
        """Returns the turn as sampled so far."""
        log_probs = np.concatenate([np.zeros(0, np.float32), *self._log_probs])
        return Generation(
            self.tokens,
            # The chunk that held the tag may have been cut.
            log_probs[: len(self.tokens)],
            self._finish or "length",
            self._tokenizer.decode(self.tokens),
        )

    def _end_of_tag(self) -> int | None:
        """Number of tokens up to the one that completes the first closing tag."""
        # The whole turn, not the chunk alone: a tag may begin in the chunk before.
        text = self._tokenizer.decode(self.tokens)
        # The first end of any tag: what stands behind it was never seen by anyone.
        ends = [text.find(tag) + len(tag) for tag in self._tags if tag in text]
        if not ends:
            return None
        offsets = self._tokenizer.offsets(self.tokens)
        completing = (i for i, (_, end) in enumerate(offsets, 1) if end >= min(ends))
        return next(completing, len(self.tokens))


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How actions are drawn.

    Attributes:
      temperature: 0 is greedy.
      top_p: 1 is off.
      top_k: 0 is off.
      max_new_tokens: the most tokens of a turn.
    """

    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int


class SamplingFault(Exception):
    """One request could not be served. It costs its trajectory; the others go on."""


@dataclasses.dataclass
class Counters:
    """Work done since the engine was made.

    Attributes:
      tokens_fed: tokens of all contexts that were requested.
      tokens_prefilled: context tokens that were really computed (by a server: as far as
        it reports them).
      tokens_generated: tokens sampled and returned.
      compilations: programs traced.
    """

    # The ratio of the first two shows what the caches save.
    tokens_fed: int = 0
    tokens_prefilled: int = 0
    tokens_generated: int = 0
    compilations: int = 0


class WeightSubscriber(Protocol):
    """Something else that runs the same policy, such as a judge."""

    def set_params(self, params: Any) -> None:
        """Uses the parameters ``params`` from now on."""

    def warm_up(self) -> None:
        """Compiles what it will need."""


class HeldContexts:
    """The ids whose keys and values each slot's cache holds.

    Args:
      slots: number of slots; all start empty.
    """

    def __init__(self, slots: int):
        self._ids: list[list[int]] = [[] for _ in range(slots)]

    def ids(self) -> list[list[int]]:
        """Returns the ids of each slot, which are not to be changed."""
        return self._ids

    def reuse(self, requests: Iterable[Request]) -> dict[int, int]:
        """Counts the leading ids of each new context that its slot holds already.

        Args:
          requests: new requests.

        Returns:
          {slot: count}. The last id of a context never counts.
        """
        # The last id is always computed again, since its logits draw the first new
        # token.
        return {
            request.slot: common(self._ids[request.slot], request.tokens[:-1])
            for request in requests
        }

    def trim(self, reuse: dict[int, int]) -> None:
        """Forgets ids of slots, from a position on.

        Args:
          reuse: {slot: leading ids that stay}.
        """
        for slot, count in reuse.items():
            del self._ids[slot][count:]

    def feed(self, requests: Sequence[Request]) -> None:
        """Records that all of some contexts but their last ids has been computed.

        Args:
          requests: whose contexts.
        """
        for request in requests:
            self._ids[request.slot] = list(request.tokens[:-1])

    def grow(self, slot: int, context: Sequence[int], sampled: Sequence[int]) -> None:
        """Records that a turn was sampled, of which all but the last id has been fed.

        Args:
          slot: its slot.
          context: ids of its context.
          sampled: ids of the turn.
        """
        # The last sampled id has not gone through the model yet.
        self._ids[slot] = [*context, *sampled][:-1]


class NewContext(NamedTuple):
    """Ids to feed into a slot from position ``start`` on."""

    slot: int
    start: int
    tokens: Sequence[int]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Counts the leading ids that two sequences share.

    Args:
      one, other: token ids.
    """
    limit = min(len(one), len(other))
    # Comparing lists at once is fast; most contexts only grow, so it mostly answers.
    if list(one[:limit]) == list(other[:limit]):
        return limit
    pairs = enumerate(zip(one, other))
    return next(index for index, (a, b) in pairs if a != b)


def pieces(rows: Sequence[NewContext], width: int) -> list[list[NewContext]]:
    """Cuts rows into calls, each with the next ``width`` ids of every row at most.

    Args:
      rows: what to feed.
      width: the most ids of a row in one call.
    """
    # A prompt longer than the widest program is fed in several calls.
    longest = max((len(row.tokens) for row in rows), default=0)
    return [
        [
            NewContext(row.slot, row.start + begin, row.tokens[begin : begin + width])
            for row in rows
            if begin < len(row.tokens)
        ]
        for begin in range(0, longest, width)
    ]


def buckets(name: str, sizes: Sequence[int], largest: int) -> tuple[int, ...]:
    """Returns sorted distinct sizes, none above ``largest``.

    Args:
      name: of the setting, for the error.
      sizes: the sizes that were asked for.
      largest: what larger sizes are lowered to.

    Raises:
      ValueError: there are none, or one is not positive.
    """
    # Lowered, not refused: a small model may have less room than the default sizes.
    sizes = tuple(sorted({min(int(size), largest) for size in sizes}))
    if not sizes or sizes[0] < 1:
        raise ValueError(f"{name}: expected positive sizes, got {sizes}")
    return sizes


def fit(sizes: tuple[int, ...], needed: int) -> int:
    """Returns the smallest size that holds ``needed``, else the largest.

    Args:
      sizes: ascending.
      needed: what is to fit.
    """
    return next((size for size in sizes if size >= needed), sizes[-1])


def check_fit(requests: Sequence[Request], slots: int, max_length: int) -> None:
    """Refuses a slot that does not exist and a context of no or too many tokens.

    Args:
      requests: new requests.
      slots: number of slots.
      max_length: the most tokens of a context.

    Raises:
      ValueError: it names the slot, and for a context what to change.
    """
    # Before anything is taken: a caller can then correct its requests and try again.
    for request in requests:
        if not 0 <= request.slot < slots:
            raise ValueError(
                f"expected a slot in 0 ... {slots - 1}, got {request.slot}"
            )
        if not 0 < len(request.tokens) <= max_length:
            raise ValueError(
                f"slot {request.slot}: expected a context of 1 to {max_length} tokens, "
                f"got {len(request.tokens)}; end or rebuild the context earlier, or "
                "raise max_length"
            )


_ORDER = threading.RLock()


def in_one_order(devices: int) -> contextlib.AbstractContextManager:
    """The context in which a program is handed to its devices.

    While one step trains and the next is sampled, two threads hand programs to the same
    devices. Programs exchange arrays between devices: if one came first on one device
    and the other on another, both would wait for ever. So a program is handed to all
    its devices before the next one is; calls return before it has run.

    Args:
      devices: of the program; one alone has no order to keep.
    """
    return _ORDER if devices > 1 else contextlib.nullcontext()
