"""Streams a checkpoint's parameters straight to where they lie on the mesh."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from mempo_jax.models.stream import Place, Read
from mempo_jax.training import sharding


def on_mesh(mesh: Mesh, table: sharding.Table = sharding.DECODER_TABLE) -> Place:
    """A ``Place`` that makes each parameter as one sharded jax array.

    A process reads the parts that its own devices hold, each once, and keeps nothing:
    at most one parameter stands in host memory.
    """

    def place(path: str, shape: tuple[int, ...], dtype: np.dtype, read: Read) -> Any:
        leaf = jax.ShapeDtypeStruct(shape, dtype)
        where = sharding.shardings({path: leaf}, mesh, table)[path]
        held: dict[Any, np.ndarray] = {}

        def part(index: tuple[slice, ...]) -> np.ndarray:
            key = tuple((each.start, each.stop) for each in index)
            if key not in held:  # devices of one data axis hold the same part
                held[key] = read(index)
            return held[key]

        return jax.make_array_from_callback(shape, where, part, dtype=dtype)

    return place
