"""The programs of a run, lowered from shapes: no parameter exists, nothing runs.

They are those of ``training.step`` and ``rollout.device``, with the shardings that a
run gives them. The largest shapes of a run are taken: the longest bucket of rows, all
slots, the whole span.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from mempo_jax.models import lora
from mempo_jax.models.decoder import DecoderConfig, LanguageModel
from mempo_jax.rollout.device import Programs as EnginePrograms
from mempo_jax.rollout.generate import Sampling
from mempo_jax.rollout.sampler import Counters
from mempo_jax.training import loss as losses
from mempo_jax.training import parts, sharding
from mempo_jax.training.accumulating import Accumulator
from mempo_jax.training.filler import filler_facts, filler_rows
from mempo_jax.training.run_settings import RunSettings
from mempo_jax.training.state import fresh_state, make_optimiser
from mempo_jax.training.step import Programs
from mempo_jax.types import Rows

NAMES = ("score", "accumulate", "apply", "prefill", "decode")


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Trees of ``jax.ShapeDtypeStruct`` with shardings, of what stays on the devices.

    params: all of them, adapters included. sampled: the same as the engine has them,
    which with several hosts is a copy. state: what is trained, with its optimiser.
    sums: of a step's gradients. cache: of the engine.
    """

    params: Any
    sampled: Any
    state: Any
    sums: Any
    cache: Any

    @property
    def trained(self) -> Any:
        return self.state.params


class Lowering:
    """Lowers a run's programs onto a mesh, whose devices need not be there to run.

    config: of the decoder. unroll: of the model; None chooses by depth. hosts:
    processes of the run; with several each engine has the devices of its own host.
    """

    def __init__(
        self,
        config: DecoderConfig,
        settings: RunSettings,
        mesh: Mesh,
        *,
        unroll: bool | None = None,
        hosts: int = 1,
    ) -> None:
        policy = settings.policy
        adapters = policy.lora.adapters()
        self.settings, self.mesh = settings, mesh
        self.engine_mesh = host_mesh(mesh, hosts)
        self._slots = settings.sampling.slots // hosts
        self.model = LanguageModel(
            config,
            policy.compute_dtype,
            remat=policy.remat,
            unroll=unroll,
            lora=adapters,
            attention="xla" if policy.attention == "auto" else policy.attention,
        )
        self.optimiser = make_optimiser(parts.optimiser(settings))
        self.rows = sharding.row_sharding(mesh)
        self._engine = EnginePrograms(
            self.model, sharding.row_sharding(self.engine_mesh), Counters()
        )
        self.shapes = self._shapes()
        self._training = Programs(
            self.model,
            mesh,
            self.optimiser,
            parts.objective(settings),
            parts.advantage(settings),
            settings.credit,
            pass_tokens=0,  # as elsewhere than on the CPU that compiles this
        )

    def call(self, name: str) -> tuple[Any, tuple, dict[str, Any]]:
        """The jitted function of one of ``NAMES``, with the shapes of its arguments
        and its static ones."""
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
        per_token = rows.behaviour_log_probs
        given = (rows, per_token, per_token, self._loss_inputs(), scalar, scalar)
        return jitted, (shapes.params, shapes.sums, *given), {}

    def lower(self, name: str) -> Any:
        """``jax.stages.Lowered`` of one of ``NAMES``."""
        jitted, args, static = self.call(name)
        return jitted.lower(*args, **static)

    def export(self, name: str, platforms: tuple[str, ...]) -> Any:
        """``jax.export.Exported`` of one of ``NAMES`` for "tpu", "cuda" or "cpu"."""
        jitted, args, static = self.call(name)
        if static:
            inner = functools.partial(jitted, **static)
            jitted = jax.jit(inner)
        return jax.export.export(jitted, platforms=platforms)(*args)

    @property
    def row_shape(self) -> tuple[int, int]:
        """Rows and padded length of the largest micro-batch, over all devices."""
        shapes = parts.shapes(self.settings, self.mesh)
        length = shapes.length_buckets[-1]
        return shapes.rows_of(length), length

    def _engine_call(self, name: str) -> tuple[Any, tuple, dict[str, Any]]:
        sampling, span = self.settings.sampling, self.settings.max_segment_tokens
        rows = sharding.row_sharding(self.engine_mesh)

        def per_slot(dtype, *more: int) -> Any:
            return jax.ShapeDtypeStruct((self._slots, *more), dtype, sharding=rows)

        params, cache = self.shapes.sampled, self.shapes.cache
        numbers = functools.partial(per_slot, jnp.int32)
        if name == "prefill":
            width = min(sampling.prefill_buckets[-1], span)
            given = (None, numbers(width), numbers())
            return self._engine.prefill, (params, cache, *given), {"span": span}
        whole = functools.partial(
            jax.ShapeDtypeStruct, sharding=sharding.replicated(self.engine_mesh)
        )
        stop = whole((self.model.config.vocab_size,), jnp.bool_)
        drawing = Sampling(
            whole((), jnp.float32), whole((), jnp.float32), whole((), jnp.int32)
        )
        given = (None, numbers(), numbers(), numbers(), per_slot(jnp.uint32, 2))
        static = {"steps": sampling.decode_chunk, "span": span, "filtered": False}
        args = (params, cache, stop, *given, numbers(), drawing)
        return self._engine.decode, args, static

    def _shapes(self) -> Shapes:
        policy = self.settings.policy
        params = jax.eval_shape(self.model.init, jax.random.key(0))
        adapters, base = lora.split(params)
        stored = base if base else adapters
        stored = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, policy.param_dtype), stored
        )
        # Adapters are kept in float32.
        params = lora.join(adapters, stored) if base else stored
        trained, _ = lora.split(params)
        state = jax.eval_shape(lambda p: fresh_state(p, self.optimiser), trained)
        cache = jax.eval_shape(
            lambda: self.model.init_cache(
                self._slots, self.settings.max_segment_tokens, turned=False
            )  # as on other backends than a CPU
        )
        held = self._engine.cache_sharding
        return Shapes(
            self._put(params),
            # As the engine takes them on other backends than a CPU: stacked.
            _placed(params, sharding.shardings(params, self.engine_mesh)),
            self._put(state),
            self._sums(trained),
            jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=held), cache
            ),
        )

    def _sums(self, trained: Any) -> Accumulator:
        wide = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), trained
        )
        scalar = jax.ShapeDtypeStruct(
            (), jnp.float32, sharding=sharding.replicated(self.mesh)
        )
        keys = parts.objective(self.settings).aux_keys
        return Accumulator(self._put(wide), scalar, scalar, dict.fromkeys(keys, scalar))

    def _put(self, tree: Any) -> Any:
        return _placed(tree, sharding.shardings(tree, self.mesh))

    def _row_arrays(self) -> Rows:
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.rows),
            filler_rows(*self.row_shape),
        )

    def _loss_inputs(self) -> losses.LossInputs:
        facts = filler_facts(self.settings, parts.shapes(self.settings, self.mesh))
        make = functools.partial(
            losses.loss_inputs,
            advantage=parts.advantage(self.settings),
            credit=self.settings.credit,
        )
        count = jax.ShapeDtypeStruct((facts.valid.size,), jnp.float32)
        return jax.eval_shape(make, facts, count)


def host_mesh(mesh: Mesh, hosts: int) -> Mesh:
    """Of the devices of one of several hosts, as ``training.placing`` makes it."""
    if hosts == 1:
        return mesh
    own = mesh.size // hosts
    tensor = math.gcd(mesh.shape["tensor"], own)
    fsdp = math.gcd(mesh.shape["fsdp"], own // tensor)
    return sharding.make_mesh(
        own // (fsdp * tensor), fsdp, tensor, devices=list(mesh.devices.flat)[:own]
    )


def _placed(tree: Any, where: Any) -> Any:
    def put(leaf: Any, sharding: NamedSharding) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(put, tree, where)


def device_bytes(tree: Any) -> int:
    """Bytes of a tree of placed shapes on one device, by its shards; exact."""
    return sum(
        int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )
