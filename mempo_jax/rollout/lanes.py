"""Slots in several lanes, each with a cache of its own, that compute at the same time.

On a CPU most of a program runs on one thread: only its large matrix products are split.
With a lane for each core, the rest is shared out too. A lane plans for its own slots:
contexts in different lanes share nothing.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any

from mempo_jax.rollout import prefill
from mempo_jax.rollout.device import DeviceSlots
from mempo_jax.rollout.slots import HeldContexts, Request
from mempo_jax.rollout.turns import Turn


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

    def decode(self, turns: Sequence[Turn], drawing: Any, filtered: bool) -> None:
        """Samples a chunk of each turn."""
        made = self.device.decode(turns, self._first, drawing, filtered)
        for turn, (tokens, log_probs) in zip(turns, made, strict=True):
            turn.add(tokens, log_probs)

    def ended(self, turn: Turn) -> None:
        """Its slot holds what was sampled."""
        self._held.grow(turn.slot - self._first, turn.context, turn.tokens)


class Together:
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
