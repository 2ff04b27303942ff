"""What a collector needs of an engine, wherever the policy runs.

Two calls make continuous batching: ``submit`` hands over requests, ``wait`` gives back
those that have ended, while the others go on. A caller that submits the next turn of
what has ended keeps the slots busy.

What the slots of the engine's cache hold, and what requests ask of them.

Host side only: lists of ids in, lists of pieces to feed out.

The turn of one slot while it is sampled: its tokens, and where its text ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np


class Request(NamedTuple):
    """One turn to sample.

    slot: which cache row, below the engine's ``slots``. tokens: the *full* context.
    key: uint32[2], key data of this turn; token i is drawn with ``fold_in(key, i)``.
    max_new_tokens: the most to sample; the engine's ``max_length`` also bounds it.
    """

    slot: int
    tokens: Sequence[int]
    key: np.ndarray
    max_new_tokens: int


class NewContext(NamedTuple):
    """Ids to feed into a slot from position ``start`` on."""

    slot: int
    start: int
    tokens: Sequence[int]


class HeldContexts:
    """The ids whose keys and values each slot's cache holds."""

    def __init__(self, slots: int):
        self._ids: list[list[int]] = [[] for _ in range(slots)]

    def ids(self) -> list[list[int]]:
        """Of each slot; not to be changed."""
        return self._ids

    def reuse(self, requests: Iterable[Request]) -> dict[int, int]:
        """How many leading ids of its context each request's slot holds; never the
        last one."""
        return {
            request.slot: common(self._ids[request.slot], request.tokens[:-1])
            for request in requests
        }

    def trim(self, reuse: dict[int, int]) -> None:
        """These slots hold no more than so many of their ids from now on."""
        for slot, count in reuse.items():
            del self._ids[slot][count:]

    def feed(self, requests: Sequence[Request]) -> None:
        """All of the contexts but their last ids has been computed."""
        for request in requests:
            self._ids[request.slot] = list(request.tokens[:-1])

    def grow(self, slot: int, context: Sequence[int], sampled: Sequence[int]) -> None:
        """A turn was sampled: all but its last id has been fed."""
        self._ids[slot] = [*context, *sampled][:-1]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading ids are the same."""
    limit = min(len(one), len(other))
    if list(one[:limit]) == list(other[:limit]):
        return limit
    pairs = enumerate(zip(one, other))
    return next(index for index, (a, b) in pairs if a != b)


def pieces(rows: Sequence[NewContext], width: int) -> list[list[NewContext]]:
    """The rows cut into calls: in each the next ``width`` ids of every row, at most."""
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
    """Sorted distinct sizes, none above ``largest``; ValueError unless positive."""
    sizes = tuple(sorted({min(int(size), largest) for size in sizes}))
    if not sizes or sizes[0] < 1:
        raise ValueError(f"{name}: expected positive sizes, got {sizes}")
    return sizes


def fit(sizes: tuple[int, ...], needed: int) -> int:
    """The smallest size that holds ``needed``, else the largest."""
    return next((size for size in sizes if size >= needed), sizes[-1])


def check_fit(requests: Sequence[Request], slots: int, max_length: int) -> None:
    """Refuses a slot that does not exist and a context of no or too many tokens.

    Raises:
      ValueError: it names the slot, and for a context what to change.
    """
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


class Generation(NamedTuple):
    """A sampled turn. tokens: ids, the one that ended the turn included. log_probs:
    f32 [len(tokens)] at the sampling temperature. finish: "stop" (a stop id), "tag"
    (a closing tag, however tokenised) or "length". text: ``decode(tokens)``."""

    tokens: list[int]
    log_probs: np.ndarray
    finish: str
    text: str


class SampledTurn:
    """Collects the chunks of one turn and cuts it where it ends.

    limit: the most tokens to sample, where that is less than was asked for.
    """

    def __init__(
        self, request, tokenizer, tags: tuple[str, ...], limit: int | None = None
    ):
        self.request = request
        self.slot, self.key = request.slot, request.key
        self.context = request.tokens
        self.tokens: list[int] = []
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
        """Tokens until the limit."""
        return self._limit - len(self.tokens)

    @property
    def end(self) -> int:
        """Length of the context and of what has been sampled."""
        return len(self.context) + len(self.tokens)

    @property
    def last(self) -> int:
        """The last id of both, which the cache does not hold yet."""
        return self.tokens[-1] if self.tokens else self.context[-1]

    def add(self, tokens: list[int], log_probs: np.ndarray) -> None:
        """Appends a chunk, and ends the turn if it holds an end."""
        self.tokens += tokens
        self._log_probs.append(log_probs)
        end = self._end_of_tag()
        if end is not None:
            self.tokens, self._finish = self.tokens[:end], "tag"
        elif self.tokens and self.tokens[-1] in self._tokenizer.stop_ids:
            self._finish = "stop"

    def result(self) -> Generation:
        log_probs = np.concatenate([np.zeros(0, np.float32), *self._log_probs])
        return Generation(
            self.tokens,
            log_probs[: len(self.tokens)],
            self._finish or "length",
            self._tokenizer.decode(self.tokens),
        )

    def _end_of_tag(self) -> int | None:
        """Number of tokens up to the one that completes the first closing tag."""
        text = self._tokenizer.decode(self.tokens)
        ends = [text.find(tag) + len(tag) for tag in self._tags if tag in text]
        if not ends:
            return None
        offsets = self._tokenizer.offsets(self.tokens)
        reached = (i for i, (_, end) in enumerate(offsets, 1) if end >= min(ends))
        return next(reached, len(self.tokens))


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How actions are drawn; temperature 0 is greedy."""

    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int


class SamplingFault(Exception):
    """One request could not be served; it costs its trajectory, the others go on."""


@dataclasses.dataclass
class Counters:
    """Work done since the engine was made.

    tokens_fed: tokens of all contexts given. tokens_prefilled: context tokens really
    computed (what a server computed, where it says so). tokens_generated: tokens
    sampled and returned. compilations: programs traced.
    """

    tokens_fed: int = 0
    tokens_prefilled: int = 0
    tokens_generated: int = 0
    compilations: int = 0


class WeightSubscriber(Protocol):
    """Something else that runs the same policy, such as a judge."""

    def set_params(self, params: Any) -> None: ...

    def warm_up(self) -> None: ...


class Sampler(Protocol):
    """Samples turns for up to ``slots`` trajectories at a time.

    A slot is one trajectory's place: at most one request of a slot is under way, and
    what a slot has computed may serve its next request. A turn ends at a stop id
    ("stop"), behind the first closing tag ("tag"), or at its limit ("length"); the
    token that ends it is part of it.

    Which tokens a request gets depends on its context, its key, the parameters and the
    sampling, never on its slot, on what else is under way or on how long anything took
    (up to rounding, where other company changes the shapes of arrays).
    """

    slots: int
    counters: Counters
    between: Callable[[], None]  # called while ``wait`` works; what it raises ends that

    def set_params(self, params: Any) -> None:
        """Uses these parameters from now on and drops all that is cached, here and in
        the followers. Needed before the first request.

        Raises RuntimeError while requests are under way.
        """

    def subscribe(self, subscriber: WeightSubscriber) -> None:
        """Calls its ``set_params`` and ``warm_up`` too, behind its own."""

    def warm_up(self, *, filtered: bool = False) -> None:
        """Does now what the first requests would have to wait for (such as compiling;
        for top-p and top-k only with ``filtered``). Needs ``set_params`` first."""

    def submit(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> None:
        """Takes requests, each for a slot with none under way, and returns at once.

        temperature 0 is greedy (log-probs are then those at temperature 1). top_p 1
        and top_k 0 are off; where they are on, log-probs are still those of the whole
        distribution.

        Raises ValueError on a request that does not fit, on a slot that is taken, and
        on another temperature, top_p or top_k than that of the requests under way; then
        none of ``requests`` has been taken.
        """

    def wait(self) -> list[tuple[Request, Generation | SamplingFault]]:
        """Works until some requests have ended and gives them back, as submitted.

        Never empty while requests are under way, empty when none are. In the order of
        submission. How many come together is up to the engine, but depends on the
        requests alone, never on timing, where the engine computes itself; an engine
        over a network may give them as they come, a trajectory's text being the same
        either way. Only such an engine gives faults.
        """

    def cancel(self) -> None:
        """Forgets all requests under way; nothing where none are."""

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> list[Generation]:
        """One turn for each request, in their order: ``submit``, then ``wait`` for all.

        Raises ValueError as ``submit``, RuntimeError while others are under way, and a
        request's SamplingFault.
        """
