"""What a collector needs of an engine, wherever the policy runs.

Two calls make continuous batching: ``submit`` hands over requests, ``wait`` gives back
those that have ended, while the others go on. A caller that submits the next turn of
what has ended keeps the slots busy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mempo_jax.rollout.slots import Request
from mempo_jax.rollout.turns import Generation


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


class Follower(Protocol):
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

    def lead(self, follower: Follower) -> None:
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
