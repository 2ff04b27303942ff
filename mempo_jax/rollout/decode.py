"""The slots' cache on the device, and the compiled programs that work on it.

Three programs do all the work: prefill (feeds context tokens), copy (one slot's cache
becomes another's) and decode (samples up to a chunk of tokens). Each is a pure function
from a cache to a cache. All but ``prefill_packed`` work on a *view* of the cache: some
rows (all of them, or ``N`` chosen ones) and the first ``span`` positions. A view costs
one copy in and one copy out, and a decode step reads the whole view; so a short span
and few rows pay for themselves within a turn.

All shapes come from small fixed sets (see ``EngineShapes``), so nothing compiles after
``warm_up``. A call takes the smallest shape that holds its input.

Letters: ``R`` slots, ``N`` rows of the view, ``P`` prefill width, ``V`` vocabulary,
``W`` the number of decode steps of one call.
"""

from __future__ import annotations

import contextlib
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
from mempo_jax.rollout.sampler import (
    Counters,
    NewContext,
    SampledTurn,
    fit,
    in_one_order,
)


class DeviceSlots:
    """The cache of some slots, and calls of the programs on it with host data.

    Args:
      compiled: the programs.
      stop: bool [V], ids that end a turn.
      shapes: the fixed sizes of the cache and of the calls.

    Attributes:
      params: parameters in use.
    """

    def __init__(
        self, compiled: EnginePrograms, stop: np.ndarray, shapes: EngineShapes
    ) -> None:
        self._compiled, self.shapes = compiled, shapes
        self.params: Any = None
        self._decode_params: Any = None
        self._prefill_params: Any = None
        self._cache = compiled.make_cache(shapes.slots, shapes.length)
        self._stop = compiled.put(stop, whole=False)

    def set_params(self, params: Any, decode_params: Any) -> None:
        """Uses new parameters from now on.

        Args:
          params: the parameters, on their devices.
          decode_params: the same as ``EnginePrograms.for_decoding`` returns them.
        """
        self.params, self._decode_params = params, decode_params
        # An unrolled model takes either form, but slices stacked layers by copying
        # them.
        self._prefill_params = decode_params if self._compiled.model.unroll else params

    def sampling(self, temperature: float, top_p: float, top_k: int):
        """Puts temperature, top_p and top_k (see ``Sampler.submit``) on the devices."""
        parameters = DrawParameters(
            np.float32(temperature), np.float32(top_p), np.int32(top_k)
        )
        return self._compiled.put(parameters, whole=False)

    def warm_up(self, *, filtered: bool) -> None:
        """Compiles every program, by running each on no rows; top-p and top-k if
        ``filtered``."""
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
        """Feeds ``rows``, slots counted from 0 here, in as many calls as it takes."""
        for size, part in self.shapes.calls(rows):
            if self.shapes.packed:
                self._run_packed(part, size)
            else:
                self._run_prefill(part, *self.shapes.prefill(part))

    def copy(self, copies: Mapping[int, int], end: int) -> None:
        """Copies slots, ``copies`` = {slot: slot to copy from}, up to position ``end``
        at least."""
        self._run_copy(copies, self.shapes.span(end))

    def decode(
        self, turns: Sequence[SampledTurn], first: int, sampling, filtered: bool
    ) -> list[tuple[list[int], np.ndarray]]:
        """Samples up to a chunk of further tokens of each turn.

        Args:
          turns: open turns.
          first: number of this cache's first slot; a turn's row is ``turn.slot -
            first``.
          sampling: from ``self.sampling``.
          filtered: whether top-p or top-k is on.

        Returns:
          For each turn its new tokens and their log-probs.
        """
        chunk = self.shapes.chunk
        end = max(t.end + min(t.left, chunk) for t in turns)
        count = fit(self.shapes.rows, len(turns))
        span = self.shapes.span(end)
        slots = [turn.slot - first for turn in turns]
        out = self._run_decode(turns, slots, count, span, sampling, filtered)
        chunks = []
        for index, slot in enumerate(slots):
            row = slot if count == self.shapes.slots else index
            number = out.counts[row]
            chunks.append(
                (out.tokens[row, :number].tolist(), out.log_probs[row, :number])
            )
        return chunks

    def _run_prefill(self, rows, count: int, width: int, span: int) -> None:
        tokens = np.zeros((count, width), np.int32)
        # Padding rows start at the span, so ``prefill`` leaves them alone; their row
        # index lies past the last slot, so ``put_view`` drops them.
        start = np.full(count, span, np.int32)
        slots = np.full(count, self.shapes.slots, np.int32)
        all_slots = count == self.shapes.slots
        for index, (slot, first, part) in enumerate(rows):
            index = slot if all_slots else index
            slots[index], start[index] = slot, first
            tokens[index, : len(part)] = part
        arrays = self._compiled.put(
            (None if all_slots else slots, tokens, start), whole=all_slots
        )
        # Every input was put on the devices on purpose: an implicit transfer is an
        # error.
        with jax.transfer_guard("disallow"), self._compiled.in_order():
            self._cache = self._compiled.prefill(
                self._prefill_params, self._cache, *arrays, span=span
            )

    def _run_packed(self, rows: Sequence[NewContext], size: int) -> None:
        s = self.shapes
        packed = pack_rows(rows, size, s.slots, s.length, s.spans)
        packed = self._compiled.put(packed, whole=False)
        with jax.transfer_guard("disallow"), self._compiled.in_order():
            self._cache = self._compiled.prefill_packed(
                self._prefill_params, self._cache, packed, spans=s.spans
            )

    def _run_copy(self, copies: Mapping[int, int], span: int) -> None:
        source = np.arange(self.shapes.slots, dtype=np.int32)
        for slot, origin in copies.items():
            source[slot] = origin
        source = self._compiled.put(source, whole=True)
        with jax.transfer_guard("disallow"), self._compiled.in_order():
            self._cache = self._compiled.copy(self._cache, source, span=span)

    def _run_decode(self, turns, slots, count, span, sampling, filtered):
        token, position, limit, first = np.zeros((4, count), np.int32)
        keys = np.zeros((count, 2), np.uint32)
        view_rows = np.full(count, self.shapes.slots, np.int32)
        all_slots = count == self.shapes.slots
        for index, (turn, slot) in enumerate(zip(turns, slots, strict=True)):
            index = slot if all_slots else index
            view_rows[index] = slot
            # No row runs past its limit within a chunk; rows without a turn have limit
            # 0.
            limit[index] = min(turn.left, self.shapes.chunk)
            token[index], position[index] = turn.last, turn.end - 1
            keys[index], first[index] = turn.key, len(turn.tokens)
        rows = (None if all_slots else view_rows, token, position, limit, keys, first)
        rows = self._compiled.put(rows, whole=all_slots)
        with jax.transfer_guard("disallow"):
            with self._compiled.in_order():
                self._cache, out = self._compiled.decode(
                    self._decode_params,
                    self._cache,
                    self._stop,
                    *rows,
                    sampling,
                    steps=self.shapes.chunk,
                    span=span,
                    filtered=filtered,
                )
            # One transfer a chunk: the host needs the text to find closing tags.
            return jax.device_get(out)


class EnginePrograms:
    """The programs, compiled once for all caches of the same shapes.

    Args:
      model: the policy's architecture.
      row_sharding: sharding of arrays [slots, ...]; None on one device.
      counters: its ``compilations`` grows with each program that is traced.
    """

    def __init__(
        self,
        model: LanguageModel,
        row_sharding: jax.sharding.NamedSharding | None,
        counters: Counters,
    ) -> None:
        # The model then keeps its activations split by rows as well.
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
        """Returns stacked ``params``, on their devices, in the form that ``decode``
        takes."""
        # On a CPU a slice of stacked weights within the loop of decode steps is copied
        # at every step (XLA moves it into the loop from wherever it is written), a
        # seventh of a step's time. On other devices it is read in place, and a copy
        # would cost memory.
        return self._unstack(params) if self._on_one_cpu() else params

    def packed_sizes(self, slots: int, width: int) -> tuple[int, ...]:
        """Returns the numbers of tokens that packed prefill calls may have.

        Args:
          slots: slots of the cache.
          width: the most tokens of one slot in a call.

        Returns:
          Ascending sizes, or () if context tokens are to be padded instead.
        """
        # On accelerators a loop over pieces of tokens would be many small kernels. A
        # scan over layers would stack the whole cache for each call. One slot alone has
        # no row to be padded to. With as many key heads as query heads, sums round
        # differently than padded ones: `nano` gained a tenth of its time, not worth
        # other results.
        fits = self.model.config.grouped and self.model.unroll and slots > 1
        return sizes(slots * width) if fits and self._on_one_cpu() else ()

    def _on_one_cpu(self) -> bool:
        mesh = None if self._row_sharding is None else self._row_sharding.mesh
        return (mesh is None or mesh.size == 1) and jax.default_backend() == "cpu"

    def in_order(self) -> contextlib.AbstractContextManager:
        """Returns the context for calls of the programs, see ``in_one_order``."""
        sharding = self._row_sharding
        return in_one_order(1 if sharding is None else sharding.mesh.size)

    def put(self, tree, *, whole: bool):
        """Copies host arrays to the devices.

        Args:
          tree: arrays.
          whole: whether they are [slots, ...] and so are sharded by rows; else every
            device gets all of them.
        """
        sharding = self._row_sharding
        if sharding is not None and not whole:
            sharding = jax.sharding.NamedSharding(
                sharding.mesh, jax.sharding.PartitionSpec()
            )
        return jax.device_put(tree, sharding)

    def make_cache(self, slots: int, length: int):
        """Makes an empty cache of ``slots`` rows and ``length`` positions, on the
        devices."""
        make = functools.partial(self.model.init_cache, slots, length)
        # Under jit each device makes its own part; no device ever holds the whole.
        return jax.jit(make, out_shardings=self.cache_sharding)()

    def _jit(self, function, static: tuple[str, ...], model: bool = True):
        """Compiles a program that takes the cache, gives it back, and is counted."""
        bound = functools.partial(function, self.model) if model else function

        @functools.wraps(function)
        def counted(*args, **kwargs):
            self._counters.compilations += 1
            return self._pin(bound(*args, **kwargs))

        # The cache is donated: it is the largest array, and no caller uses the old one.
        return jax.jit(
            counted, static_argnames=static, donate_argnums=1 if model else 0
        )

    def _pin(self, result):
        """Keeps the sharding of arrays [slots, ...]: another one would compile the next
        call."""
        if self._row_sharding is None:
            return result

        def keep(part):
            is_cache = isinstance(part, Cache)
            sharding = self.cache_sharding if is_cache else self._row_sharding
            return jax.lax.with_sharding_constraint(part, sharding)

        return jax.tree.map(keep, result, is_leaf=lambda x: isinstance(x, Cache))


def heads_split(
    rows: jax.sharding.NamedSharding | None, heads: int
) -> jax.sharding.NamedSharding | None:
    """Sharding of the cache, arrays [slots, heads, ...].

    Rows are split as ``rows`` says, and heads over those axes of its mesh that split no
    rows, as these split the weights that compute the keys and values. If the axes do
    not divide the heads, each device has all heads of its rows.

    Args:
      rows: sharding of arrays [slots, ...].
      heads: key/value heads of the model.
    """
    if rows is None:
        return None
    row_axes = rows.spec[0]
    row_axis_names = row_axes if isinstance(row_axes, tuple) else (row_axes,)
    free_axes = tuple(
        name for name in rows.mesh.axis_names if name not in row_axis_names
    )
    parts = math.prod(rows.mesh.shape[name] for name in free_axes)
    if parts == 1 or heads % parts:
        return rows
    spec = jax.sharding.PartitionSpec(row_axes, free_axes)
    return jax.sharding.NamedSharding(rows.mesh, spec)


Array = jax.Array


class DrawParameters(NamedTuple):
    """How tokens are drawn: f32 temperature (0: greedy), f32 top_p (1: off), int32
    top_k (0: off), traced, so that other values compile nothing."""

    temperature: Array
    top_p: Array
    top_k: Array


class Decoded(NamedTuple):
    """Tokens int32 [N, W], their log-probs f32 [N, W], and int32 [N] how many of a
    row's W columns were sampled."""

    tokens: Array
    log_probs: Array
    counts: Array


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
    """Samples a chunk of tokens for every row, in lockstep, until every row has ended.

    Args:
      model, params, cache: the policy, see ``for_decoding``, and its cache (donated).
      stop: bool [V], ids that end a row once sampled.
      rows, span: rows (int32 [N]; None: all slots) and positions of the view.
      token, position: int32 [N], the last known token, not yet cached; its position.
      limit: int32 [N], the most tokens to sample; 0 leaves a row alone. steps: W.
      keys, first: uint32 [N, 2] key data of each turn; int32 [N] tokens sampled before.
      sampling, filtered: how to draw, and whether top-p or top-k is on.
    """
    view = take_view(cache, rows, span)
    # In the dtype of the states, so that it rounds as it does in training.
    unembed = model.unembed(params).astype(cache.keys[0].dtype)
    # Named, so that the process's default generator cannot change the draws: token i is
    # drawn with fold_in(key, i), whatever its neighbours and the chunks are.
    turn_keys = jax.random.wrap_key_data(keys, impl="threefry2x32")

    def body(state: _Loop) -> _Loop:
        step, alive = state.step, state.alive
        # An ended row writes at ``span``, outside of the view: nowhere.
        place = jnp.where(alive, position + step, span)
        hidden, view = model.extend(params, state.cache, state.token[:, None], place)
        # f32 at full precision: log-probs enter the ratio of the loss.
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
        # After the counts: the token that ends a row belongs to it.
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
    """Draws one token a row by inverting the cumulative distribution.

    Log-probs are those of the whole distribution at the sampling temperature (at
    temperature 1 when greedy): top-p and top-k restrict the choice, they do not rescore
    it.

    Args:
      logits: f32 [N, V].
      keys: [N], a key for each row.
      index: int32 [N]; row r uses one uniform number from ``fold_in(keys[r],
        index[r])``.
      sampling: how to draw.
      filtered: whether top-p or top-k is on.

    Returns:
      ids int32 [N] and their log-probs f32 [N].
    """
    greedy = sampling.temperature == 0
    # Temperature 0 would divide by zero; greedy choice and scores use temperature 1.
    logits = logits / jnp.where(greedy, 1.0, sampling.temperature)
    log_probs = jax.nn.log_softmax(logits)

    def uniform(key, number):
        return jax.random.uniform(jax.random.fold_in(key, number))

    def draw():
        # The filter sorts the vocabulary, so a program without it is compiled as well.
        weights = _filter(log_probs, sampling) if filtered else log_probs
        cumulative = jnp.cumsum(jnp.exp(weights), axis=-1)
        # The level stays below the total: ids of probability 0 are never reached.
        level = jax.vmap(uniform)(keys, index)[:, None] * cumulative[:, -1:]
        return jnp.sum(cumulative <= level, axis=-1, dtype=jnp.int32)

    def likeliest():
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    # A cond, as one program serves greedy evaluation and training alike.
    token = jax.lax.cond(greedy, likeliest, draw)
    return token, jnp.take_along_axis(log_probs, token[:, None], axis=-1)[:, 0]


def _filter(log_probs: Array, sampling: DrawParameters) -> Array:
    """Sets log-probs outside of top-k and top-p to -inf.

    What stays: the top_k likeliest ids (0: all) that are also in the smallest set of
    likeliest ids that holds top_p of the mass. The likeliest id always stays.
    """
    ordered = jnp.sort(log_probs, axis=-1, descending=True)
    mass_before = jnp.cumsum(jnp.exp(ordered), axis=-1) - jnp.exp(ordered)
    rank = jnp.arange(ordered.shape[-1])
    top_k = jnp.where(sampling.top_k > 0, sampling.top_k, ordered.shape[-1])
    inside = (rank < top_k) & ((mass_before < sampling.top_p) | (rank == 0))
    # A threshold instead of a scatter back; ids that tie with the last one stay in.
    lowest = jnp.min(jnp.where(inside, ordered, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(log_probs >= lowest, log_probs, -jnp.inf)


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
    """Feeds context tokens into the cache, padded to one width.

    What the padding at a row's right end writes lies past that end and is overwritten
    before it is ever attended to.

    Args:
      model, params, cache: the policy and its cache (donated).
      rows: rows of the view, int32 [N]; None for all slots.
      tokens, start: int32 [N, P], and int32 [N] position of each row's first token. A
        row with ``start >= span`` is left alone.
      span: positions of the view.
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
    """Feeds packed context tokens into their slots, without a view.

    They are written straight to their positions, and attention reads of each slot only
    the span that it needs.

    Args:
      model, params, cache: the policy and its cache (donated).
      packed: the tokens, with their slots and positions.
      spans: the numbers of positions that attention may read.
    """
    return model.extend_packed(params, cache, packed, spans)[1]


def copy_rows(cache: Cache, source: Array, *, span: int) -> Cache:
    """Makes row r of ``cache`` (donated) a copy of row ``source[r]`` (int32 [R]) up to
    position ``span``."""
    return put_view(cache, take_view(cache, source, span), None)


def take_view(cache: Cache, rows: Array | None, span: int) -> Cache:
    """Copies rows ``rows`` (int32 [N]; None: all) and positions below ``span`` out of
    ``cache``.

    A row index past the end gives some row, which ``put_view`` then drops.
    """

    def take(leaf, axis):
        leaf = jax.lax.slice_in_dim(leaf, 0, span, axis=axis)
        # "clip" needs no check of the indices; rows of padding read a row that nobody
        # uses.
        return leaf if rows is None else jnp.take(leaf, rows, axis=0, mode="clip")

    return jax.tree.map(take, cache, cache.place)


def put_view(cache: Cache, view: Cache, rows: Array | None) -> Cache:
    """Returns ``cache`` with ``view``, taken from it with ``rows``, written back."""

    def put(leaf, part, axis):
        below = (slice(None),) * (axis - 1) + (slice(part.shape[axis]),)
        if rows is None:
            return leaf.at[:, *below].set(part)
        # "drop": rows of padding have an index past the end and must change no slot.
        return leaf.at[rows, *below].set(part, mode="drop")

    return jax.tree.map(put, cache, view, cache.place)


class _Loop(NamedTuple):
    step: Array
    cache: Cache
    token: Array
    alive: Array
    out: Decoded
