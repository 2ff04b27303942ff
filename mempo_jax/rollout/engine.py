"""Continuous batching over slots, each with its own text and key/value cache.

A slot belongs to one trajectory. The engine remembers which ids a slot's cache holds;
a request then only feeds what differs. Requests join and leave between two chunks of
decode steps, and what runs together is decided by the requests alone, so a run can be
repeated bit for bit.

Slots in several lanes, each with a cache of its own, that compute at the same time.

On a CPU most of a program runs on one thread: only its large matrix products are split.
With a lane for each core, the rest is shared out too. A lane plans for its own slots:
contexts in different lanes share nothing.
"""

from __future__ import annotations

import concurrent.futures
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout import prefill
from mempo_jax.rollout.decode import DeviceSlots, EnginePrograms
from mempo_jax.rollout.prefill import EngineShapes
from mempo_jax.rollout.sampler import (
    Counters,
    Generation,
    HeldContexts,
    Request,
    SampledTurn,
    WeightSubscriber,
    buckets,
    check_fit,
)
from mempo_jax.rollout.time_limits import nothing


class Lane:
    """Some slots in a row: what they hold, and their cache. ``first``: its number."""

    def __init__(self, device: DeviceSlots, first: int) -> None:
        self.device, self._first = device, first
        self._held = HeldContexts(device.shapes.slots)

    def set_params(self, params: Any, decoding: Any) -> None:
        """Computes with these; drops all that is cached."""
        self.device.set_params(params, decoding)
        self._held = HeldContexts(self.device.shapes.slots)

    def admit(self, requests: Sequence[Request]) -> int:
        """Brings slots to all of their contexts but the last ids; returns the number of
        ids that had to be computed."""
        own = [r._replace(slot=r.slot - self._first) for r in requests]
        reuse, shapes = self._held.reuse(own), self.device.shapes
        stages = prefill.plan(own, reuse, self._held.ids(), shapes)
        self._held.trim(reuse)
        for stage in stages:
            if stage.copies:
                self.device.copy(stage.copies, stage.end)
            self.device.prefill(stage.rows)
        self._held.feed(own)
        return sum(len(row.tokens) for stage in stages for row in stage.rows)

    def decode(
        self, turns: Sequence[SampledTurn], drawing: Any, filtered: bool
    ) -> None:
        """Samples a chunk of each turn."""
        made = self.device.decode(turns, self._first, drawing, filtered)
        for turn, (tokens, log_probs) in zip(turns, made, strict=True):
            turn.add(tokens, log_probs)

    def ended(self, turn: SampledTurn) -> None:
        """Its slot holds what was sampled."""
        self._held.grow(turn.slot - self._first, turn.context, turn.tokens)


class LaneThreads:
    """Makes calls at the same time, each on a thread of its own; a single one here."""

    def __init__(self, threads: int) -> None:
        self._pool = (
            concurrent.futures.ThreadPoolExecutor(threads) if threads > 1 else None
        )

    def __call__(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Their results, in order; the first error, once all have ended."""
        if self._pool is None or len(calls) < 2:
            return [call() for call in calls]
        futures = [self._pool.submit(call) for call in calls]
        concurrent.futures.wait(futures)
        return [future.result() for future in futures]


class Engine:
    """A ``sampler.Sampler`` on this process's devices.

    max_length: cache positions, so the longest context plus turn. prefill_buckets:
    widths that new context tokens are padded to; where they lie flat (``flat_calls``)
    the last one alone counts: a call has at most so many for each slot, and no more
    than ``flat_calls.LARGEST``. decode_chunk:
    decode steps between two looks at the text. closing_tags: texts that end a turn.
    row_buckets: numbers of rows to compute; a call takes the smallest that holds its
    requests (all slots are always one). span_buckets: numbers of cache positions to
    look at, alike.
    row_sharding: how arrays [slots, ...] lie on the devices; then only whole rows run,
    unless it is one device and row_buckets are given.
    lanes: groups of slots that compute at the same time, see ``lanes``; for CPUs, as
    many as cores, on one device only. Rows are then counted in each lane.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        *,
        slots: int,
        max_length: int,
        prefill_buckets: Sequence[int],
        decode_chunk: int,
        closing_tags: Sequence[str],
        row_buckets: Sequence[int] | None = None,
        span_buckets: Sequence[int] | None = None,
        row_sharding: jax.sharding.NamedSharding | None = None,
        lanes: int = 1,
    ):
        spread = row_sharding is not None and row_sharding.num_devices > 1
        if spread and any(rows < slots for rows in row_buckets or ()):
            raise ValueError(
                "row_buckets: expected all slots or none where rows are spread over "
                f"devices, got {tuple(row_buckets)}"
            )
        if lanes < 1 or slots % lanes or (lanes > 1 and spread):
            raise ValueError(
                f"lanes: expected a divisor of the {slots} slots, and 1 where rows are "
                f"spread over devices, got {lanes}"
            )
        self._tokenizer, self._tags = tokenizer, tuple(closing_tags)
        self.slots, self.max_length = slots, max_length
        eighth = max(1, slots // 8)
        if row_buckets is None:
            row_buckets = () if row_sharding else (eighth,)
        if span_buckets is None:
            span_buckets = (-(-max_length // 16) * 8,)
        self.counters, self.between = Counters(), nothing
        self._compiled = EnginePrograms(model, row_sharding, self.counters)
        widths = buckets("prefill_buckets", prefill_buckets, max_length)
        shapes = EngineShapes(
            slots // lanes,
            max_length,
            buckets("row_buckets", (*row_buckets, slots), slots // lanes),
            widths,
            self._compiled.packed_sizes(slots // lanes, widths[-1]),
            buckets("span_buckets", (*span_buckets, max_length), max_length),
            decode_chunk,
        )
        # Prefilling fewer rows than that costs as much as that many, where padded.
        self._handed_over = shapes.rows[0] if len(shapes.rows) > 1 else eighth
        stop = np.zeros(model.config.vocab_size, bool)
        stop[list(tokenizer.stop_ids)] = True
        stop[list(tokenizer.ids_containing(self._tags))] = True
        self._lanes = [
            Lane(DeviceSlots(self._compiled, stop, shapes), first)
            for first in range(0, slots, shapes.slots)
        ]
        self._together = LaneThreads(lanes)
        self._params: Any = None
        self._decoding: Any = None
        self._subscribers: list[WeightSubscriber] = []
        self._new: list[SampledTurn] = []
        self._running: list[SampledTurn] = []
        self._sampling: tuple[float, float, int] | None = None
        self._drawing = self._lanes[0].device.sampling(1.0, 1.0, 0)

    def set_params(self, params: Any) -> None:
        """See ``Sampler``."""
        if self._new or self._running:
            raise RuntimeError(
                f"set_params with {len(self._new) + len(self._running)} requests under "
                "way: expected none; wait for them, or cancel() them"
            )
        # Arrays that are on their devices already stay as they are.
        placed = jax.device_put(params)
        if not _same(placed, self._params):
            self._params = placed
            self._decoding = self._compiled.for_decoding(placed)
        for lane in self._lanes:
            lane.set_params(self._params, self._decoding)
        for subscriber in self._subscribers:
            subscriber.set_params(self._params)

    def subscribe(self, subscriber: WeightSubscriber) -> None:
        """See ``Sampler``."""
        self._subscribers.append(subscriber)

    def warm_up(self, *, filtered: bool = False) -> None:
        """Compiles every program that sampling can need (top-p and top-k only with
        ``filtered``), by running each on no rows; needs ``set_params`` first."""
        self._need_params()
        self._lanes[0].device.warm_up(filtered=filtered)  # the others run the same
        for subscriber in self._subscribers:
            subscriber.warm_up()

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> list[Generation]:
        """See ``Sampler``."""
        if self._new or self._running:
            raise RuntimeError(
                "generate while other requests are under way: expected none; use "
                "submit() and wait(), or cancel() them"
            )
        self.submit(requests, temperature=temperature, top_p=top_p, top_k=top_k)
        made: dict[int, Generation] = {}
        while ended := self.wait():
            made |= {request.slot: generation for request, generation in ended}
        return [made[request.slot] for request in requests]

    def submit(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> None:
        """See ``Sampler``."""
        self._check(requests)
        sampling = (temperature, top_p, top_k)
        if not (self._new or self._running):
            self._sampling = sampling
            self._drawing = self._lanes[0].device.sampling(*sampling)
        if sampling != self._sampling:
            raise ValueError(
                f"expected the temperature, top_p and top_k of the requests under way, "
                f"{self._sampling}, got {sampling}; wait for those first"
            )
        for request in requests:
            room = self.max_length - len(request.tokens)
            limit = min(request.max_new_tokens, room)
            self._new.append(SampledTurn(request, self._tokenizer, self._tags, limit))

    def wait(self) -> list[tuple[Request, Generation]]:
        """See ``Sampler``. Comes back when so many requests have ended that their
        successors fill the smallest prefill, or when half of them have."""
        self._admit()
        while True:
            going = [turn for turn in self._running if turn.open]
            ended = len(self._running) - len(going)
            if ended >= min(self._handed_over, -(-len(self._running) // 2)):
                return self._hand_over()
            self.between()
            _, top_p, top_k = self._sampling
            filtered = top_p < 1 or top_k > 0
            calls = [
                functools.partial(lane.decode, turns, self._drawing, filtered)
                for lane, turns in self._by_lane(going)
            ]
            self._together(calls)

    def cancel(self) -> None:
        """See ``Sampler``."""
        # What had been fed stays held; what is sampled behind it counts for nothing.
        self._new, self._running = [], []

    def _hand_over(self) -> list[tuple[Request, Generation]]:
        ended = [turn for turn in self._running if not turn.open]
        self._running = [turn for turn in self._running if turn.open]
        for turn in ended:
            self._lane(turn).ended(turn)
            self.counters.tokens_generated += len(turn.tokens)
        return [(turn.request, turn.result()) for turn in ended]

    def _admit(self) -> None:
        """Brings every new slot to all of its context but the last token."""
        if not self._new:
            return
        requests = [turn.request for turn in self._new]
        calls = [
            functools.partial(lane.admit, [turn.request for turn in turns])
            for lane, turns in self._by_lane(self._new)
        ]
        fed = sum(self._together(calls))
        self.counters.tokens_fed += sum(len(r.tokens) for r in requests)
        # The last id of each context is computed by the first decode step.
        self.counters.tokens_prefilled += fed + len(requests)
        self._running += self._new
        self._new = []

    def _lane(self, turn: SampledTurn) -> Lane:
        return self._lanes[turn.slot * len(self._lanes) // self.slots]

    def _by_lane(
        self, turns: Sequence[SampledTurn]
    ) -> list[tuple[Lane, list[SampledTurn]]]:
        """Lanes that have some of the turns, with these."""
        groups: dict[Lane, list[SampledTurn]] = {}
        for turn in turns:
            groups.setdefault(self._lane(turn), []).append(turn)
        return list(groups.items())

    def _need_params(self) -> None:
        if self._params is None:
            raise ValueError(
                "the engine has no parameters; call set_params(params) first"
            )

    def _check(self, requests: Sequence[Request]) -> None:
        self._need_params()
        slots = [request.slot for request in requests]
        if len(set(slots)) != len(slots):
            raise ValueError(f"expected one request a slot, got the slots {slots}")
        taken = {turn.slot for turn in (*self._new, *self._running)} & set(slots)
        if taken:
            raise ValueError(
                f"expected slots with no request under way, got {sorted(taken)}; wait "
                "for those first"
            )
        check_fit(requests, self.slots, self.max_length)


def _same(params: Any, others: Any) -> bool:
    """Whether these are the very same arrays."""
    same_tree = jax.tree.structure(params) == jax.tree.structure(others)
    return same_tree and jax.tree.all(jax.tree.map(operator.is_, params, others))
