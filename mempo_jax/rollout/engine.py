"""Continuous batching over slots, each with its own text and key/value cache.

A slot belongs to one trajectory. The engine remembers which ids a slot's cache holds;
a request then only feeds what differs. Requests join and leave between two chunks of
decode steps, and what runs together is decided by the requests alone, so a run can be
repeated bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout import prefill
from mempo_jax.rollout.device import DeviceSlots, Shapes
from mempo_jax.rollout.sampler import Counters, Follower
from mempo_jax.rollout.slots import HeldContexts, Request, buckets, check_fit, pieces
from mempo_jax.rollout.turns import Generation, Turn

__all__ = ["Counters", "Engine", "Generation", "Request"]


class Engine:
    """A ``sampler.Sampler`` on this process's devices.

    max_length: cache positions, so the longest context plus turn. prefill_buckets:
    widths that new context tokens are padded to. decode_chunk: decode steps between
    two looks at the text. closing_tags: texts that end a turn. row_buckets: numbers of
    rows to compute; a call takes the smallest that holds its requests (all slots are
    always one). span_buckets: numbers of cache positions to look at, alike.
    row_sharding: how arrays [slots, ...] lie on the devices; then only whole rows run.
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
    ):
        self._tokenizer, self._tags = tokenizer, tuple(closing_tags)
        self.slots, self.max_length = slots, max_length
        eighth = max(1, slots // 8)
        if row_buckets is None:
            row_buckets = () if row_sharding else (eighth,)
        if span_buckets is None:
            span_buckets = (-(-max_length // 16) * 8,)
        shapes = Shapes(
            slots,
            max_length,
            buckets("row_buckets", (*row_buckets, slots), slots),
            buckets("prefill_buckets", prefill_buckets, max_length),
            buckets("span_buckets", (*span_buckets, max_length), max_length),
            decode_chunk,
        )
        # Prefilling fewer rows than that costs as much as that many.
        self._handed_over = shapes.rows[0] if len(shapes.rows) > 1 else eighth
        self.counters = Counters()
        stop = np.zeros(model.config.vocab_size, bool)
        stop[list(tokenizer.stop_ids)] = True
        stop[list(tokenizer.ids_containing(self._tags))] = True
        self._device = DeviceSlots(model, stop, shapes, row_sharding, self.counters)
        self._held = HeldContexts(slots)
        self._followers: list[Follower] = []
        self._new: list[Turn] = []
        self._running: list[Turn] = []
        self._sampling: tuple[float, float, int] | None = None
        self._drawing = self._device.sampling(1.0, 1.0, 0)

    def set_params(self, params: Any) -> None:
        """See ``Sampler``."""
        if self._new or self._running:
            raise RuntimeError(
                f"set_params with {len(self._new) + len(self._running)} requests under "
                "way: expected none; wait for them, or cancel() them"
            )
        # Arrays that are on their devices already stay as they are.
        self._device.set_params(jax.device_put(params))
        self._held = HeldContexts(self.slots)
        for follower in self._followers:
            follower.set_params(self._device.params)

    def lead(self, follower: Follower) -> None:
        """See ``Sampler``."""
        self._followers.append(follower)

    def warm_up(self, *, filtered: bool = False) -> None:
        """Compiles every program that sampling can need (top-p and top-k only with
        ``filtered``), by running each on no rows; needs ``set_params`` first."""
        self._need_params()
        self._device.warm_up(filtered=filtered)
        for follower in self._followers:
            follower.warm_up()

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
            self._drawing = self._device.sampling(*sampling)
        if sampling != self._sampling:
            raise ValueError(
                f"expected the temperature, top_p and top_k of the requests under way, "
                f"{self._sampling}, got {sampling}; wait for those first"
            )
        for request in requests:
            room = self.max_length - len(request.tokens)
            limit = min(request.max_new_tokens, room)
            self._new.append(Turn(request, self._tokenizer, self._tags, limit))

    def wait(self) -> list[tuple[Request, Generation]]:
        """See ``Sampler``. Comes back when so many requests have ended that their
        successors fill the smallest prefill, or when half of them have."""
        self._admit()
        while True:
            going = [turn for turn in self._running if turn.open]
            ended = len(self._running) - len(going)
            if ended >= min(self._handed_over, -(-len(self._running) // 2)):
                return self._hand_over()
            _, top_p, top_k = self._sampling
            self._device.decode(going, self._drawing, top_p < 1 or top_k > 0)

    def cancel(self) -> None:
        """See ``Sampler``."""
        # What had been fed stays held; what is sampled behind it counts for nothing.
        self._new, self._running = [], []

    def _hand_over(self) -> list[tuple[Request, Generation]]:
        ended = [turn for turn in self._running if not turn.open]
        self._running = [turn for turn in self._running if turn.open]
        for turn in ended:
            self._held.grow(turn.slot, turn.context, turn.tokens)
            self.counters.tokens_generated += len(turn.tokens)
        return [(turn.request, turn.result()) for turn in ended]

    def _admit(self) -> None:
        """Brings every new slot to all of its context but the last token."""
        if not self._new:
            return
        requests = [turn.request for turn in self._new]
        reuse = self._held.reuse(requests)
        stages = prefill.plan(requests, reuse, self._held.ids(), self._device.shapes)
        self._held.trim(reuse)
        for stage in stages:
            if stage.copies:
                self._device.copy(stage.copies, stage.end)
            for rows in pieces(stage.rows, self._device.shapes.widths[-1]):
                self._device.prefill(rows)
        self._held.feed(requests)
        fed = sum(len(row.tokens) for stage in stages for row in stage.rows)
        self.counters.tokens_fed += sum(len(r.tokens) for r in requests)
        # The last id of each context is computed by the first decode step.
        self.counters.tokens_prefilled += fed + len(requests)
        self._running += self._new
        self._new = []

    def _need_params(self) -> None:
        if self._device.params is None:
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
