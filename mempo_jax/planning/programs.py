"""Lowers the programs of a run from shapes: no parameter exists, nothing runs.

The programs are those of ``training.step`` and ``rollout.decode``, with the shardings
that a run gives them and its largest shapes: the longest bucket of rows, all slots, the
whole span. The shape of the policy is read without its weights.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from mempo_jax.builders.engines import batch_shapes
from mempo_jax.builders.policies import make_nano
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import RunConfig
from mempo_jax.distributed import placement
from mempo_jax.models import gguf, hf, lora
from mempo_jax.models.attention import chosen, refusal
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.families import read_config
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.rollout.decode import DrawParameters, EnginePrograms
from mempo_jax.rollout.sampler import Counters
from mempo_jax.settings import ConfigError, nearest
from mempo_jax.training import loss as losses
from mempo_jax.training.state import (
    fresh_state,
    policy_optimiser,
)
from mempo_jax.training.step import (
    Accumulator,
    TrainPrograms,
    dummy_rows,
    dummy_trajectories,
)
from mempo_jax.types import Rows

NAMES = ("score", "accumulate", "apply", "prefill", "decode")
# Published shapes, so that a plan needs no download: vocabulary, width, layers, heads,
# key heads, head size, MLP width, tied, positions.
_SIZES = {
    "SmolLM2-135M": (49_152, 576, 30, 9, 3, 64, 1_536, True, 8_192),
    "SmolLM2-360M": (49_152, 960, 32, 15, 5, 64, 2_560, True, 8_192),
    "SmolLM2-1.7B": (49_152, 2_048, 24, 32, 32, 64, 8_192, True, 8_192),
    "Qwen2.5-0.5B": (151_936, 896, 24, 14, 2, 64, 4_864, True, 32_768),
    "Qwen2.5-1.5B": (151_936, 1_536, 28, 12, 2, 128, 8_960, True, 32_768),
    "Qwen2.5-3B": (151_936, 2_048, 36, 16, 2, 128, 11_008, True, 32_768),
    "Qwen2.5-7B": (152_064, 3_584, 28, 28, 4, 128, 18_944, False, 32_768),
    "Qwen2.5-14B": (152_064, 5_120, 48, 40, 8, 128, 13_824, False, 32_768),
    "Qwen2.5-32B": (152_064, 5_120, 64, 40, 8, 128, 27_648, False, 32_768),
    "Qwen3-0.6B": (151_936, 1_024, 28, 16, 8, 128, 3_072, True, 40_960),
    "Qwen3-1.7B": (151_936, 2_048, 28, 16, 8, 128, 6_144, True, 40_960),
    "Qwen3-4B": (151_936, 2_560, 36, 32, 8, 128, 9_728, True, 40_960),
    "Qwen3-8B": (151_936, 4_096, 36, 32, 8, 128, 12_288, False, 40_960),
}
_SUFFIXES = ("-Instruct",)  # of a name, for models of the same shape


class Lowering:
    """Lowers a run's programs onto a mesh, whose devices need not exist.

    Args:
      config: the decoder's shape.
      settings: of the run.
      mesh: of all devices.
      unroll: whether the model's layers are unrolled; None chooses by depth.
      engine_devices: those of one host that sample alone; none: all train too.
      attention: the kernel of whole rows. The default compiles on every machine; a plan
        is made where cuDNN is missing.
      hosts: processes of the run; with several each engine has the devices of its own
        host.

    Attributes:
      shapes: of what stays on the devices.
    """

    def __init__(
        self,
        config: DecoderConfig,
        settings: RunConfig,
        mesh: Mesh,
        *,
        unroll: bool | None = None,
        hosts: int = 1,
        engine_devices: Sequence[Any] = (),
        attention: str = "xla",
    ) -> None:
        policy = settings.policy
        adapters = policy.lora if policy.lora.rank else None
        self.settings, self.mesh = settings, mesh
        self.engine_mesh = engine_mesh(settings, mesh, hosts, engine_devices)
        self._slots = settings.sampling.slots // hosts
        self.model = LanguageModel(
            config,
            policy.compute_dtype,
            remat=policy.remat,
            unroll=unroll,
            lora=adapters,
            attention=attention,
        )
        self.optimiser = policy_optimiser(settings.train)
        self.rows = placement.row_sharding(mesh)
        self._engine = EnginePrograms(
            self.model, placement.row_sharding(self.engine_mesh), Counters()
        )
        self.shapes = self._shapes()
        self._training = TrainPrograms(
            self.model,
            mesh,
            self.optimiser,
            settings.objective,
            settings.credit,
            outcome_gate=settings.reward.outcome_gate,
            param_dtype=policy.param_dtype,
            pass_tokens=0,  # as on other backends than the CPU that compiles this
        )

    def call(self, name: str) -> tuple[Any, tuple, dict[str, Any]]:
        """Returns a program's jitted function, arguments' shapes and static arguments.

        Args:
          name: one of ``NAMES``, or "supervised": the cold start's, which is not
            planned, since it needs no more than "accumulate" for rows of one shape.
        """
        if name in ("prefill", "decode"):
            return self._engine_call(name)
        jitted = self._training.jitted()[name]
        scalar = jax.ShapeDtypeStruct((), jnp.float32)
        shapes = self.shapes
        if name == "apply":
            return jitted, (shapes.state, shapes.sums), {}
        rows = self._row_arrays()
        if name == "score":
            return jitted, (shapes.params, rows, scalar), {}
        if name == "supervised":
            sums = shapes.sums._replace(aux={"tokens": shapes.sums.count})
            return jitted, (shapes.params, sums, rows), {}
        # That of a step's first update, which computes the old log-probs itself.
        ref = rows.behaviour_log_probs if self.settings.objective.kl_coef else None
        batch = (rows, None, ref, self._loss_inputs(), scalar, scalar)
        return jitted, (shapes.params, shapes.sums, *batch), {}

    def lower(self, name: str) -> Any:
        """Lowers a program, to ``jax.stages.Lowered``.

        Args:
          name: one of ``NAMES``.
        """
        jitted, args, static = self.call(name)
        return jitted.lower(*args, **static)

    def export(self, name: str, platforms: tuple[str, ...]) -> Any:
        """Exports a program, to ``jax.export.Exported``.

        Args:
          name: one of ``NAMES``.
          platforms: of "tpu", "cuda" and "cpu".
        """
        jitted, args, static = self.call(name)
        if static:
            # export takes no static arguments, so they are bound.
            inner = functools.partial(jitted, **static)
            jitted = jax.jit(inner)
        return jax.export.export(jitted, platforms=platforms)(*args)

    @property
    def row_shape(self) -> tuple[int, int]:
        """Rows and padded length of the largest micro-batch, over all devices."""
        shapes = batch_shapes(self.settings, self.mesh)
        length = shapes.length_buckets[-1]
        return shapes.rows_of(length), length

    def _engine_call(self, name: str) -> tuple[Any, tuple, dict[str, Any]]:
        sampling, span = self.settings.sampling, self.settings.max_segment_tokens
        rows = placement.row_sharding(self.engine_mesh)

        def per_slot(dtype, *more: int) -> Any:
            return jax.ShapeDtypeStruct((self._slots, *more), dtype, sharding=rows)

        params, cache = self.shapes.sampled, self.shapes.cache
        numbers = functools.partial(per_slot, jnp.int32)
        if name == "prefill":
            width = min(sampling.prefill_buckets[-1], span)
            new = (None, numbers(width), numbers())
            return self._engine.prefill, (params, cache, *new), {"span": span}
        replicated = functools.partial(
            jax.ShapeDtypeStruct, sharding=placement.replicated(self.engine_mesh)
        )
        stop = replicated((self.model.config.vocab_size,), jnp.bool_)
        drawing = DrawParameters(
            replicated((), jnp.float32),
            replicated((), jnp.float32),
            replicated((), jnp.int32),
        )
        slots = (None, numbers(), numbers(), numbers(), per_slot(jnp.uint32, 2))
        static = {"steps": sampling.decode_chunk, "span": span, "filtered": False}
        args = (params, cache, stop, *slots, numbers(), drawing)
        return self._engine.decode, args, static

    def _shapes(self) -> PlanShapes:
        policy = self.settings.policy
        params = jax.eval_shape(self.model.init, jax.random.key(0))
        adapters, base = lora.split(params)
        stored = base if base else adapters
        stored = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, policy.param_dtype), stored
        )
        # Adapters stay float32, whatever the base is stored in.
        params = lora.join(adapters, stored) if base else stored
        trained, _ = lora.split(params)
        state = jax.eval_shape(lambda p: fresh_state(p, self.optimiser), trained)
        cache = jax.eval_shape(
            lambda: self.model.init_cache(
                self._slots, self.settings.max_segment_tokens, turned=False
            )  # turned keys are for CPUs alone
        )
        cache_sharding = self._engine.cache_sharding
        return PlanShapes(
            self._put(params),
            # As the engine takes them on other backends than a CPU: stacked.
            _placed(params, self._sampled(params)),
            self._put(state),
            self._sums(trained),
            jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(
                    x.shape, x.dtype, sharding=cache_sharding
                ),
                cache,
            ),
        )

    def _sums(self, trained: Any) -> Accumulator:
        # Sums are float32, because many small gradients would vanish in bfloat16.
        wide = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), trained
        )
        scalar = jax.ShapeDtypeStruct(
            (), jnp.float32, sharding=placement.replicated(self.mesh)
        )
        keys = self.settings.objective.aux_keys
        return Accumulator(self._put(wide), scalar, scalar, dict.fromkeys(keys, scalar))

    def _sampled(self, params: Any) -> Any:
        own = not self.settings.mesh.samples_as_it_trains
        section = "mesh.sampling" if own else "mesh"
        return placement.shardings(params, self.engine_mesh, section=section)

    def _put(self, tree: Any) -> Any:
        return _placed(tree, placement.shardings(tree, self.mesh))

    def _row_arrays(self) -> Rows:
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.rows),
            dummy_rows(*self.row_shape),
        )

    def _loss_inputs(self) -> losses.LossInputs:
        facts = dummy_trajectories(
            self.settings, batch_shapes(self.settings, self.mesh)
        )
        make = functools.partial(
            losses.loss_inputs,
            objective=self.settings.objective,
            outcome_gate=self.settings.reward.outcome_gate,
            credit=self.settings.credit,
        )
        count = jax.ShapeDtypeStruct((facts.valid.size,), jnp.float32)
        return jax.eval_shape(make, facts, count)


@dataclasses.dataclass(frozen=True)
class PlanShapes:
    """Trees of ``jax.ShapeDtypeStruct`` with shardings, of what stays on the devices.

    Attributes:
      params: all parameters, adapters included.
      sampled: the same as the engine has them, which with several hosts is a copy.
      state: what is trained, with its optimiser.
      sums: of a step's gradients.
      cache: of the engine.
    """

    params: Any
    sampled: Any
    state: Any
    sums: Any
    cache: Any

    @property
    def trained(self) -> Any:
        """The parameters that are trained."""
        return self.state.params


def policy_shape(settings: RunConfig) -> tuple[DecoderConfig, str]:
    """Returns the shape of a run's policy, and where it was found.

    It is read from a directory's config.json or a GGUF file's header. If
    ``policy.path`` names a directory that does not exist, its last part is looked up in
    a table of known sizes.

    Args:
      settings: of the run.

    Raises:
      ConfigError: neither a file nor a known size, or a file that cannot be used.
    """
    spelled = settings.policy.path
    if not spelled:
        # Made here for its vocabulary alone: which kernel it would use on this machine
        # is not asked, and one that needs a GPU would be refused.
        policy = dataclasses.replace(settings.policy, attention="xla")
        here = dataclasses.replace(settings, policy=policy)
        return make_nano(make_suite(here), here).config, "the built-in nano"
    return shape_of(spelled, "policy.path")


def shape_of(spelled: str, field: str) -> tuple[DecoderConfig, str]:
    """Returns the shape of the model at a path, and where it was found.

    Args:
      spelled: the path; also "package:name/file", or the name of a known size.
      field: the config field that has it, for messages.

    Raises:
      ConfigError: neither a file nor a known size, or a file that cannot be used.
    """
    try:
        path = hf.resolve(spelled)
        if path.suffix == ".gguf":
            with gguf.open_gguf(path) as file:
                return file.config, f"{spelled}, its header"
        if (path / "config.json").is_file():
            return read_config(path), f"{spelled}/config.json"
    except (ValueError, OSError) as error:
        raise ConfigError(f"config.{field} = {spelled!r}: {error}") from error
    name = pathlib.PurePath(spelled).name
    known = known_shape(name)
    if known is None:
        near = nearest(name, list(_SIZES))
        hint = f"; the nearest of these is {near}" if near else ""
        raise ConfigError(
            f"config.{field} = {spelled!r}: no config.json there, and {name!r} is none "
            f"of the known sizes ({', '.join(_SIZES)}){hint}"
        )
    return known, f"no {spelled} here: the known shape of {name}"


def known_shape(name: str) -> DecoderConfig | None:
    """Returns the published shape of a model; None if it is not in the table.

    Args:
      name: such as "Qwen2.5-7B", with or without "-Instruct".
    """
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    if name not in _SIZES:
        return None
    *sizes, tied, positions = _SIZES[name]
    return DecoderConfig(
        *sizes,
        rope_theta=1e6,  # changes no shape, like the norm's epsilon
        norm_eps=1e-6,
        tied=tied,
        qkv_bias=name.startswith("Qwen2.5"),
        qk_norm=name.startswith("Qwen3"),
        max_positions=positions,
    )


def kernel_of(settings: RunConfig, backend: str, *shapes: DecoderConfig | None) -> str:
    """Names the attention kernel of whole rows that a run uses on named hardware.

    Args:
      settings: of the run.
      backend: "tpu" or "gpu", the kind of the named chip, not of this machine.
      shapes: of the policy, which decides, and of other models that run beside it.

    Raises:
      ConfigError: ``policy.attention`` names one that cannot run there.
    """
    policy, kernels = settings.policy, []
    for shape in filter(None, shapes):
        asked = policy.attention, policy.compute_dtype, shape.head_dim, backend
        why = refusal(*asked)
        if why:
            raise ConfigError(f"config.policy.attention: {why}")
        kernels.append(chosen(*asked))
    return kernels[0]


def count(params: Any) -> int:
    """Counts the numbers in ``params``, a tree of arrays or shapes."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))


def host_mesh(mesh: Mesh, hosts: int) -> Mesh:
    """Builds the mesh of one host's devices, as ``distributed.placement`` divides them.

    Args:
      mesh: of all devices.
      hosts: number of hosts, each with as many devices.
    """
    if hosts == 1:
        return mesh
    own = mesh.size // hosts
    tensor = math.gcd(mesh.shape["tensor"], own)
    fsdp = math.gcd(mesh.shape["fsdp"], own // tensor)
    return placement.make_mesh(
        own // (fsdp * tensor), fsdp, tensor, devices=list(mesh.devices.flat)[:own]
    )


def engine_mesh(
    settings: RunConfig, mesh: Mesh, hosts: int, devices: Sequence[Any]
) -> Mesh:
    """Builds the mesh on which one host samples, as ``builders.engines`` does.

    Args:
      settings: of the run.
      mesh: of training.
      hosts: number of hosts.
      devices: of one host, that sample alone; none: those of training do.

    Raises:
      ValueError: the devices do not allow for ``mesh.sampling``.
    """
    local = host_mesh(mesh, hosts)
    if settings.mesh.samples_as_it_trains:
        return local
    axes, own = settings.mesh.sampling, list(devices) or list(local.devices.flat)
    return placement.sampling_mesh(
        local, own, data=axes.data, fsdp=axes.fsdp, tensor=axes.tensor
    )


def device_bytes(tree: Any) -> int:
    """Computes the bytes of a tree on one device from its shards; exact.

    Args:
      tree: of shapes with shardings.
    """
    return sum(
        int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _placed(tree: Any, shardings: Any) -> Any:
    """Adds a sharding to each shape of a tree."""

    def put(leaf: Any, sharding: NamedSharding) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(put, tree, shardings)
