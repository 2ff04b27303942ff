"""The device mesh and where each array lies on it.

Axes: ``data`` splits rows; ``fsdp`` splits rows and parameters; ``tensor`` splits the
wide dimensions of parameters. Where a parameter lies is read off one ordered table of
(path pattern, PartitionSpec); the optimiser's moments carry the same paths and follow
the same table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "tensor")
ROW_AXES = ("data", "fsdp")

Table = Sequence[tuple[str, PartitionSpec]]

_P = PartitionSpec
# The first row whose pattern is found in the path decides. Layers are stacked: the
# leading axis of everything under "layers" is the layer, and stays whole.
DECODER_TABLE: Table = (
    (r"(^|/)embed/embedding$", _P("tensor", "fsdp")),
    (r"(^|/)head/kernel$", _P("fsdp", "tensor")),
    (r"(query|key|value|gate|up)/kernel$", _P(None, "fsdp", "tensor")),
    (r"(query|key|value)/bias$", _P(None, "tensor")),
    (r"(output|down)/kernel$", _P(None, "tensor", "fsdp")),
    # An adapter is split as its kernel is; the rank, its inner side, stays whole.
    (r"(query|key|value|gate|up)/adapter/a$", _P(None, "fsdp")),
    (r"(query|key|value|gate|up)/adapter/b$", _P(None, None, "tensor")),
    (r"(output|down)/adapter/a$", _P(None, "tensor")),
    (r"(output|down)/adapter/b$", _P(None, None, "fsdp")),
    (r"norm/scale$", _P()),
)


def make_mesh(
    data: int, fsdp: int, tensor: int, *, devices: Sequence[Any] | None = None
) -> Mesh:
    """A mesh with axes data x fsdp x tensor.

    Args:
      data, fsdp, tensor: devices along each axis; -1 for data takes all that remain.
      devices: what to use; None takes all devices of the run. With ``data`` given,
        only the first data x fsdp x tensor of them are used.

    Raises:
      ValueError: an axis below 1, or not enough devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    remedy = "change mesh.data, mesh.fsdp or mesh.tensor"
    if fsdp < 1 or tensor < 1 or (data < 1 and data != -1):
        raise ValueError(
            "mesh axes must be at least 1 (data: or -1, all that remain); got "
            f"data={data}, fsdp={fsdp}, tensor={tensor}: {remedy}"
        )
    if data == -1:
        if len(devices) % (fsdp * tensor):
            raise ValueError(
                f"fsdp x tensor = {fsdp * tensor} must divide the number of devices, "
                f"{len(devices)}: {remedy}"
            )
        data = len(devices) // (fsdp * tensor)
    wanted = data * fsdp * tensor
    if jax.process_count() > 1 and wanted < len(devices):
        raise ValueError(
            f"a mesh of {data} x {fsdp} x {tensor} leaves devices of some process "
            f"unused, there are {len(devices)}: {remedy}, or start fewer processes"
        )
    if wanted > len(devices):
        raise ValueError(
            f"a mesh of {data} x {fsdp} x {tensor} needs {wanted} devices, there are "
            f"{len(devices)}: {remedy}"
        )
    return jax.make_mesh(
        (data, fsdp, tensor),
        AXES,
        axis_types=(AxisType.Auto,) * len(AXES),
        devices=devices[:wanted],
    )


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def row_sharding(mesh: Mesh) -> NamedSharding:
    """The leading axis, rows, is split over data and fsdp."""
    return NamedSharding(mesh, PartitionSpec(ROW_AXES))


def row_multiple(mesh: Mesh) -> int:
    """What the number of rows must be a multiple of."""
    return math.prod(mesh.shape[axis] for axis in ROW_AXES)


def check_rows(count: int, mesh: Mesh) -> None:
    """Refuses a number of rows that the mesh cannot split evenly.

    Raises:
      ValueError: it says which multiple was expected.
    """
    multiple = row_multiple(mesh)
    if count % multiple:
        raise ValueError(
            f"rows must be a multiple of data x fsdp = {multiple}, got {count}: fill "
            "up with rows whose valid is False, or change mesh.data or mesh.fsdp"
        )


def shardings(tree: Any, mesh: Mesh, table: Table = DECODER_TABLE) -> Any:
    """The sharding of each leaf of parameters or of anything that contains their paths.

    Args:
      tree: leaves with a shape (``jax.eval_shape`` gives them without an array).
      table: ordered rows (pattern, PartitionSpec); scalars need no row.

    Raises:
      ValueError: paths that no row matches, all of them; or a dimension that the mesh
        does not divide.
    """
    flat, structure = jax.tree.flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in flat]
    shapes = [tuple(leaf.shape) for _, leaf in flat]
    unmatched = [
        name
        for name, shape in zip(names, shapes)
        if shape and _lookup(name, table) is None
    ]
    if unmatched:
        raise ValueError(
            f"no row of the partition table matches {', '.join(unmatched)}: add a row "
            "for each, in mempo_jax/training/sharding.py or in the table passed"
        )
    found = [
        NamedSharding(mesh, _lookup(name, table) if shape else PartitionSpec())
        for name, shape in zip(names, shapes)
    ]
    for name, shape, sharding in zip(names, shapes, found):
        _check_divides(name, shape, sharding)
    return jax.tree.unflatten(structure, found)


def _lookup(name: str, table: Table) -> PartitionSpec | None:
    return next((spec for pattern, spec in table if re.search(pattern, name)), None)


def _check_divides(name: str, shape: tuple[int, ...], sharding: NamedSharding) -> None:
    if len(sharding.spec) > len(shape):
        raise ValueError(
            f"{name} has shape {shape}, its row of the partition table names "
            f"{len(sharding.spec)} dimensions, {sharding.spec}: correct the table"
        )
    for size, axis in zip(shape, sharding.spec):
        parts = 1 if axis is None else sharding.mesh.shape[axis]
        if size % parts:
            raise ValueError(
                f"{name}: a dimension of {size} cannot be split over mesh axis "
                f"{axis}={parts} (shape {shape}, {sharding.spec}): set mesh.{axis} to "
                f"a divisor of {size}, or to 1"
            )
