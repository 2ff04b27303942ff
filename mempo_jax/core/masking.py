"""Masked arithmetic: what a mask leaves out is replaced before it is used.

Multiplying by a mask after ``exp`` or ``log`` turns garbage in padding into NaN, in the
value or in the gradient. Everything here selects with ``where`` first.
"""

from __future__ import annotations

import jax.numpy as jnp

from mempo_jax.types import Array


def as_float(values: Array) -> Array:
    """``values`` as a float array of at least 32 bits.

    Args:
      values: any shape and dtype; bfloat16 and integers become float32.
    """
    values = jnp.asarray(values)
    # A sum of bfloat16 ones stops growing at 256.
    return values.astype(jnp.promote_types(values.dtype, jnp.float32))


def keep(values: Array, mask: Array, fill: float = 0.0) -> Array:
    """``values`` where ``mask``, else ``fill``; what is left out gets no gradient.

    Args:
      values: any shape; may hold anything where masked out.
      mask: bool, broadcasts with values.
      fill: takes the place of what is left out.
    """
    values = as_float(values)
    # The fill takes the dtype of the values, so that it never widens them.
    return jnp.where(mask, values, jnp.asarray(fill, values.dtype))


def masked_sum(values: Array, mask: Array, axis=None, keepdims: bool = False) -> Array:
    """Sum of the values where ``mask``; 0 if nothing is counted.

    Args:
      values: any shape.
      mask: bool, broadcasts with values.
      axis, keepdims: as in ``jnp.sum``.
    """
    return jnp.sum(keep(values, mask), axis=axis, keepdims=keepdims)


def masked_mean(values: Array, mask: Array, axis=None, keepdims: bool = False) -> Array:
    """Mean of the values where ``mask``; 0 if nothing is counted.

    Args:
      values: any shape.
      mask: bool, broadcasts with values.
      axis, keepdims: as in ``jnp.mean``.
    """
    total = masked_sum(values, mask, axis, keepdims)
    # Ones are summed rather than the mask, which may be smaller than what it masks.
    count = masked_sum(jnp.ones_like(as_float(values)), mask, axis, keepdims)
    # If nothing is counted this is 0 / 1, not 0 / 0.
    return total / jnp.maximum(count, 1)


def masked_max(values: Array, mask: Array, axis=None, keepdims: bool = False) -> Array:
    """Largest value where ``mask``; -inf if nothing is counted.

    Args:
      values: any shape.
      mask: bool, broadcasts with values.
      axis, keepdims: as in ``jnp.max``.
    """
    return jnp.max(keep(values, mask, -jnp.inf), axis=axis, keepdims=keepdims)


def masked_min(values: Array, mask: Array, axis=None, keepdims: bool = False) -> Array:
    """Smallest value where ``mask``; inf if nothing is counted.

    Args:
      values: any shape.
      mask: bool, broadcasts with values.
      axis, keepdims: as in ``jnp.min``.
    """
    return jnp.min(keep(values, mask, jnp.inf), axis=axis, keepdims=keepdims)
