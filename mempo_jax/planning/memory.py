"""Bytes of a run on each device: what stays, and what each program needs on top.

What stays is read off shapes and the partition table, and is exact. What a program
needs beside its arguments (activations, gradients, gathered weights) is asked of a
compiler: the program is compiled at two small depths and continued in a straight line
to the policy's, as each layer adds the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from mempo_jax.config import RunConfig
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.planning.programs import NAMES, Lowering, device_bytes
from mempo_jax.settings import ConfigError

# What the TPU compiler says a program needs in bfloat16, as a share of what the CPU's
# says of it in float32: of what there is once, and of what each layer adds. Measured on
# two layers of Qwen2.5-0.5B for a v5e, where the first is nearly all; activations,
# which layers add, are taken to be half as large. An optimiser update is one pass
# there, with nothing put aside. Decode is without the cache's copy, see ``_relaid``.
NARROW = {
    "score": (0.5, 0.5),
    "accumulate": (0.9, 0.5),
    "apply": (0.1, 0.1),
    "prefill": (1.1, 0.5),
    "decode": (0.8, 0.5),
}
TITLES = {
    "score": "score",
    "accumulate": "train step",
    "apply": "optimiser update",
    "prefill": "prefill",
    "decode": "decode",
}
# How fast machine code runs is of no interest here, and making it fast takes longest.
CPU_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
# Where layers are laid out one by one, the CPU's compiler first cuts the weights of
# all of them out of their stacks, for its threads to be busy. The TPU's reads them in
# place; in this order one layer's are there at a time. What fsdp splits is gathered
# in front of the loop of decode steps, so all of it counts: the TPU's gathers within,
# but begins with all layers early where memory is free.
IN_TURN = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
SAMPLING = ("prefill", "decode")
_IN_UPDATE = ("accumulate", "apply")


@dataclasses.dataclass(frozen=True)
class Need:
    """Of one program on one device, bytes: arguments, and all that it makes (results
    that take the place of an argument left out)."""

    arguments: int
    made: int

    @property
    def total(self) -> int:
        return self.arguments + self.made


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device. stays: by name, through all of a run. sums: the float32
    gradients, while an update is made. made: by program, see ``Need``."""

    stays: dict[str, int]
    sums: int
    made: dict[str, int]

    @property
    def standing(self) -> int:
        return sum(self.stays.values())

    def while_in(self, name: str) -> int:
        """All that lies on the device while a program runs."""
        return (
            self.standing + self.made[name] + (self.sums if name in _IN_UPDATE else 0)
        )

    @property
    def peak(self) -> int:
        return max(map(self.while_in, self.made))

    @property
    def fullest(self) -> str:
        """The program that runs at the peak."""
        return max(self.made, key=self.while_in)


Compile = Callable[[Lowering, str], Need]


def compiled(lowering: Lowering, name: str) -> Need:
    """What the compiler of the mesh's devices says of a program.

    Raises:
      ConfigError: it says that the program cannot run.
    """
    cpu = lowering.mesh.devices.flat[0].platform == "cpu"
    lowered = lowering.lower(name)
    try:
        made = lowered.compile(cpu_options(name) if cpu else None)
    except jax.errors.JaxRuntimeError as error:  # a TPU's: more than its memory
        line = str(error).splitlines()[0]
        raise ConfigError(f"{TITLES[name]} alone does not fit: {line}") from error
    found = made.memory_analysis()
    kept = found.output_size_in_bytes - found.alias_size_in_bytes
    return Need(found.argument_size_in_bytes, found.temp_size_in_bytes + kept)


def cpu_options(name: str) -> dict[str, Any]:
    """How the CPU's compiler is asked about a program."""
    return CPU_OPTIONS | (IN_TURN if name == "decode" else {})


def programs_of(settings: RunConfig) -> tuple[str, ...]:
    """Those that a run has on its devices: a server's are elsewhere."""
    here = settings.engine.kind == "local"
    return tuple(name for name in NAMES if here or name not in SAMPLING)


def standing(
    settings: RunConfig, lowering: Lowering, reference: Lowering | None, hosts: int
) -> dict[str, int]:
    """Bytes on a device of what stays through a run, by name.

    reference: of ``policy.ref_path``; None: the policy's own initial weights.
    """
    shapes = lowering.shapes
    params = device_bytes(shapes.params)
    whole = device_bytes(shapes.state)
    stays = {
        "parameters": params,
        "optimiser": whole - device_bytes(shapes.trained),
        "reference": 0 if settings.policy.lora.rank else params,
    }
    if reference is not None:
        # The policy's initial weights stay beside those of the other model.
        stays["reference"] += device_bytes(reference.shapes.params)
    if settings.engine.kind == "local":
        stays["KV cache"] = device_bytes(shapes.cache)
        if hosts > 1:
            stays["engine's copy"] = device_bytes(shapes.sampled)
    return stays


@dataclasses.dataclass
class Estimator:
    """Asks a compiler about programs at small depths, each once.

    narrow: whether the compiler is asked about float32 and bfloat16 is derived. lanes:
    of a TPU, where another compiler is asked: see ``_relaid``; 0: none.
    """

    config: DecoderConfig
    mesh: Callable[[RunConfig], Mesh]
    hosts: int
    narrow: bool
    compile: Compile = compiled
    lanes: int = 0
    _known: dict[Any, Need] = dataclasses.field(default_factory=dict)

    def lowering(
        self, settings: RunConfig, config: DecoderConfig | None = None
    ) -> Lowering:
        """At the policy's depth, or for another config."""
        config = config or self.config
        unroll = self.config.layers <= LanguageModel.UNROLL_UP_TO
        mesh = self.mesh(settings)
        return Lowering(config, settings, mesh, unroll=unroll, hosts=self.hosts)

    def memory(
        self, settings: RunConfig, reference: DecoderConfig | None = None
    ) -> Memory:
        """Of a run. reference: the shape of ``policy.ref_path``, where that is set."""
        exact = self.lowering(settings)
        other = self.lowering(settings, reference) if reference else None
        made = {name: self.made(settings, name) for name in programs_of(settings)}
        if "decode" in made:
            made["decode"] += self._relaid(exact)
        return Memory(
            standing(settings, exact, other, self.hosts),
            device_bytes(exact.shapes.sums),
            made,
        )

    def made(self, settings: RunConfig, name: str) -> int:
        """Bytes that a program of the whole depth needs beside its arguments."""
        once, layers = self._parts(settings, name)
        if self.narrow and settings.policy.compute_dtype == "bfloat16":
            share, of_layers = NARROW[name]
            return int(share * once.made + of_layers * layers.made)
        return once.made + layers.made

    def asked(self, settings: RunConfig, name: str) -> Need:
        """Of a program of the whole depth in the dtype that is asked about, continued
        from small depths."""
        once, layers = self._parts(settings, name)
        return Need(once.arguments + layers.arguments, once.made + layers.made)

    def whole(self, settings: RunConfig, name: str) -> Need:
        """The same, compiled at that depth."""
        return self._need(settings, name, self.config.layers)

    def _relaid(self, lowering: Lowering) -> int:
        """Bytes of the cache as a TPU's loop of decode steps has it.

        New positions are written into it in another order of axes than it has outside,
        so it is copied; the head's size, innermost there, is padded to whole lanes.
        """
        if not self.lanes:
            return 0
        size = self.config.head_dim
        padded = -(-size // self.lanes) * self.lanes
        return device_bytes(lowering.shapes.cache) * padded // size

    def _parts(self, settings: RunConfig, name: str) -> tuple[Need, Need]:
        """What there is once, and what all layers add."""
        low, high = self._depths()
        first, second = (self._need(settings, name, depth) for depth in (low, high))
        if low == high:
            return first, Need(0, 0)
        step = high - low
        slopes = [max(0, b - a) / step for a, b in zip(_pair(first), _pair(second))]
        once = [each - slope * low for each, slope in zip(_pair(first), slopes)]
        layers = [slope * self.config.layers for slope in slopes]
        return Need(*map(int, once)), Need(*map(int, layers))

    def _depths(self) -> tuple[int, int]:
        """Two to continue from, or twice the policy's own.

        Few layers are laid out one by one, where each need not add the same; a scan of
        a single layer would be compiled as none.
        """
        layers = self.config.layers
        few = layers <= max(3, LanguageModel.UNROLL_UP_TO)
        return (layers, layers) if few else (2, 3)

    def _need(self, settings: RunConfig, name: str, layers: int) -> Need:
        key = _what_matters(settings, name), name, layers
        if key not in self._known:
            if self.narrow:
                settings = in_float32(settings)
            config = dataclasses.replace(self.config, layers=layers)
            self._known[key] = self.compile(self.lowering(settings, config), name)
        return self._known[key]


def _pair(need: Need) -> tuple[int, int]:
    return need.arguments, need.made


def in_float32(settings: RunConfig) -> RunConfig:
    """The same run with parameters and activations in float32."""
    wide = dataclasses.replace(
        settings.policy, param_dtype="float32", compute_dtype="float32"
    )
    return dataclasses.replace(settings, policy=wide)


def _what_matters(settings: RunConfig, name: str) -> tuple:
    """The settings that a program's memory depends on."""
    policy, sampling, train = settings.policy, settings.sampling, settings.train
    shared = settings.mesh, policy.param_dtype, policy.compute_dtype, policy.lora
    if name in SAMPLING:
        own: tuple = sampling.slots, settings.max_segment_tokens
        own = (*own, sampling.prefill_buckets, sampling.decode_chunk)
    elif name == "apply":
        own = ()
    else:
        own = policy.remat, train.micro_batch_tokens, train.length_buckets
        own = (*own, settings.objective, sampling.group_size, sampling.tasks_per_step)
    return (*shared, *own)
