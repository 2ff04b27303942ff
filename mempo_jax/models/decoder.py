"""The decoder-only transformer (Llama, Qwen2 and Qwen3 families) as a policy.

Flax NNX *defines* the modules; everything that runs takes parameters as a plain
nested dict (float32, layers stacked on axis 0), so ``jax.jit``, ``jax.grad`` and
shardings see ordinary pytrees.

Letters: ``B`` rows, ``T`` tokens, ``R`` slots, ``P`` new tokens, ``S`` cache length,
``L`` layers, ``D`` width, ``H`` heads, ``K`` key/value heads, ``C`` head size,
``F`` MLP width, ``V`` vocabulary.

Parameter paths (``bias``, ``q_norm``, ``k_norm`` and ``head`` where configured)::

    embed/embedding            [V, D]
    layers/attention_norm/scale [L, D]      layers/mlp_norm/scale       [L, D]
    layers/attention/query/kernel [L, D, H*C]  (bias [L, H*C])
    layers/attention/key/kernel   [L, D, K*C]  (bias [L, K*C]), value alike
    layers/attention/output/kernel [L, H*C, D]
    layers/attention/query_norm/scale, key_norm/scale [L, C]
    layers/mlp/gate/kernel, up/kernel [L, D, F]     layers/mlp/down/kernel [L, F, D]
    final_norm/scale [D]                     head/kernel [D, V]   (untied only)

Keys and values of what slots hold, and how new ones are put in.

Letters as in ``decoder``: ``R`` slots, ``K`` key/value heads, ``S`` cache length, ``C``
head size, ``P`` new tokens.

Layers one after the other instead of ``lax.scan``, and their parameters apart.
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


class Cache(NamedTuple):
    """Keys and values of what each slot holds: one [R, K, S, C] array a layer.

    Position p of row r is the token at position p of that slot. What lies past a
    row's own end is garbage and is never attended to. Heads come before positions
    because attention then reads memory in order (2.8 times faster on a CPU).
    """

    keys: tuple[Array, ...]
    values: tuple[Array, ...]

    @property
    def turned(self) -> bool:
        return False

    @property
    def rows(self) -> int:
        return self.values[0].shape[0]

    @property
    def length(self) -> int:
        return self.values[0].shape[2]

    @property
    def place(self) -> Cache:
        """The axis of positions in each leaf, for ``jax.tree.map``."""
        keys = 3 if self.turned else 2
        return self._replace(
            keys=tuple(keys for _ in self.keys), values=tuple(2 for _ in self.values)
        )


class TurnedCache(Cache):
    """The same with each layer's keys as [R, K, C, S].

    Products of queries with keys then read memory in order, as those of weights with
    values do: half their time on a CPU.
    """

    __slots__ = ()

    @property
    def turned(self) -> bool:
        return True


def empty_cache(
    turned: bool, layers: int, rows: int, heads: int, length: int, size: int, dtype: Any
) -> Cache:
    """A cache of zeros."""
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
    """One layer's keys and values with ``new`` ones, [R, P, K, C] each.

    rows int32 [R, 1], positions int32 [R, P]: where these belong, or any two of one
    shape with [..., K, C] of new ones; positions at or past the length are dropped.
    """
    at = (rows, slice(None), slice(None), positions)
    keys = keys.at[at if turned else at[:2] + at[3:]].set(new[0], mode="drop")
    return keys, values.at[at[:2] + at[3:]].set(new[1], mode="drop")


Params = dict[str, Any]


def in_turn(layer: Callable, x: jax.Array, given: list) -> tuple[jax.Array, tuple]:
    """``lax.scan`` laid out, with a tuple for each of the stacked results."""
    outcomes = []
    for each in given:
        x, outcome = layer(x, each)
        outcomes.append(outcome)
    return x, tuple(zip(*outcomes))


def layer_slice(params: Params, index: int) -> Params:
    """The parameters of one layer out of the stacked (or unstacked) ones."""
    layers = params["layers"]
    if isinstance(layers, tuple):
        return layers[index]
    return jax.tree.map(lambda leaf: leaf[index], layers)


def unstacked(params: Params) -> Params:
    """The same with a tuple of layers in place of the stack.

    For ``extend`` within a loop: a slice of the stack there is a copy at every step.
    """
    count = jax.tree.leaves(params["layers"])[0].shape[0]
    return {**params, "layers": tuple(layer_slice(params, n) for n in range(count))}


Array = jax.Array


class LanguageModel:
    """A decoder over plain parameters.

    compute_dtype: dtype of activations and of the cache (norms, softmax and rotary
    angles stay float32). remat: recompute each layer in the backward pass of
    ``hidden``. unroll: lay the layers of ``hidden`` out one after the other (faster
    on small models) instead of ``lax.scan`` (constant compile time); None chooses by
    depth. ``extend`` by one token always unrolls, because a scan copies the whole
    cache, which weighs little against many tokens and much against one.
    lora: the adapters that parameters hold beside their kernels; None: none.
    attention: the kernel of ``hidden``, see ``models.attention``.
    """

    UNROLL_UP_TO = 6

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
        # Abstract: nothing is allocated, only the structure is kept.
        block = nnx.eval_shape(lambda: self._new_block(nnx.Rngs(0)))
        ends = nnx.eval_shape(lambda: Ends(config, nnx.Rngs(0)))
        self._block = nnx.split(block)[0]
        self._ends = nnx.split(ends)[0]

    def with_lora(self, lora: LoraConfig | None) -> LanguageModel:
        """The same decoder with other adapters, or with none."""
        return LanguageModel(
            self.config,
            self.compute_dtype,
            remat=self.remat,
            unroll=self.unroll,
            lora=lora,
            attention=self.attention,
        )

    def with_rows(self, rows: jax.sharding.Sharding | None) -> LanguageModel:
        """The same decoder, with the input of each layer kept in its place on a mesh.

        Where weights are split over the axes of rows, each device else gets the rows of
        all, of which it computes a part of the width: the memory of one device for the
        whole batch.
        """
        made = copy.copy(self)
        made.rows = rows
        return made

    def __hash__(self) -> int:
        return hash(self._identity())

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, LanguageModel)
        return same and self._identity() == other._identity()

    def _identity(self) -> tuple:
        what = self.config, self.compute_dtype, self.lora
        return *what, self.remat, self.unroll, self.attention, self.rows

    def init(self, key: Array) -> Params:
        """Fresh float32 parameters from one PRNG key."""
        ends_key, layers_key = jax.random.split(key)

        def make(module: Callable, key: Array) -> Params:
            return nnx.to_pure_dict(nnx.split(module(nnx.Rngs(key)))[1])

        keys = jax.random.split(layers_key, self.config.layers)
        layers = jax.vmap(lambda key: make(self._new_block, key))(keys)
        ends = make(functools.partial(Ends, self.config), ends_key)
        return {**ends, "layers": layers}

    def hidden(self, params: Params, tokens: Array, token_mask: Array) -> Array:
        """States after the final norm, compute dtype [B, T, D].

        tokens int32 [B, T], token_mask bool [B, T]: rows are right-padded, so index
        and position are one; padding is attended to by nothing but is never inferred
        from an id. The state at t has seen tokens <= t.
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
        """Whether ``unembed`` gives the embedding, turned."""
        return self.config.tied

    @property
    def devices(self) -> int:
        """Number of devices over which rows, and what they make, are split."""
        return 1 if self.rows is None else self.rows.mesh.size

    def unembed(self, params: Params) -> Array:
        """Output matrix [D, V] in the parameters' dtype; tied weights stay one leaf."""
        if self.config.tied:
            return params["embed"]["embedding"].T
        return params["head"]["kernel"]

    def init_cache(self, rows: int, length: int, turned: bool | None = None) -> Cache:
        """An empty cache of ``rows`` slots with ``length`` positions each.

        turned: the order of its keys, see ``TurnedCache``; None: as is best here.
        """
        self._check_length(length, "init_cache(length)")
        c = self.config
        if turned is None:
            # Elsewhere compilers choose the order in memory, and ``cached_attention``
            # has products of its own for grouped heads alone.
            turned = c.grouped and jax.default_backend() == "cpu"
        shape = c.layers, rows, c.kv_heads, length, c.head_dim
        return empty_cache(turned, *shape, self.compute_dtype)

    def extend(
        self, params: Params, cache: Cache, tokens: Array, start: Array
    ) -> tuple[Array, Cache]:
        """Feeds ``tokens`` [R, P] at positions ``start[r] ... start[r] + P - 1``.

        Returns the states after the final norm [R, P, D] and the cache with their keys
        and values written. A token attends to cache positions up to its own, so all
        positions before ``start[r]`` must have been fed. Positions at or past the
        cache's length are dropped: a row with ``start[r] = length`` changes nothing.
        """
        positions = start[:, None] + jnp.arange(tokens.shape[1])
        mask = (jnp.arange(cache.length) <= positions[..., None])[:, None]
        rows = jnp.arange(len(tokens))[:, None]

        def attend(held, query, *new):
            held = written(*held, new, rows, positions, cache.turned)
            return cached_attention(query, *held, mask, cache.turned), held

        single = tokens.shape[1] == 1
        return self._fed(params, cache, tokens, positions, attend, single)

    def extend_packed(
        self, params: Params, cache: Cache, packed: PackedRows, spans: tuple[int, ...]
    ) -> tuple[Array, Cache]:
        """``extend`` of packed tokens: feeds those of ``packed`` into their slots.

        Returns the states after the final norm [N, D] and the cache. spans: see
        ``packed_attention``. All earlier positions of a slot must have been fed.
        """

        def attend(held, query, *new):
            held = written(*held, new, packed.slots, packed.positions, cache.turned)
            return packed_attention(query, *held, packed, spans, cache.turned), held

        return self._fed(params, cache, packed.tokens, packed.positions, attend, False)

    def _fed(self, params, cache: Cache, tokens, positions, attend, single: bool):
        """Tokens [..., N] through all layers. ``attend``: from a layer's keys and
        values of the cache and the new queries, keys and values to what is attended to
        and the layer's keys and values with the new ones. single: one token a row."""
        rotation = self._rotation(positions)

        def layer(x, given):
            layer_params, *held = given
            made = []

            def looked_up(query, *new):
                seen, after = attend(held, query, *new)
                made.extend(after)
                return seen

            block = nnx.merge(self._block, layer_params)
            return block(self._in_place(x), rotation, looked_up), made

        x = self._embed(params, tokens)
        if self.unroll or single:
            layers = range(self.config.layers)
            given = [(layer_slice(params, n), *(h[n] for h in cache)) for n in layers]
            x, held = in_turn(layer, x, given)
        else:
            stacked = (jnp.stack(each) for each in cache)
            x, held = jax.lax.scan(layer, x, (params["layers"], *stacked))
            held = (tuple(each) for each in held)
        return self._final_norm(params, x), type(cache)(*held)

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
        """States [B, T, D], split by rows alone."""
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
