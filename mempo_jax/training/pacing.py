"""Keeps the host from running far ahead of the devices.

Calls of compiled programs return before they have run. A step could be handed over as
a whole within milliseconds, and nobody could then leave it for minutes.
"""

from __future__ import annotations

import time
from typing import Any

import jax

SHORT_S, LONG_S = 1.0, 4.0  # between two waits
LARGEST_STRIDE = 64


class Pace:
    """Waits for a result now and then: every one where they take seconds, hardly ever
    where they take milliseconds, since the devices idle meanwhile."""

    def __init__(self) -> None:
        self._stride, self._count = 1, 0
        self._waited = time.monotonic()

    def __call__(self, result: Any) -> None:
        """Told of each result that was asked for; may wait until it is there."""
        self._count += 1
        if self._count < self._stride:
            return
        jax.block_until_ready(result)
        now = time.monotonic()
        each_s = (now - self._waited) / self._count
        self._waited, self._count = now, 0
        if each_s * self._stride < SHORT_S:
            self._stride = min(2 * self._stride, LARGEST_STRIDE)
        elif each_s * self._stride > LONG_S:
            self._stride = max(1, self._stride // 2)
