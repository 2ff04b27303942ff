"""The slots' cache on the device, and the compiled programs that work on it.

All shapes come from small fixed sets (see ``Shapes``), so nothing compiles after
``warm_up``. A call takes the smallest that holds what it is given.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from mempo_jax.models.decoder import Cache, LanguageModel, unstacked
from mempo_jax.rollout import flat_calls
from mempo_jax.rollout import generate as programs
from mempo_jax.rollout.sampler import Counters
from mempo_jax.rollout.shapes import Shapes
from mempo_jax.rollout.slots import Row, fit
from mempo_jax.rollout.turns import Turn


class Programs:
    """The programs, compiled once for all caches of the same shapes.

    row_sharding: how arrays [slots, ...] lie on the devices. counters: told of each
    program that is traced.
    """

    def __init__(
        self,
        model: LanguageModel,
        row_sharding: jax.sharding.NamedSharding | None,
        counters: Counters,
    ) -> None:
        if row_sharding is not None and row_sharding.mesh.size > 1:
            model = model.with_rows(row_sharding)
        self.model, self._row_sharding, self._counters = model, row_sharding, counters
        self.cache_sharding = heads_split(row_sharding, model.config.kv_heads)
        self.prefill = self._jit(programs.prefill, ("span",))
        self.prefill_flat = self._jit(programs.prefill_flat, ("spans",))
        self.copy = self._jit(programs.copy_rows, ("span",), model=False)
        self.decode = self._jit(programs.decode, ("steps", "span", "filtered"))
        self._unstack = jax.jit(unstacked)

    def for_decoding(self, params: Any) -> Any:
        """The same parameters, as decoding takes them."""
        # On a CPU a slice of stacked weights within the loop of decode steps is copied
        # at every step (XLA moves it into the loop wherever it stands), a seventh of a
        # step's time; on others it is read in place, and a copy would cost memory.
        return self._unstack(params) if self._one_cpu() else params

    def flat_sizes(self, slots: int, width: int) -> tuple[int, ...]:
        """Of calls that feed up to ``width`` tokens of each slot flat; () where they
        are padded."""
        # On accelerators a loop over pieces of tokens would be many small kernels. A
        # scan over layers would stack the whole cache for each call. One slot alone has
        # no row to be padded to. With equal heads sums round otherwise than padded
        # ones: `nano` gained a tenth of its time, not worth other figures.
        fits = self.model.config.grouped and self.model.unroll and slots > 1
        return flat_calls.sizes(slots * width) if fits and self._one_cpu() else ()

    def _one_cpu(self) -> bool:
        mesh = None if self._row_sharding is None else self._row_sharding.mesh
        return (mesh is None or mesh.size == 1) and jax.default_backend() == "cpu"

    def put(self, tree, *, whole: bool):
        """On the devices; ``whole``: arrays [slots, ...]."""
        sharding = self._row_sharding
        if sharding is not None and not whole:
            sharding = jax.sharding.NamedSharding(
                sharding.mesh, jax.sharding.PartitionSpec()
            )
        return jax.device_put(tree, sharding)

    def make_cache(self, slots: int, length: int):
        make = functools.partial(self.model.init_cache, slots, length)
        return jax.jit(make, out_shardings=self.cache_sharding)()

    def _jit(self, function, static: tuple[str, ...], model: bool = True):
        """Compiles a program that takes the cache, gives it back, and is counted."""
        bound = functools.partial(function, self.model) if model else function

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

        def keep(part):
            held = isinstance(part, Cache)
            where = self.cache_sharding if held else self._row_sharding
            return jax.lax.with_sharding_constraint(part, where)

        return jax.tree.map(keep, result, is_leaf=lambda x: isinstance(x, Cache))


def heads_split(
    rows: jax.sharding.NamedSharding | None, heads: int
) -> jax.sharding.NamedSharding | None:
    """How arrays [slots, heads, ...] lie: rows as ``rows`` says, heads over the axes of
    its mesh that split no rows, as those split the weights that make them.

    Where these do not divide the heads, each device has all heads of its rows.
    """
    if rows is None:
        return None
    over = rows.spec[0]
    taken = over if isinstance(over, tuple) else (over,)
    others = tuple(name for name in rows.mesh.axis_names if name not in taken)
    parts = math.prod(rows.mesh.shape[name] for name in others)
    if parts == 1 or heads % parts:
        return rows
    spec = jax.sharding.PartitionSpec(over, others)
    return jax.sharding.NamedSharding(rows.mesh, spec)


class DeviceSlots:
    """See the module docstring.

    stop: bool [V], ids that end a row.
    """

    def __init__(self, compiled: Programs, stop: np.ndarray, shapes: Shapes) -> None:
        self._compiled, self.shapes = compiled, shapes
        self.params: Any = None
        self._decoding: Any = None
        self._feeding: Any = None
        self._cache = compiled.make_cache(shapes.slots, shapes.length)
        self._stop = compiled.put(stop, whole=False)

    def set_params(self, params: Any, decoding: Any) -> None:
        """Computes with these from now on: on the devices, and ``for_decoding``."""
        self.params, self._decoding = params, decoding
        # Layers laid out one after the other take either form, but copy the stack's.
        self._feeding = decoding if self._compiled.model.unroll else params

    def sampling(self, temperature: float, top_p: float, top_k: int):
        """How to draw, on the devices."""
        made = programs.Sampling(
            np.float32(temperature), np.float32(top_p), np.int32(top_k)
        )
        return self._compiled.put(made, whole=False)

    def warm_up(self, *, filtered: bool) -> None:
        """Compiles every program, by running each on no rows."""
        sampling = self.sampling(1.0, 1.0, 0)
        for span in self.shapes.spans:
            for count in self.shapes.rows:
                # A width may exceed the span: what is fed then fills it in part.
                for narrower, width in itertools.pairwise((0, *self.shapes.widths)):
                    if narrower < span and not self.shapes.flat:
                        self._run_prefill([], count, width, span)
                for flag in (False, True) if filtered else (False,):
                    self._run_decode([], [], count, span, sampling, flag)
            self._run_copy({}, span)
        for size in self.shapes.flat:
            self._run_flat([], size)
        jax.block_until_ready(self._cache)

    def prefill(self, rows: Sequence[Row]) -> None:
        """Feeds ids into slots."""
        for size, part in self.shapes.calls(rows):
            if self.shapes.flat:
                self._run_flat(part, size)
            else:
                self._run_prefill(part, *self.shapes.prefill(part))

    def copy(self, copies: Mapping[int, int], end: int) -> None:
        """Slots become those that ``copies`` names, up to position ``end`` at least."""
        self._run_copy(copies, self.shapes.span(end))

    def decode(
        self, turns: Sequence[Turn], first: int, sampling, filtered: bool
    ) -> list[tuple[list[int], np.ndarray]]:
        """Up to ``chunk`` further tokens of each of the turns, and their log-probs.

        first: a turn's slot is ``turn.slot - first`` here.
        """
        chunk = self.shapes.chunk
        end = max(t.end + min(t.left, chunk) for t in turns)
        count = fit(self.shapes.rows, len(turns))
        span = self.shapes.span(end)
        slots = [turn.slot - first for turn in turns]
        out = self._run_decode(turns, slots, count, span, sampling, filtered)
        made = []
        for index, slot in enumerate(slots):
            row = slot if count == self.shapes.slots else index
            number = out.counts[row]
            made.append(
                (out.tokens[row, :number].tolist(), out.log_probs[row, :number])
            )
        return made

    def _run_prefill(self, rows, count: int, width: int, span: int) -> None:
        tokens = np.zeros((count, width), np.int32)
        start = np.full(count, span, np.int32)
        slots = np.full(count, self.shapes.slots, np.int32)
        whole = count == self.shapes.slots
        for index, (slot, first, part) in enumerate(rows):
            index = slot if whole else index
            slots[index], start[index] = slot, first
            tokens[index, : len(part)] = part
        arrays = self._compiled.put(
            (None if whole else slots, tokens, start), whole=whole
        )
        with jax.transfer_guard("disallow"):
            self._cache = self._compiled.prefill(
                self._feeding, self._cache, *arrays, span=span
            )

    def _run_flat(self, rows: Sequence[Row], size: int) -> None:
        s = self.shapes
        flat = flat_calls.laid_out(rows, size, s.slots, s.length, s.spans)
        flat = self._compiled.put(flat, whole=False)
        with jax.transfer_guard("disallow"):
            self._cache = self._compiled.prefill_flat(
                self._feeding, self._cache, flat, spans=s.spans
            )

    def _run_copy(self, copies: Mapping[int, int], span: int) -> None:
        source = np.arange(self.shapes.slots, dtype=np.int32)
        for slot, origin in copies.items():
            source[slot] = origin
        source = self._compiled.put(source, whole=True)
        with jax.transfer_guard("disallow"):
            self._cache = self._compiled.copy(self._cache, source, span=span)

    def _run_decode(self, turns, slots, count, span, sampling, filtered):
        token, position, limit, first = np.zeros((4, count), np.int32)
        keys = np.zeros((count, 2), np.uint32)
        places = np.full(count, self.shapes.slots, np.int32)
        whole = count == self.shapes.slots
        for index, (turn, slot) in enumerate(zip(turns, slots, strict=True)):
            index = slot if whole else index
            places[index] = slot
            limit[index] = min(turn.left, self.shapes.chunk)
            token[index], position[index] = turn.last, turn.end - 1
            keys[index], first[index] = turn.key, len(turn.tokens)
        rows = (None if whole else places, token, position, limit, keys, first)
        rows = self._compiled.put(rows, whole=whole)
        with jax.transfer_guard("disallow"):
            self._cache, out = self._compiled.decode(
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
