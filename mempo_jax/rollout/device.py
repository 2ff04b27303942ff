"""The slots' cache on the device, and the compiled programs that work on it.

All shapes come from small fixed sets (rows, widths, spans), so nothing compiles after
``warm_up``. A call takes the smallest that holds what it is given.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from mempo_jax.models.decoder import LanguageModel, unstacked
from mempo_jax.rollout import generate as programs
from mempo_jax.rollout.sampler import Counters
from mempo_jax.rollout.slots import Row, fit
from mempo_jax.rollout.turns import Turn


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Sizes of the cache and of the views and inputs that programs may have.

    slots, length: of the cache. rows: numbers of rows to compute, all slots among them.
    widths: of new context tokens. spans: numbers of positions to look at. chunk:
    decode steps of one call.
    """

    slots: int
    length: int
    rows: tuple[int, ...]
    widths: tuple[int, ...]
    spans: tuple[int, ...]
    chunk: int

    def prefill(self, rows: Sequence[Row]) -> tuple[int, int, int]:
        """Count, width and span of the call that feeds these."""
        longest = max(len(row.tokens) for row in rows)
        end = max(row.start + len(row.tokens) for row in rows)
        return fit(self.rows, len(rows)), fit(self.widths, longest), self.span(end)

    def span(self, end: int) -> int:
        return fit(self.spans, min(end, self.length))


class DeviceSlots:
    """See the module docstring.

    stop: bool [V], ids that end a row. row_sharding: how arrays [slots, ...] lie on the
    devices. counters: told of each program that is traced.
    """

    def __init__(
        self,
        model: LanguageModel,
        stop: np.ndarray,
        shapes: Shapes,
        row_sharding: jax.sharding.NamedSharding | None,
        counters: Counters,
    ) -> None:
        self._model, self.shapes = model, shapes
        self._row_sharding, self._counters = row_sharding, counters
        self.params: Any = None
        self._decoding: Any = None  # the same parameters, as decoding takes them
        self._unstack = jax.jit(unstacked)
        self._cache = self._make_cache()
        self._stop = self._put(stop, whole=False)
        self._prefill = self._jit(programs.prefill, ("span",))
        self._copy = self._jit(programs.copy_rows, ("span",), model=False)
        self._decode = self._jit(programs.decode, ("steps", "span", "filtered"))

    def set_params(self, params: Any) -> None:
        """Computes with these from now on; they lie on the devices."""
        # On a CPU a slice of stacked weights within the loop of decode steps is copied
        # at every step (XLA moves it into the loop wherever it stands), a seventh of a
        # step's time; on others it is read in place, and a copy would cost memory.
        mesh = None if self._row_sharding is None else self._row_sharding.mesh
        apart = jax.default_backend() == "cpu" and (mesh is None or mesh.size == 1)
        known = self.params is not None and jax.tree.all(
            jax.tree.map(operator.is_, params, self.params)
        )
        if not known:
            self._decoding = self._unstack(params) if apart else params
        self.params = params

    def sampling(self, temperature: float, top_p: float, top_k: int):
        """How to draw, on the devices."""
        made = programs.Sampling(
            np.float32(temperature), np.float32(top_p), np.int32(top_k)
        )
        return self._put(made, whole=False)

    def warm_up(self, *, filtered: bool) -> None:
        """Compiles every program, by running each on no rows."""
        sampling = self.sampling(1.0, 1.0, 0)
        for span in self.shapes.spans:
            for count in self.shapes.rows:
                # A width may exceed the span: what is fed then fills it in part.
                for narrower, width in itertools.pairwise((0, *self.shapes.widths)):
                    if narrower < span:
                        self._run_prefill([], count, width, span)
                for flag in (False, True) if filtered else (False,):
                    self._run_decode([], count, span, sampling, flag)
            self._run_copy({}, span)
        jax.block_until_ready(self._cache)

    def prefill(self, rows: Sequence[Row]) -> None:
        """Feeds ids into slots."""
        self._run_prefill(rows, *self.shapes.prefill(rows))

    def copy(self, copies: Mapping[int, int], end: int) -> None:
        """Slots become those that ``copies`` names, up to position ``end`` at least."""
        self._run_copy(copies, self.shapes.span(end))

    def decode(self, turns: Sequence[Turn], sampling, filtered: bool) -> None:
        """Adds up to ``chunk`` tokens to each of the turns."""
        chunk = self.shapes.chunk
        end = max(t.end + min(t.left, chunk) for t in turns)
        count = fit(self.shapes.rows, len(turns))
        span = self.shapes.span(end)
        out = self._run_decode(turns, count, span, sampling, filtered)
        for index, turn in enumerate(turns):
            row = turn.slot if count == self.shapes.slots else index
            number = out.counts[row]
            turn.add(out.tokens[row, :number].tolist(), out.log_probs[row, :number])

    def _run_prefill(self, rows, count: int, width: int, span: int) -> None:
        tokens = np.zeros((count, width), np.int32)
        start = np.full(count, span, np.int32)
        slots = np.full(count, self.shapes.slots, np.int32)
        whole = count == self.shapes.slots
        for index, (slot, first, part) in enumerate(rows):
            index = slot if whole else index
            slots[index], start[index] = slot, first
            tokens[index, : len(part)] = part
        arrays = self._put((None if whole else slots, tokens, start), whole=whole)
        with jax.transfer_guard("disallow"):
            self._cache = self._prefill(self.params, self._cache, *arrays, span=span)

    def _run_copy(self, copies: Mapping[int, int], span: int) -> None:
        source = np.arange(self.shapes.slots, dtype=np.int32)
        for slot, origin in copies.items():
            source[slot] = origin
        source = self._put(source, whole=True)
        with jax.transfer_guard("disallow"):
            self._cache = self._copy(self._cache, source, span=span)

    def _run_decode(self, turns, count: int, span: int, sampling, filtered: bool):
        token, position, limit, first = np.zeros((4, count), np.int32)
        keys = np.zeros((count, 2), np.uint32)
        slots = np.full(count, self.shapes.slots, np.int32)
        whole = count == self.shapes.slots
        for index, turn in enumerate(turns):
            index = turn.slot if whole else index
            slots[index] = turn.slot
            limit[index] = min(turn.left, self.shapes.chunk)
            token[index], position[index] = turn.last, turn.end - 1
            keys[index], first[index] = turn.key, len(turn.tokens)
        rows = (None if whole else slots, token, position, limit, keys, first)
        rows = self._put(rows, whole=whole)
        with jax.transfer_guard("disallow"):
            self._cache, out = self._decode(
                self._decoding,
                self._cache,
                self._stop,
                *rows,
                sampling,
                steps=self.shapes.chunk,
                span=span,
                filtered=filtered,
            )
            return jax.device_get(out)

    def _jit(self, function, static: tuple[str, ...], model: bool = True):
        """Compiles a program that takes the cache, gives it back, and is counted."""
        bound = functools.partial(function, self._model) if model else function

        @functools.wraps(function)
        def counted(*args, **kwargs):
            self._counters.compilations += 1
            return self._pin(bound(*args, **kwargs))

        return jax.jit(
            counted, static_argnames=static, donate_argnums=1 if model else 0
        )

    def _pin(self, result):
        """Keeps arrays [slots, ...] where they were, or the next call would compile."""
        if self._row_sharding is None:
            return result
        return jax.lax.with_sharding_constraint(result, self._row_sharding)

    def _put(self, tree, *, whole: bool):
        sharding = self._row_sharding
        if sharding is not None and not whole:
            sharding = jax.sharding.NamedSharding(
                sharding.mesh, jax.sharding.PartitionSpec()
            )
        return jax.device_put(tree, sharding)

    def _make_cache(self):
        slots, length = self.shapes.slots, self.shapes.length
        make = functools.partial(self._model.init_cache, slots, length)
        return jax.jit(make, out_shardings=self._row_sharding)()
