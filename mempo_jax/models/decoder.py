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
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from mempo_jax.models.layers import Block, DecoderConfig, Ends, rotation_table

__all__ = ["Cache", "DecoderConfig", "LanguageModel", "Params", "layer_slice"]

Array = jax.Array
Params = dict[str, Any]


class Cache(NamedTuple):
    """Keys and values of what each slot holds: one [R, K, S, C] array a layer.

    Position p of row r is the token at position p of that slot. What lies past a
    row's own end is garbage and is never attended to. Heads come before positions
    because attention then reads memory in order (2.8 times faster on a CPU).
    """

    keys: tuple[Array, ...]
    values: tuple[Array, ...]

    @property
    def rows(self) -> int:
        return self.keys[0].shape[0]

    @property
    def length(self) -> int:
        return self.keys[0].shape[2]


class LanguageModel:
    """A decoder over plain parameters.

    compute_dtype: dtype of activations and of the cache (norms, softmax and rotary
    angles stay float32). remat: recompute each layer in the backward pass of
    ``hidden``. unroll: lay the layers of ``hidden`` out one after the other (faster
    on small models) instead of ``lax.scan`` (constant compile time); None chooses by
    depth. ``extend`` always unrolls, because a scan copies the cache at every step.
    """

    UNROLL_UP_TO = 6

    def __init__(
        self,
        config: DecoderConfig,
        compute_dtype: Any,
        *,
        remat: bool = False,
        unroll: bool | None = None,
    ):
        self.config = config
        self.compute_dtype = jnp.dtype(compute_dtype)
        self.remat = remat
        self.unroll = config.layers <= self.UNROLL_UP_TO if unroll is None else unroll
        # Abstract: nothing is allocated, only the structure is kept.
        block = nnx.eval_shape(lambda: Block(config, nnx.Rngs(0)))
        ends = nnx.eval_shape(lambda: Ends(config, nnx.Rngs(0)))
        self._block = nnx.split(block)[0]
        self._ends = nnx.split(ends)[0]

    def __hash__(self) -> int:
        return hash(self._identity())

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, LanguageModel)
        return same and self._identity() == other._identity()

    def _identity(self) -> tuple:
        return self.config, self.compute_dtype, self.remat, self.unroll

    def init(self, key: Array) -> Params:
        """Fresh float32 parameters from one PRNG key."""
        ends_key, layers_key = jax.random.split(key)

        def make(module: type, key: Array) -> Params:
            state = nnx.split(module(self.config, nnx.Rngs(key)))[1]
            return nnx.to_pure_dict(state)

        keys = jax.random.split(layers_key, self.config.layers)
        layers = jax.vmap(lambda key: make(Block, key))(keys)
        return {**make(Ends, ends_key), "layers": layers}

    def hidden(self, params: Params, tokens: Array, token_mask: Array) -> Array:
        """States after the final norm, compute dtype [B, T, D].

        tokens int32 [B, T], token_mask bool [B, T]: rows are right-padded, so index
        and position are one; padding is attended to by nothing but is never inferred
        from an id. The state at t has seen tokens <= t.
        """
        length = tokens.shape[1]
        self._check_length(length, "hidden(tokens)")
        causal = jnp.tril(jnp.ones((length, length), bool))
        mask = (causal & token_mask[:, None, :])[:, None]
        rotation = self._rotation(jnp.arange(length)[None])

        def attend(query, key, value):
            return jax.nn.dot_product_attention(query, key, value, mask=mask)

        def layer(x, layer_params):
            block = nnx.merge(self._block, layer_params)
            return block(x, rotation, attend), None

        layer = jax.checkpoint(layer) if self.remat else layer
        x = self._embed(params, tokens)
        if self.unroll:
            for index in range(self.config.layers):
                x, _ = layer(x, layer_slice(params, index))
        else:
            x, _ = jax.lax.scan(layer, x, params["layers"])
        return self._final_norm(params, x)

    def unembed(self, params: Params) -> Array:
        """Output matrix [D, V] in the parameters' dtype; tied weights stay one leaf."""
        if self.config.tied:
            return params["embed"]["embedding"].T
        return params["head"]["kernel"]

    def init_cache(self, rows: int, length: int) -> Cache:
        """An empty cache of ``rows`` slots with ``length`` positions each."""
        self._check_length(length, "init_cache(length)")
        shape = (rows, self.config.kv_heads, length, self.config.head_dim)
        layers = range(self.config.layers)
        keys, values = (
            tuple(jnp.zeros(shape, self.compute_dtype) for _ in layers) for _ in "kv"
        )
        return Cache(keys, values)

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
        rotation = self._rotation(positions)
        rows = jnp.arange(tokens.shape[0])[:, None]
        x = self._embed(params, tokens)
        keys, values = [], []

        def write(held, new):
            return held.at[rows, :, positions].set(new, mode="drop")

        def attend(query, key, value):
            index = len(keys)
            keys.append(write(cache.keys[index], key))
            values.append(write(cache.values[index], value))
            seen = (jnp.swapaxes(held[-1], 1, 2) for held in (keys, values))
            return jax.nn.dot_product_attention(query, *seen, mask=mask)

        for index in range(self.config.layers):
            block = nnx.merge(self._block, layer_slice(params, index))
            x = block(x, rotation, attend)
        return self._final_norm(params, x), Cache(tuple(keys), tuple(values))

    def _rotation(self, positions: Array) -> tuple[Array, Array]:
        return rotation_table(positions, self.config.head_dim, self.config.rope_theta)

    def _embed(self, params: Params, tokens: Array) -> Array:
        return params["embed"]["embedding"].astype(self.compute_dtype)[tokens]

    def _final_norm(self, params: Params, x: Array) -> Array:
        ends = {name: leaf for name, leaf in params.items() if name != "layers"}
        return nnx.merge(self._ends, ends).final_norm(x)

    def _check_length(self, length: int, what: str) -> None:
        if length > self.config.max_positions:
            raise ValueError(
                f"{what}: {length} positions, but the model has at most "
                f"{self.config.max_positions}; shorten the context in the run's config "
                "or raise max_positions in the model's"
            )


def layer_slice(params: Params, index: int) -> Params:
    """The parameters of one layer out of the stacked ones."""
    return jax.tree.map(lambda leaf: leaf[index], params["layers"])
