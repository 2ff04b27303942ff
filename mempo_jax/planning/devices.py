"""Memory, peak speed and bandwidth of named chips, from their makers' tables.

Also which mesh suits a number of chips.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable
from typing import Any

from mempo_jax.config import MeshConfig
from mempo_jax.settings import ConfigError

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device, as jax counts them.

    Attributes:
      name: as in "v5e-16".
      kind: "tpu" or "gpu".
      memory: bytes that programs may have.
      peak: FLOP/s of dense bfloat16 matrix products.
      bandwidth: of its memory, bytes/s.
      link: to the other chips of the slice or box, bytes/s in one direction, all links
        together.
      cores: by how much one chip raises the number in a device's name.
      host: chips of one host if there are several hosts.
      alone: the most chips of a slice that has one host.
    """

    name: str
    kind: str
    memory: int
    peak: float
    bandwidth: float
    link: float
    cores: int
    host: int
    alone: int

    @property
    def lanes(self) -> int:
        """Multiple that the innermost side of an array is padded to; 0 if none."""
        return 128 if self.kind == _TPU else 0


# TPUs: Google Cloud's page on each version (chip specifications), less the memory that
# the runtime keeps, a little under 2 %. GPUs: NVIDIA's data sheets of the SXM forms
# (dense figures, without sparsity); memory as the driver reports it.
_TPU, _GPU = "tpu", "gpu"
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", _TPU, int(31.5 * GIB), 275e12, 1228e9, 150e9, 2, 4, 4),
        Chip("v5e", _TPU, int(15.75 * GIB), 197e12, 819e9, 200e9, 1, 4, 8),
        Chip("v5p", _TPU, int(94.5 * GIB), 459e12, 2765e9, 600e9, 2, 4, 4),
        Chip("v6e", _TPU, int(31.25 * GIB), 918e12, 1638e9, 400e9, 1, 4, 8),
        Chip("a100", _GPU, int(79.2 * GIB), 312e12, 2039e9, 300e9, 1, 8, 8),
        Chip("a100-40gb", _GPU, int(39.5 * GIB), 312e12, 1555e9, 300e9, 1, 8, 8),
        Chip("h100", _GPU, int(79.1 * GIB), 989e12, 3350e9, 450e9, 1, 8, 8),
        Chip("h200", _GPU, int(139.8 * GIB), 989e12, 4800e9, 450e9, 1, 8, 8),
    )
}
GPU_DEFAULT_SHARE = 0.75  # of a GPU's memory, unless XLA_PYTHON_CLIENT_MEM_FRACTION
GPU_SHARE = 0.92  # what that variable can be set to


@dataclasses.dataclass(frozen=True)
class Device:
    """A slice or a box of chips of one kind.

    Attributes:
      name: as the user wrote it, in lower case.
      chip: its kind.
      count: number of chips.
    """

    name: str
    chip: Chip
    count: int

    @property
    def hosts(self) -> int:
        """Processes of a run there, one per host."""
        if self.count <= self.chip.alone:
            return 1
        return math.ceil(self.count / self.chip.host)

    @property
    def usable(self) -> int:
        """Bytes of one chip that a run may fill."""
        gpu = self.chip.kind == _GPU
        return int(self.chip.memory * GPU_SHARE) if gpu else self.chip.memory

    @property
    def topology(self) -> str:
        """The slice as the TPU compiler names it, "v5e:4x4"."""
        return f"{self.chip.name}:{'x'.join(map(str, self._sides()))}"

    def _sides(self) -> list[int]:
        """Divides the chips into near-equal powers of two, in two or three dimensions.

        Chips with two cores (v4, v5p) are linked in three dimensions.
        """
        sides = [1, 1, 1] if self.chip.cores == 2 else [1, 1]
        left, axis = self.count, 0
        while left % 2 == 0:
            sides[axis % len(sides)] *= 2
            left, axis = left // 2, axis + 1
        sides[-1] *= left
        return sorted(sides, reverse=self.chip.cores == 2)


def device(name: str) -> Device:
    """Reads a device's name.

    Args:
      name: such as "v5e-16" or "h100-8". The number counts chips; for v4 and v5p, as in
        Google Cloud's names, it counts TensorCores, of which a chip has two.

    Raises:
      ConfigError: a chip that is not known, or an impossible count.
    """
    parsed = re.fullmatch(r"(.+)-(\d+)", name.lower())
    known = ", ".join(CHIPS)
    if parsed is None or parsed[1] not in CHIPS:
        raise ConfigError(
            f"--device={name}: expected a chip and a count, as in v5e-16 or h100-8; "
            f"chips: {known}"
        )
    chip, number = CHIPS[parsed[1]], int(parsed[2])
    if number < 1 or number % chip.cores:
        single = chip.cores == 1
        expected = "at least 1" if single else f"a multiple of {chip.cores}"
        raise ConfigError(
            f"--device={name}: expected {expected} behind {chip.name}- "
            f"(it counts {'TensorCores' if chip.cores > 1 else 'chips'}), got {number}"
        )
    return Device(name.lower(), chip, number // chip.cores)


def tpu_devices(device: Device) -> list[Any]:
    """Describes a TPU slice to its own compiler, which needs no TPU.

    Args:
      device: the slice; the extra [tpu] brings the compiler.

    Returns:
      Devices of jax to compile for, one for each chip; nothing can run on them.

    Raises:
      ConfigError: it is no TPU, or there is no compiler for it.
    """
    if device.chip.kind != _TPU:
        raise ConfigError(
            f"--compiler=tpu: expected a TPU in --device, got {device.name}"
        )
    # Otherwise the library asks for this machine's description, over the network, and
    # then complains that it is no TPU. Which one it is told does not matter here.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    # Otherwise the library refuses to load beside a process that uses it, such as a
    # training on this machine's TPU. Here it only compiles and opens no TPU.
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    from jax.experimental import topologies

    # The cores of a v4 chip are one device to jax, but two to the compiler unless told.
    more = {"chip_config_name": "megacore"} if device.chip.name == "v4" else {}
    try:
        topology = topologies.get_topology_desc(
            platform="tpu", topology_name=device.topology, **more
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"--compiler=tpu: no compiler for {device.topology} ({error}); install the "
            "extra [tpu]"
        ) from error
    if len(topology.devices) != device.count:
        raise ConfigError(
            f"--compiler=tpu: expected {device.count} devices in {device.topology}, "
            f"got {len(topology.devices)}; ask the CPU's compiler"
        )
    return list(topology.devices)


def nearest_mesh(
    mesh: MeshConfig, devices: int, fits: Callable[[dict[str, int]], bool]
) -> dict[str, int] | None:
    """Finds the smallest changes that make a mesh use all devices.

    Distance is counted in doublings and halvings of fsdp and tensor together. Of two
    equally near meshes the one with the larger tensor is taken: weights that tensor
    splits are not gathered while turns are sampled.

    Args:
      mesh, devices: the axes of the config, and the number that they do not fit.
      fits: whether a run with these changes could start (divisible rows and weights).

    Returns:
      The fields of ``config.mesh`` to change, by dotted name; None if no mesh fits.
    """
    divisors = [n for n in range(1, devices + 1) if devices % n == 0]
    pairs = [(f, t) for f in divisors for t in divisors if devices % (f * t) == 0]

    def distance(pair: tuple[int, int]) -> tuple[float, int]:
        fsdp, tensor = pair
        steps = abs(math.log2(fsdp / mesh.fsdp)) + abs(math.log2(tensor / mesh.tensor))
        return round(steps, 6), -tensor

    for fsdp, tensor in sorted(pairs, key=distance):
        # A fixed data axis must make the product right; -1 takes what remains.
        data = -1 if mesh.data == -1 else devices // (fsdp * tensor)
        axes = {"data": data, "fsdp": fsdp, "tensor": tensor}
        changes = {
            f"mesh.{name}": size
            for name, size in axes.items()
            if size != getattr(mesh, name)
        }
        if fits(changes):
            return changes
    return None
