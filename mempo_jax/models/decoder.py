"""The policy's decoder-only transformer (Llama, Qwen2, Qwen3) and its key-value cache.

Flax NNX *defines* the modules (``layers``); everything that runs takes parameters as a
plain nested dict (float32, layers stacked on axis 0), so ``jax.jit``, ``jax.grad`` and
shardings see ordinary pytrees.

Letters: ``B`` rows, ``T`` tokens, ``R`` slots, ``P`` new tokens, ``S`` cache length,
``L`` layers, ``D`` width, ``H`` heads, ``K`` key/value heads, ``C`` head size,
``F`` MLP width, ``V`` vocabulary.

Parameter paths (biases, norms of heads and ``head`` only if configured)::

    embed/embedding            [V, D]
    layers/attention_norm/scale [L, D]      layers/mlp_norm/scale       [L, D]
    layers/attention/query/kernel [L, D, H*C]  (bias [L, H*C])
    layers/attention/key/kernel   [L, D, K*C]  (bias [L, K*C]), value alike
    layers/attention/output/kernel [L, H*C, D]
    layers/attention/query_norm/scale, key_norm/scale [L, C]
    layers/mlp/gate/kernel, up/kernel [L, D, F]     layers/mlp/down/kernel [L, F, D]
    final_norm/scale [D]                     head/kernel [D, V]   (untied only)
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from mempo_jax.models.attention import (
    PackedRows,
    cached_attention,
    causal_attention,
    chosen,
    packed_attention,
)
from mempo_jax.models.layers import DecoderConfig, DecoderLayer, Ends, rotation_table
from mempo_jax.models.lora import LoraConfig, attach

Params = dict[str, Any]
Array = jax.Array


class LanguageModel:
    """A decoder without parameters of its own: every method takes them as an argument.

    Args:
      config: the decoder's shape.
      compute_dtype: of activations and of the cache (norms, softmax and rotary angles
        stay float32).
      remat: recompute each layer in the backward pass of ``hidden``.
      unroll: trace the layers of ``hidden`` one by one (faster on small models) instead
        of with ``lax.scan`` (constant compile time); None chooses by depth. ``extend``
        by one token always unrolls, because a scan copies the whole cache, which costs
        little beside many tokens and much beside one.
      lora: the adapters that parameters hold beside their kernels; None for none.
      attention: the kernel of ``hidden``, see ``models.attention``.

    Attributes:
      rows: where the states between layers are kept on a mesh, see ``with_rows``.
    """

    UNROLL_UP_TO = 6  # layers: deeper models would take too long to compile unrolled

    def __init__(
        self,
        config: DecoderConfig,
        compute_dtype: Any,
        *,
        remat: bool = False,
        unroll: bool | None = None,
        lora: LoraConfig | None = None,
        attention: str = "auto",
    ):
        self.config = config
        self.compute_dtype = jnp.dtype(compute_dtype)
        self.remat = remat
        self.unroll = config.layers <= self.UNROLL_UP_TO if unroll is None else unroll
        self.lora = lora
        self.attention = attention
        self.rows: jax.sharding.Sharding | None = None
        # eval_shape: only the modules' structure is needed, so nothing is allocated.
        block = nnx.eval_shape(lambda: self._new_block(nnx.Rngs(0)))
        ends = nnx.eval_shape(lambda: Ends(config, nnx.Rngs(0)))
        self._block = nnx.split(block)[0]
        self._ends = nnx.split(ends)[0]

    def with_lora(self, lora: LoraConfig | None) -> LanguageModel:
        """Copies the decoder with other adapters.

        Args:
          lora: the adapters; None for none.
        """
        return LanguageModel(
            self.config,
            self.compute_dtype,
            remat=self.remat,
            unroll=self.unroll,
            lora=lora,
            attention=self.attention,
        )

    def with_rows(self, rows: jax.sharding.Sharding | None) -> LanguageModel:
        """Copies the decoder so that each layer's input keeps its sharding on a mesh.

        If weights are split over the axes of rows, the compiler would otherwise gather
        all rows on each device and compute a part of the width there: one device would
        need the memory of the whole batch.

        Args:
          rows: sharding of states [B, T, D], by rows alone; None to leave it open.
        """
        model = copy.copy(self)
        model.rows = rows
        return model

    # Equal decoders are one static argument to jax.jit, so they share compilations.
    def __hash__(self) -> int:
        return hash(self._identity())

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, LanguageModel)
        return same and self._identity() == other._identity()

    def _identity(self) -> tuple:
        parts = self.config, self.compute_dtype, self.lora
        return *parts, self.remat, self.unroll, self.attention, self.rows

    def init(self, key: Array) -> Params:
        """Draws fresh float32 parameters.

        Args:
          key: a PRNG key; the ends and each layer get a key of their own.
        """
        ends_key, layers_key = jax.random.split(key)

        def parameters(module: Callable, key: Array) -> Params:
            return nnx.to_pure_dict(nnx.split(module(nnx.Rngs(key)))[1])

        keys = jax.random.split(layers_key, self.config.layers)
        # vmap stacks the layers on axis 0, as ``lax.scan`` takes them.
        layers = jax.vmap(lambda key: parameters(self._new_block, key))(keys)
        ends = parameters(functools.partial(Ends, self.config), ends_key)
        return {**ends, "layers": layers}

    def hidden(self, params: Params, tokens: Array, token_mask: Array) -> Array:
        """Computes the states of whole rows, from their first token on.

        Args:
          params: all parameters, layers stacked on axis 0.
          tokens: int32 [B, T], right-padded, so that a token's index is its position.
          token_mask: bool [B, T], the real tokens; padding is never inferred from an
            id, and nothing attends to it.

        Returns:
          States after the final norm, compute dtype [B, T, D]. The state at t has seen
          tokens <= t.

        Raises:
          ValueError: rows longer than the model's positions.
        """
        length = tokens.shape[1]
        self._check_length(length, "hidden(tokens)")
        rotation = self._rotation(jnp.arange(length)[None])
        implementation = chosen(
            self.attention, self.compute_dtype, self.config.head_dim
        )
        attend = causal_attention(token_mask, implementation)

        def layer(x, layer_params):
            block = nnx.merge(self._block, layer_params)
            return block(self._in_place(x), rotation, attend), None

        # remat keeps only the layers' inputs for the backward pass: less memory, for
        # one more forward pass.
        layer = jax.checkpoint(layer) if self.remat else layer
        x = self._embed(params, tokens)
        if self.unroll:
            for index in range(self.config.layers):
                x, _ = layer(x, layer_slice(params, index))
        else:
            x, _ = jax.lax.scan(layer, x, params["layers"])
        return self._final_norm(params, x)

    @property
    def tied(self) -> bool:
        """Whether ``unembed`` returns the transposed embedding."""
        return self.config.tied

    @property
    def devices(self) -> int:
        """Number of devices over which rows and their activations are split."""
        return 1 if self.rows is None else self.rows.mesh.size

    def unembed(self, params: Params) -> Array:
        """Returns the output matrix [D, V] in the parameters' dtype.

        Args:
          params: all parameters; tied weights stay one leaf.
        """
        if self.config.tied:
            return params["embed"]["embedding"].T
        return params["head"]["kernel"]

    def init_cache(self, rows: int, length: int, turned: bool | None = None) -> Cache:
        """Builds an empty cache.

        Args:
          rows: number of slots.
          length: positions in each slot.
          turned: layout of the keys, see ``TurnedCache``; None chooses the faster one
            on the default backend.

        Raises:
          ValueError: ``length`` above the model's positions.
        """
        self._check_length(length, "init_cache(length)")
        c = self.config
        if turned is None:
            # On other backends the compiler chooses the order in memory, and
            # ``cached_attention`` has products of its own only for grouped heads.
            turned = c.grouped and jax.default_backend() == "cpu"
        shape = c.layers, rows, c.kv_heads, length, c.head_dim
        return empty_cache(turned, *shape, self.compute_dtype)

    def extend(
        self, params: Params, cache: Cache, tokens: Array, start: Array
    ) -> tuple[Array, Cache]:
        """Feeds the same number of new tokens to every slot.

        A token attends to cache positions up to its own, so all positions before
        ``start[r]`` must have been fed. Positions at or past the cache's length are
        dropped: a row with ``start[r] = length`` changes nothing.

        Args:
          params: all parameters, layers stacked or as ``unstacked`` returns them.
          cache: keys and values of what the slots hold.
          tokens: int32 [R, P].
          start: int32 [R]; row r goes to positions ``start[r] ... start[r] + P - 1``.

        Returns:
          The states after the final norm [R, P, D], and the cache with the new keys and
          values.
        """
        positions = start[:, None] + jnp.arange(tokens.shape[1])
        mask = (jnp.arange(cache.length) <= positions[..., None])[:, None]
        rows = jnp.arange(len(tokens))[:, None]

        def attend(cached, query, *new):
            cached = written(*cached, new, rows, positions, cache.turned)
            return cached_attention(query, *cached, mask, cache.turned), cached

        single = tokens.shape[1] == 1
        return self._fed(params, cache, tokens, positions, attend, single)

    def extend_packed(
        self, params: Params, cache: Cache, packed: PackedRows, spans: tuple[int, ...]
    ) -> tuple[Array, Cache]:
        """Feeds new tokens of several slots in one row, see ``attention.PackedRows``.

        All positions of a slot before those fed must have been fed.

        Args:
          params: all parameters, layers stacked or as ``unstacked`` returns them.
          cache: keys and values of what the slots hold.
          packed: the tokens [N], each with its slot and position.
          spans: numbers of positions to look at, see ``packed_attention``.

        Returns:
          The states after the final norm [N, D], and the cache with the new keys and
          values.
        """

        def attend(held, query, *new):
            held = written(*held, new, packed.slots, packed.positions, cache.turned)
            return packed_attention(query, *held, packed, spans, cache.turned), held

        return self._fed(params, cache, packed.tokens, packed.positions, attend, False)

    def _fed(self, params, cache: Cache, tokens, positions, attend, single: bool):
        """Feeds tokens [..., N] through all layers.

        Args:
          attend: (a layer's cached keys and values, new query, key, value) -> (result
            of attention, the layer's keys and values with the new ones).
          single: whether each row is one token, for which layers are unrolled.
        """
        rotation = self._rotation(positions)

        def layer(x, inputs):
            layer_params, *cached = inputs
            # ``attend`` runs inside the block, which returns states alone; the updated
            # keys and values come out through this list.
            updated = []

            def attend_and_record(query, *new):
                result, after = attend(cached, query, *new)
                updated.extend(after)
                return result

            block = nnx.merge(self._block, layer_params)
            return block(self._in_place(x), rotation, attend_and_record), updated

        x = self._embed(params, tokens)
        if self.unroll or single:
            layers = range(self.config.layers)
            inputs = [(layer_slice(params, n), *(h[n] for h in cache)) for n in layers]
            x, updated = unrolled_scan(layer, x, inputs)
        else:
            # A scan takes the cache stacked, which copies it: cheap beside many tokens.
            stacked = (jnp.stack(each) for each in cache)
            x, updated = jax.lax.scan(layer, x, (params["layers"], *stacked))
            updated = (tuple(each) for each in updated)
        return self._final_norm(params, x), type(cache)(*updated)

    def _new_block(self, rngs: nnx.Rngs) -> DecoderLayer:
        block = DecoderLayer(self.config, rngs)
        if self.lora is not None:
            attach(block, self.lora, rngs)
        return block

    def _rotation(self, positions: Array) -> tuple[Array, Array]:
        return rotation_table(positions, self.config)

    def _embed(self, params: Params, tokens: Array) -> Array:
        return params["embed"]["embedding"].astype(self.compute_dtype)[tokens]

    def _final_norm(self, params: Params, x: Array) -> Array:
        ends = {name: leaf for name, leaf in params.items() if name != "layers"}
        return nnx.merge(self._ends, ends).final_norm(self._in_place(x))

    def _in_place(self, x: Array) -> Array:
        """Keeps states [B, T, D] split by rows alone, see ``with_rows``."""
        if self.rows is None:
            return x
        return jax.lax.with_sharding_constraint(x, self.rows)

    def _check_length(self, length: int, what: str) -> None:
        if length > self.config.max_positions:
            raise ValueError(
                f"{what}: {length} positions, but the model has at most "
                f"{self.config.max_positions}; shorten the context in the run's config "
                "or raise max_positions in the model's"
            )


class Cache(NamedTuple):
    """Keys and values of the tokens in each slot, one array per layer.

    Position p of row r belongs to the token at position p of that slot. Positions past
    a row's own end hold garbage and are never attended to. Heads come before positions
    because attention then reads memory in order (2.8 times faster on a CPU).

    Attributes:
      keys: [R, K, S, C] per layer.
      values: [R, K, S, C] per layer.
    """

    keys: tuple[Array, ...]
    values: tuple[Array, ...]

    @property
    def turned(self) -> bool:
        """Whether keys are [R, K, C, S]."""
        return False

    @property
    def rows(self) -> int:
        """Number of slots."""
        return self.values[0].shape[0]

    @property
    def length(self) -> int:
        """Number of positions in each slot."""
        return self.values[0].shape[2]

    @property
    def place(self) -> Cache:
        """The axis of positions in each leaf, for ``jax.tree.map``."""
        keys = 3 if self.turned else 2
        return self._replace(
            keys=tuple(keys for _ in self.keys), values=tuple(2 for _ in self.values)
        )


class TurnedCache(Cache):
    """A cache that holds each layer's keys as [R, K, C, S].

    The products of queries with keys then read memory in order, as those of weights
    with values do: they take half the time on a CPU.
    """

    __slots__ = ()

    @property
    def turned(self) -> bool:
        """Whether keys are [R, K, C, S]."""
        return True


def empty_cache(
    turned: bool, layers: int, rows: int, heads: int, length: int, size: int, dtype: Any
) -> Cache:
    """Builds a cache of zeros.

    Args:
      turned: whether keys are [R, K, C, S], see ``TurnedCache``.
      layers: number of layers.
      rows: number of slots R.
      heads: number of key/value heads K.
      length: positions S in each slot.
      size: head size C.
      dtype: of keys and values.
    """
    shape = (rows, heads, length, size)
    keys = (rows, heads, size, length) if turned else shape
    return (TurnedCache if turned else Cache)(
        tuple(jnp.zeros(keys, dtype) for _ in range(layers)),
        tuple(jnp.zeros(shape, dtype) for _ in range(layers)),
    )


def written(
    keys: Array,
    values: Array,
    new: tuple[Array, Array],
    rows: Array,
    positions: Array,
    turned: bool,
) -> tuple[Array, Array]:
    """Writes new keys and values into those of one layer.

    Args:
      keys: the layer's keys in the cache.
      values: the layer's values in the cache.
      new: new keys and values, [R, P, K, C] each (or [..., K, C]).
      rows: int32 [R, 1], the slot of each new token (or [...]).
      positions: int32 [R, P], its position (or [...]); new tokens at or past the
        cache's length are dropped.
      turned: the layout of ``keys``, see ``TurnedCache``.
    """
    at = (rows, slice(None), slice(None), positions)
    # Padding is addressed past the end, so "drop" is what keeps it out of the cache.
    keys = keys.at[at if turned else at[:2] + at[3:]].set(new[0], mode="drop")
    return keys, values.at[at[:2] + at[3:]].set(new[1], mode="drop")


def layer_slice(params: Params, index: int) -> Params:
    """Takes the parameters of one layer.

    Args:
      params: all parameters, layers stacked or as ``unstacked`` returns them.
      index: number of the layer, from 0.
    """
    layers = params["layers"]
    if isinstance(layers, tuple):
        return layers[index]
    return jax.tree.map(lambda leaf: leaf[index], layers)


def unstacked(params: Params) -> Params:
    """Replaces the stack of layers by a tuple of layers.

    ``extend`` within a loop needs this: a slice of the stack there is a copy at every
    step.

    Args:
      params: all parameters, layers stacked on axis 0.
    """
    count = jax.tree.leaves(params["layers"])[0].shape[0]
    return {**params, "layers": tuple(layer_slice(params, n) for n in range(count))}


def unrolled_scan(
    layer: Callable, x: jax.Array, inputs: list
) -> tuple[jax.Array, tuple]:
    """Does what ``lax.scan`` does, as a Python loop that is traced layer by layer.

    Args:
      layer: (x, inputs of one layer) -> (x, results of that layer, a tuple).
      x: states before the first layer.
      inputs: of each layer, in order.

    Returns:
      The states after the last layer, and for each result a tuple with one per layer.
    """
    results = []
    for each in inputs:
        x, result = layer(x, each)
        results.append(result)
    return x, tuple(zip(*results))
