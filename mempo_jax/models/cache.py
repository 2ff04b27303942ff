"""Keys and values of what slots hold, and how new ones are put in.

Letters as in ``decoder``: ``R`` slots, ``K`` key/value heads, ``S`` cache length, ``C``
head size, ``P`` new tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array


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
