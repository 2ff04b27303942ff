"""Bytes of a run on each device: what stays, and what each program needs on top.

What stays is computed from shapes and the partition table, and is exact. What a program
needs besides its arguments (activations, gradients, gathered weights) comes from a
compiler: the program is compiled at two small depths and extrapolated linearly to the
policy's depth, as each layer adds the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from mempo_jax.config import RunConfig
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.planning.programs import NAMES, Lowering, device_bytes
from mempo_jax.settings import ConfigError

# Bytes of a program by the TPU compiler in bfloat16, as a share of those by the CPU's
# compiler in float32: of what is there once, and of what each layer adds. Measured on
# two layers of Qwen2.5-0.5B for a v5e, where the first is nearly all; activations,
# which layers add, are assumed to be half as large. An optimiser update is one pass
# there, without temporaries. Decode is without the cache's copy, see ``_loop_cache``.
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
# The programs are never run, and optimising machine code takes most of compile time.
CPU_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
# If layers are unrolled, the CPU's compiler first slices the weights of all of them out
# of their stacks, to keep its threads busy. The TPU's compiler reads them in place;
# with this scheduler one layer's are there at a time. Weights that fsdp splits are
# gathered before the loop of decode steps, so all of them count: the TPU's compiler
# gathers within the loop, but begins early with all layers if memory is free.
IN_TURN = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
SAMPLING = ("prefill", "decode")
OF_ENGINE = ("KV cache", "engine's copy")  # of what stays, where the engine runs
_IN_UPDATE = ("accumulate", "apply")


@dataclasses.dataclass(frozen=True)
class Need:
    """Bytes of one program on one device.

    Attributes:
      arguments: of all arguments.
      made: of temporaries and results, except results that reuse an argument's memory.
    """

    arguments: int
    made: int

    @property
    def total(self) -> int:
        """Bytes of both."""
        return self.arguments + self.made


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of a run on one device.

    Attributes:
      stays: what is there through all of the run, by name.
      sums: the float32 gradients, there while an update is computed.
      made: by program, see ``Need``.
      apart: whether sampling has devices of its own, which hold nothing of training.
    """

    stays: dict[str, int]
    sums: int
    made: dict[str, int]
    apart: bool = False

    @property
    def standing(self) -> int:
        """Bytes of all that stays where the run is fullest."""
        return self._standing(self.fullest)

    def _standing(self, program: str) -> int:
        """Bytes of all that stays where a program runs."""
        sampling = program in SAMPLING
        return sum(
            size
            for name, size in self.stays.items()
            if not self.apart or (name in OF_ENGINE) == sampling
        )

    def while_in(self, name: str) -> int:
        """Sums all bytes on the device while a program runs.

        Args:
          name: of the program.
        """
        return (
            self._standing(name)
            + self.made[name]
            + (self.sums if name in _IN_UPDATE else 0)
        )

    @property
    def peak(self) -> int:
        """The most bytes at any time of the run."""
        return max(map(self.while_in, self.made))

    @property
    def fullest(self) -> str:
        """The program that runs at the peak."""
        return max(self.made, key=self.while_in)


Compile = Callable[[Lowering, str], Need]


def compiled(lowering: Lowering, name: str) -> Need:
    """Compiles a program and reads the compiler's memory analysis.

    Args:
      lowering: of the run; its mesh's devices choose the compiler.
      name: of the program.

    Raises:
      ConfigError: the compiler says that the program cannot run.
    """
    cpu = lowering.mesh.devices.flat[0].platform == "cpu"
    lowered = lowering.lower(name)
    try:
        executable = lowered.compile(cpu_options(name) if cpu else None)
    except jax.errors.JaxRuntimeError as error:  # the TPU's, above the chip's memory
        line = str(error).splitlines()[0]
        raise ConfigError(f"{TITLES[name]} alone does not fit: {line}") from error
    sizes = executable.memory_analysis()
    # Donated arguments are reused for results, which the compiler calls aliases.
    results = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return Need(sizes.argument_size_in_bytes, sizes.temp_size_in_bytes + results)


def cpu_options(name: str) -> dict[str, Any]:
    """Returns the options with which the CPU's compiler is asked about a program.

    Args:
      name: of the program; decode alone unrolls its layers at any depth.
    """
    return CPU_OPTIONS | (IN_TURN if name == "decode" else {})


def programs_of(settings: RunConfig) -> tuple[str, ...]:
    """Lists the programs that a run has on its devices; a server's are elsewhere.

    Args:
      settings: of the run.
    """
    here = settings.engine.kind == "local"
    return tuple(name for name in NAMES if here or name not in SAMPLING)


def standing(
    settings: RunConfig, lowering: Lowering, reference: Lowering | None, hosts: int
) -> dict[str, int]:
    """Computes the bytes on a device of what stays through a run, by name.

    Args:
      settings: of the run.
      lowering: of the policy.
      reference: of ``policy.ref_path``; None if the policy's own initial weights are
        the reference.
      hosts: processes of the run.
    """
    shapes = lowering.shapes
    policy = settings.policy
    params, state = device_bytes(shapes.params), device_bytes(shapes.state)
    masters = device_bytes(shapes.trained)
    # Else the masters are the parameters, or adapters that are counted among these.
    narrows = policy.param_dtype != "float32" and not policy.lora.rank
    pays_kl = settings.objective.kl_coef > 0  # without, no reference is placed
    stays = {
        "parameters": params,
        **({"float32 masters": masters} if narrows else {}),
        "optimiser": state - masters,
        # With adapters the base is the reference too, see ``lora.split``.
        "reference": 0 if policy.lora.rank or not pays_kl else params,
    }
    if reference is not None and pays_kl:
        # The policy's initial weights stay beside those of the other model.
        stays["reference"] += device_bytes(reference.shapes.params)
    if settings.engine.kind == "local":
        stays["KV cache"] = device_bytes(shapes.cache)
        if hosts > 1 or not settings.mesh.samples_as_it_trains:
            # An engine has the devices of its own host alone, so it needs all weights;
            # on a mesh of its own it has them in another layout.
            stays["engine's copy"] = device_bytes(shapes.sampled)
    return stays


@dataclasses.dataclass
class Estimator:
    """Asks a compiler about programs at small depths, each once.

    Attributes:
      config: the policy's shape.
      mesh: settings -> the mesh of a run with them.
      hosts: processes of the run.
      narrow: whether the compiler is asked about float32 and bfloat16 is derived.
      compile: (lowering, program's name) -> its bytes.
      lanes: of a TPU if another compiler is asked, see ``_loop_cache``; else 0.
      engine_devices: settings -> those of one host that sample alone, or none.
    """

    config: DecoderConfig
    mesh: Callable[[RunConfig], Mesh]
    hosts: int
    narrow: bool
    compile: Compile = compiled
    lanes: int = 0
    engine_devices: Callable[[RunConfig], Sequence[Any]] = lambda settings: ()
    _known: dict[Any, Need] = dataclasses.field(default_factory=dict)

    def lowering(
        self, settings: RunConfig, config: DecoderConfig | None = None
    ) -> Lowering:
        """Lowers the programs of a run.

        Args:
          settings: of the run.
          config: a decoder's shape; None for the policy's.
        """
        config = config or self.config
        # As the policy's own depth decides, also if a smaller depth is compiled.
        unroll = self.config.layers <= LanguageModel.UNROLL_UP_TO
        mesh = self.mesh(settings)
        return Lowering(
            config,
            settings,
            mesh,
            unroll=unroll,
            hosts=self.hosts,
            engine_devices=self.engine_devices(settings),
        )

    def memory(
        self, settings: RunConfig, reference: DecoderConfig | None = None
    ) -> Memory:
        """Estimates the bytes of a run.

        Args:
          settings: of the run.
          reference: the shape of ``policy.ref_path``; None if that is not set.
        """
        exact = self.lowering(settings)
        other = self.lowering(settings, reference) if reference else None
        by_program = {name: self.made(settings, name) for name in programs_of(settings)}
        if "decode" in by_program:
            by_program["decode"] += self._loop_cache(exact)
        return Memory(
            standing(settings, exact, other, self.hosts),
            device_bytes(exact.shapes.sums),
            by_program,
            apart=settings.mesh.sampling.devices > 0,
        )

    def made(self, settings: RunConfig, name: str) -> int:
        """Estimates the bytes that a program needs besides its arguments.

        Args:
          settings: of the run.
          name: of the program.
        """
        once, layers = self._once_and_layers(settings, name)
        if self.narrow and settings.policy.compute_dtype == "bfloat16":
            once_share, layers_share = NARROW[name]
            return int(once_share * once.made + layers_share * layers.made)
        return once.made + layers.made

    def asked(self, settings: RunConfig, name: str) -> Need:
        """Extrapolates a program to the full depth, in the dtype that is compiled.

        Args:
          settings: of the run.
          name: of the program.
        """
        once, layers = self._once_and_layers(settings, name)
        return Need(once.arguments + layers.arguments, once.made + layers.made)

    def whole(self, settings: RunConfig, name: str) -> Need:
        """Compiles a program at the full depth, in the same dtype as ``asked``.

        Args:
          settings: of the run.
          name: of the program.
        """
        return self._need(settings, name, self.config.layers)

    def _loop_cache(self, lowering: Lowering) -> int:
        """Computes the bytes of the copy of the cache in a TPU's loop of decode steps.

        The loop has the cache in another order of axes than it has outside, so it is
        copied; the head's size, innermost there, is padded to whole lanes.
        """
        if not self.lanes:
            return 0
        size = self.config.head_dim
        padded = -(-size // self.lanes) * self.lanes
        return device_bytes(lowering.shapes.cache) * padded // size

    def _once_and_layers(self, settings: RunConfig, name: str) -> tuple[Need, Need]:
        """Divides a program's bytes into what is there once and what all layers add."""
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
        """Chooses two depths to extrapolate from, or twice the policy's own.

        Few layers are unrolled, and then each need not add the same. A scan of a single
        layer would be compiled without a loop, so 2 is the smallest.
        """
        layers = self.config.layers
        few = layers <= max(3, LanguageModel.UNROLL_UP_TO)
        return (layers, layers) if few else (2, 3)

    def _need(self, settings: RunConfig, name: str, layers: int) -> Need:
        key = _relevant_settings(settings, name), name, layers
        if key not in self._known:
            if self.narrow:
                settings = in_float32(settings)
            config = dataclasses.replace(self.config, layers=layers)
            self._known[key] = self.compile(self.lowering(settings, config), name)
        return self._known[key]


def _pair(need: Need) -> tuple[int, int]:
    return need.arguments, need.made


def in_float32(settings: RunConfig) -> RunConfig:
    """Copies settings with parameters and activations in float32.

    Args:
      settings: of a run.
    """
    wide = dataclasses.replace(
        settings.policy, param_dtype="float32", compute_dtype="float32"
    )
    return dataclasses.replace(settings, policy=wide)


def _relevant_settings(settings: RunConfig, name: str) -> tuple:
    """Collects the settings that a program's memory depends on."""
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
