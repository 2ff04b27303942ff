"""The compiled programs of the engine: prefill, copy, decode. Pure functions.

All but ``prefill_packed`` work on a *view* of the slot cache: some rows (all of them, or
``N`` chosen ones) and the first ``span`` positions. A view costs one copy in and one
out, a decode step reads the whole view: so a short span and few rows pay back within a
turn.

Letters: ``R`` slots, ``N`` rows of the view, ``P`` prefill width, ``V`` vocabulary,
``W`` the number of decode steps of one call.

The slots' cache on the device, and the compiled programs that work on it.

All shapes come from small fixed sets (see ``Shapes``), so nothing compiles after
``warm_up``. A call takes the smallest that holds what it is given.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mempo_jax.models.attention import PackedRows
from mempo_jax.models.decoder import Cache, LanguageModel, unstacked
from mempo_jax.rollout.prefill import EngineShapes, pack_rows, sizes
from mempo_jax.rollout.sampler import Counters, NewContext, SampledTurn, fit

Array = jax.Array


class DrawParameters(NamedTuple):
    """How tokens are drawn: f32 temperature (0: greedy), f32 top_p, int32 top_k."""

    temperature: Array
    top_p: Array
    top_k: Array


class Decoded(NamedTuple):
    """tokens int32 [N, W], log_probs f32 [N, W], counts int32 [N]: how many of the W
    columns of a row were sampled."""

    tokens: Array
    log_probs: Array
    counts: Array


class _Loop(NamedTuple):
    step: Array
    cache: Cache
    token: Array
    alive: Array
    out: Decoded


def take_view(cache: Cache, rows: Array | None, span: int) -> Cache:
    """Rows ``rows`` (None: all) and positions below ``span``; a row index past the
    end gives some row, which ``put_view`` then drops."""

    def take(leaf, axis):
        leaf = jax.lax.slice_in_dim(leaf, 0, span, axis=axis)
        return leaf if rows is None else jnp.take(leaf, rows, axis=0, mode="clip")

    return jax.tree.map(take, cache, cache.place)


def put_view(cache: Cache, view: Cache, rows: Array | None) -> Cache:
    """The cache with a view written back."""

    def put(leaf, part, axis):
        below = (slice(None),) * (axis - 1) + (slice(part.shape[axis]),)
        if rows is None:
            return leaf.at[:, *below].set(part)
        return leaf.at[rows, *below].set(part, mode="drop")

    return jax.tree.map(put, cache, view, cache.place)


def prefill(
    model: LanguageModel,
    params,
    cache: Cache,
    rows: Array | None,
    tokens: Array,
    start: Array,
    *,
    span: int,
) -> Cache:
    """Feeds ``tokens`` int32 [N, P] from positions ``start`` int32 [N] on.

    A row that has fewer than P tokens is padded at its right: what the padding writes
    lies past the row's end and is overwritten before it is ever attended to. A row
    with ``start >= span`` is left alone.
    """
    _, view = model.extend(params, take_view(cache, rows, span), tokens, start)
    return put_view(cache, view, rows)


def prefill_packed(
    model: LanguageModel,
    params,
    cache: Cache,
    packed: PackedRows,
    *,
    spans: tuple[int, ...],
) -> Cache:
    """Feeds the tokens of ``flat`` into their slots, with no view: they are written to
    their places, and attention takes of each slot the span that it needs."""
    return model.extend_packed(params, cache, packed, spans)[1]


def copy_rows(cache: Cache, source: Array, *, span: int) -> Cache:
    """Row r becomes row ``source[r]`` (int32 [R]) up to position ``span``."""
    return put_view(cache, take_view(cache, source, span), None)


def decode(
    model: LanguageModel,
    params,
    cache: Cache,
    stop: Array,
    rows: Array | None,
    token: Array,
    position: Array,
    limit: Array,
    keys: Array,
    first: Array,
    sampling: DrawParameters,
    *,
    steps: int,
    span: int,
    filtered: bool,
) -> tuple[Cache, Decoded]:
    """Samples up to ``limit`` [N] (0: leave the row alone) tokens a row, in lockstep.

    token int32 [N] is the last one known, not yet in the cache, at ``position`` [N];
    stop bool [V] marks the ids that end a row, once sampled. keys uint32 [N, 2]:
    token number i of a row's turn is drawn with ``fold_in(key, i)``, i counted from
    ``first`` [N], so a row's text depends neither on its neighbours nor on when it
    began. The loop ends as soon as every row has ended.
    """
    view = take_view(cache, rows, span)
    # In the dtype of the states, as where training scores them.
    unembed = model.unembed(params).astype(cache.keys[0].dtype)
    turn_keys = jax.random.wrap_key_data(keys, impl="threefry2x32")

    def body(state: _Loop) -> _Loop:
        step, alive = state.step, state.alive
        at = jnp.where(alive, position + step, span)
        hidden, view = model.extend(params, state.cache, state.token[:, None], at)
        logits = jnp.dot(
            hidden[:, 0],
            unembed,
            precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        new, log_prob = sample(logits, turn_keys, first + step, sampling, filtered)
        out = Decoded(
            state.out.tokens.at[:, step].set(new),
            state.out.log_probs.at[:, step].set(log_prob),
            state.out.counts + alive,
        )
        alive = alive & ~stop[new] & (out.counts < limit)
        return _Loop(step + 1, view, new, alive, out)

    def more(state: _Loop) -> Array:
        return (state.step < steps) & state.alive.any()

    count = token.shape[0]
    out = Decoded(
        jnp.zeros((count, steps), jnp.int32),
        jnp.zeros((count, steps), jnp.float32),
        jnp.zeros(count, jnp.int32),
    )
    start = _Loop(jnp.int32(0), view, token, limit > 0, out)
    end = jax.lax.while_loop(more, body, start)
    return put_view(cache, end.cache, rows), end.out


def sample(
    logits: Array, keys: Array, index: Array, sampling: DrawParameters, filtered: bool
) -> tuple[Array, Array]:
    """One token a row from f32 logits [N, V]: ids int32 [N], log-probs f32 [N].

    keys [N], index int32 [N]: row r's number comes from ``fold_in(keys[r], index[r])``.
    Drawn by inverting the cumulative distribution at one uniform number a row.
    Log-probs are those of the whole distribution at the sampling temperature (at
    temperature 1 when greedy): top-p and top-k choose, they do not rescore.
    """
    greedy = sampling.temperature == 0
    logits = logits / jnp.where(greedy, 1.0, sampling.temperature)
    log_probs = jax.nn.log_softmax(logits)

    def uniform(key, number):
        return jax.random.uniform(jax.random.fold_in(key, number))

    def draw():
        kept = _filter(log_probs, sampling) if filtered else log_probs
        cumulative = jnp.cumsum(jnp.exp(kept), axis=-1)
        # The level stays below the total: ids of probability 0 are never reached.
        level = jax.vmap(uniform)(keys, index)[:, None] * cumulative[:, -1:]
        return jnp.sum(cumulative <= level, axis=-1, dtype=jnp.int32)

    def likeliest():
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    token = jax.lax.cond(greedy, likeliest, draw)
    return token, jnp.take_along_axis(log_probs, token[:, None], axis=-1)[:, 0]


def _filter(log_probs: Array, sampling: DrawParameters) -> Array:
    """-inf outside the top_k likeliest ids (0: all) and outside the smallest set of
    likeliest ids that holds top_p of the mass; the likeliest id always stays."""
    ordered = jnp.sort(log_probs, axis=-1, descending=True)
    mass_before = jnp.cumsum(jnp.exp(ordered), axis=-1) - jnp.exp(ordered)
    rank = jnp.arange(ordered.shape[-1])
    top_k = jnp.where(sampling.top_k > 0, sampling.top_k, ordered.shape[-1])
    inside = (rank < top_k) & ((mass_before < sampling.top_p) | (rank == 0))
    lowest = jnp.min(jnp.where(inside, ordered, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(log_probs >= lowest, log_probs, -jnp.inf)


class EnginePrograms:
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
        self.prefill = self._jit(prefill, ("span",))
        self.prefill_packed = self._jit(prefill_packed, ("spans",))
        self.copy = self._jit(copy_rows, ("span",), model=False)
        self.decode = self._jit(decode, ("steps", "span", "filtered"))
        self._unstack = jax.jit(unstacked)

    def for_decoding(self, params: Any) -> Any:
        """The same parameters, as decoding takes them."""
        # On a CPU a slice of stacked weights within the loop of decode steps is copied
        # at every step (XLA moves it into the loop wherever it stands), a seventh of a
        # step's time; on others it is read in place, and a copy would cost memory.
        return self._unstack(params) if self._one_cpu() else params

    def packed_sizes(self, slots: int, width: int) -> tuple[int, ...]:
        """Of calls that feed up to ``width`` tokens of each slot flat; () where they
        are padded."""
        # On accelerators a loop over pieces of tokens would be many small kernels. A
        # scan over layers would stack the whole cache for each call. One slot alone has
        # no row to be padded to. With equal heads sums round otherwise than padded
        # ones: `nano` gained a tenth of its time, not worth other figures.
        fits = self.model.config.grouped and self.model.unroll and slots > 1
        return sizes(slots * width) if fits and self._one_cpu() else ()

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

    def __init__(
        self, compiled: EnginePrograms, stop: np.ndarray, shapes: EngineShapes
    ) -> None:
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
        made = DrawParameters(
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
                    if narrower < span and not self.shapes.packed:
                        self._run_prefill([], count, width, span)
                for flag in (False, True) if filtered else (False,):
                    self._run_decode([], [], count, span, sampling, flag)
            self._run_copy({}, span)
        for size in self.shapes.packed:
            self._run_packed([], size)
        jax.block_until_ready(self._cache)

    def prefill(self, rows: Sequence[NewContext]) -> None:
        """Feeds ids into slots."""
        for size, part in self.shapes.calls(rows):
            if self.shapes.packed:
                self._run_packed(part, size)
            else:
                self._run_prefill(part, *self.shapes.prefill(part))

    def copy(self, copies: Mapping[int, int], end: int) -> None:
        """Slots become those that ``copies`` names, up to position ``end`` at least."""
        self._run_copy(copies, self.shapes.span(end))

    def decode(
        self, turns: Sequence[SampledTurn], first: int, sampling, filtered: bool
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

    def _run_packed(self, rows: Sequence[NewContext], size: int) -> None:
        s = self.shapes
        packed = pack_rows(rows, size, s.slots, s.length, s.spans)
        packed = self._compiled.put(packed, whole=False)
        with jax.transfer_guard("disallow"):
            self._cache = self._compiled.prefill_packed(
                self._feeding, self._cache, packed, spans=s.spans
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
