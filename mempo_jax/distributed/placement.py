"""The device mesh and where each array lies on it.

Axes: ``data`` splits rows; ``fsdp`` splits rows and parameters; ``tensor`` splits the
wide dimensions of parameters. Where a parameter lies is read off one ordered table of
(path pattern, PartitionSpec); the optimiser's moments carry the same paths and follow
the same table.

Puts arrays where they lie: on the mesh of a run, on the devices of one process.

With several processes the mesh spans the devices of all. Every process then holds the
same host data and calls these functions alike; each places its own part.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mempo_jax.models.stream import Place, Read

AXES = ("data", "fsdp", "tensor")
ROW_AXES = ("data", "fsdp")
PartitionRules = Sequence[tuple[str, PartitionSpec]]
_P = PartitionSpec
# The first row whose pattern is found in the path decides. Layers are stacked: the
# leading axis of everything under "layers" is the layer, and stays whole.
DECODER_PARTITION_RULES: PartitionRules = (
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


def shardings(
    tree: Any, mesh: Mesh, table: PartitionRules = DECODER_PARTITION_RULES
) -> Any:
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


def _lookup(name: str, table: PartitionRules) -> PartitionSpec | None:
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


PIECE_BYTES = 1 << 28  # of an array that are moved at a time


def on_mesh(mesh: Mesh, table: PartitionRules = DECODER_PARTITION_RULES) -> Place:
    """A ``Place`` that makes each parameter as one sharded jax array.

    A process reads the parts that its own devices hold, each once, and keeps nothing:
    at most one parameter stands in host memory.
    """

    def place(path: str, shape: tuple[int, ...], dtype: np.dtype, read: Read) -> Any:
        leaf = jax.ShapeDtypeStruct(shape, dtype)
        where = shardings({path: leaf}, mesh, table)[path]
        held: dict[Any, np.ndarray] = {}

        def part(index: tuple[slice, ...]) -> np.ndarray:
            key = tuple((each.start, each.stop) for each in index)
            if key not in held:  # devices of one data axis hold the same part
                held[key] = read(index)
            return held[key]

        return jax.make_array_from_callback(shape, where, part, dtype=dtype)

    return place


def put(tree: Any, where: Any) -> Any:
    """``jax.device_put``, also onto devices of several processes.

    Args:
      tree: numpy, the same in every process, or jax arrays.
      where: a sharding, or a tree of them for parts of ``tree``.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, where)
    return jax.tree.map(
        lambda way, part: jax.tree.map(lambda leaf: _put(leaf, way), part), where, tree
    )


def to_host(tree: Any) -> Any:
    """The arrays as numpy, whole, wherever their parts lie."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return jax.tree.map(_whole, tree)


def fetch(leaf: Any, layer: int | None) -> np.ndarray:
    """One layer of a stacked parameter, or all of another, as numpy.

    No more than that, and PIECE_BYTES, is brought to the host or to other devices.
    """
    if layer is None:
        parts = list(pieces(leaf))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    on_host = not isinstance(leaf, jax.Array) or (
        len(leaf.sharding.device_set) == 1 and jax.default_backend() == "cpu"
    )
    if on_host:  # nothing is copied
        return np.asarray(leaf)[layer]
    return _rows(leaf, layer, 1)[0]


def pieces(leaf: Any) -> Iterator[np.ndarray]:
    """An array as numpy, in parts along its first axis of about PIECE_BYTES each."""
    if leaf.nbytes <= PIECE_BYTES or not leaf.ndim:
        yield to_host(leaf)
        return
    rows = max(1, PIECE_BYTES * leaf.shape[0] // leaf.nbytes)
    for begin in range(0, leaf.shape[0], rows):
        yield _rows(leaf, begin, min(rows, leaf.shape[0] - begin))


def local_mesh(mesh: Mesh) -> Mesh:
    """The mesh for what each process does alone: its own devices, in the same axes.

    As much of tensor and fsdp as fits into the devices of one process stays, so that a
    parameter is split there as far as it can be. One process: the mesh itself.
    """
    if jax.process_count() == 1:
        return mesh
    own = _by_process(mesh)[jax.process_index()]
    return Mesh(own, AXES, axis_types=(AxisType.Auto,) * own.ndim)


def to_local(
    params: Any, mesh: Mesh, table: PartitionRules = DECODER_PARTITION_RULES
) -> Any:
    """Parameters on the mesh of a run as parameters on ``local_mesh``.

    Each process gets all of them; the arrays as they are where there is one process.
    """
    if jax.process_count() == 1:
        return params
    devices = _by_process(mesh)
    names = ("process", *AXES)
    # The same devices with the processes as an axis, over which nothing is split.
    copies = Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))
    spread = put(params, shardings(params, copies, table))
    own = shardings(params, local_mesh(mesh), table)

    def local(leaf: jax.Array, where: NamedSharding) -> jax.Array:
        parts = [shard.data for shard in leaf.addressable_shards]
        return jax.make_array_from_single_device_arrays(leaf.shape, where, parts)

    return jax.tree.map(local, spread, own)


def connect(mesh: Mesh) -> None:
    """Lets the devices of several processes talk along every set of axes once.

    On CPUs the first words between two of them must be said by both within 30 s, which
    they would miss where one compiles longer than the other.
    """
    if jax.process_count() == 1:
        return
    sets = [
        axes
        for size in range(1, mesh.devices.ndim + 1)
        for axes in itertools.combinations(AXES, size)
    ]

    @partial(jax.shard_map, mesh=mesh, in_specs=(), out_specs=PartitionSpec())
    def say() -> jax.Array:
        return sum(jax.lax.psum(jnp.ones(()), axes) for axes in sets)

    jax.block_until_ready(jax.jit(say)())


def slots_multiple(mesh: Mesh) -> int:
    """What the number of slots, of all processes together, must be a multiple of."""
    return jax.process_count() * row_multiple(local_mesh(mesh))


def _rows(leaf: Any, begin: int, count: int) -> np.ndarray:
    if not isinstance(leaf, jax.Array):
        return np.asarray(leaf[begin : begin + count])
    spread = not leaf.is_fully_addressable
    where = replicated(leaf.sharding.mesh) if spread else None
    cut = jax.jit(_cut, static_argnums=2, out_shardings=where)
    return np.asarray(cut(leaf, np.int32(begin), count))


def _cut(leaf: jax.Array, begin: jax.Array, count: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(leaf, begin, count)


def _by_process(mesh: Mesh) -> np.ndarray:
    """The devices [process, data, fsdp, tensor], each process with its own."""
    by_process = [
        [d for d in mesh.devices.flat if d.process_index == number]
        for number in range(jax.process_count())
    ]
    own = len(by_process[0])
    tensor = math.gcd(mesh.shape["tensor"], own)
    fsdp = math.gcd(mesh.shape["fsdp"], own // tensor)
    shape = len(by_process), own // (fsdp * tensor), fsdp, tensor
    return np.array(by_process).reshape(shape)


def _put(leaf: Any, where: NamedSharding) -> jax.Array:
    spread = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
    if spread or where.is_fully_addressable:
        return jax.device_put(leaf, where)
    # device_put would first compare the data of all processes.
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, where, lambda index: host[index])


def _whole(leaf: Any) -> np.ndarray:
    spread = isinstance(leaf, jax.Array) and not (
        leaf.is_fully_addressable or leaf.is_fully_replicated
    )
    if spread:
        leaf = multihost_utils.process_allgather(leaf, tiled=True)
    return np.asarray(leaf)


def place_params(
    params: Any, mesh: Mesh, table: PartitionRules = DECODER_PARTITION_RULES
) -> Any:
    """Puts parameters, numpy or jax, where the table wants them."""
    return put(params, shardings(params, mesh, table))
