"""Layers one after the other instead of ``lax.scan``, and their parameters apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

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
