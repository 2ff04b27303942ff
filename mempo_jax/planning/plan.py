"""Puts a plan together: shape, memory, time, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from mempo_jax.planning import advice, speed
from mempo_jax.planning.chips import Device
from mempo_jax.planning.memory import Estimator, compiled, programs_of
from mempo_jax.planning.policies import policy_shape, shape_of
from mempo_jax.planning.programs import host_mesh
from mempo_jax.planning.report import Plan
from mempo_jax.settings import ConfigError
from mempo_jax.training import sharding
from mempo_jax.training.run_settings import RunSettings, from_config

Note = Callable[[str], None]


class Planner:
    """Plans runs on one device name.

    devices: that programs are compiled for, one for each chip; they need not be there.
    narrow: see ``memory.Estimator``. note: told what is under way.
    """

    def __init__(
        self,
        device: Device,
        devices: Sequence[Any],
        *,
        compiler: str,
        narrow: bool,
        note: Note = lambda text: None,
    ) -> None:
        self.device, self._devices = device, list(devices)
        self._compiler, self._narrow, self._note = compiler, narrow, note

    def plan(
        self,
        config: Mapping[str, Any],
        *,
        turns: int = 0,
        turn_tokens: int = 0,
        check: bool = False,
        change: bool = True,
    ) -> Plan:
        """Of a run with this config.

        Args:
          turns, turn_tokens: see ``speed.assumed_work``.
          check: compile the programs at their whole depth as well.
          change: look for changes where it does not fit.

        Raises:
          ConfigError: a config that cannot run, there or anywhere.
        """
        settings = from_config(config)
        shape, where = policy_shape(settings)
        ref_path = settings.policy.ref_path
        reference = shape_of(ref_path, "policy.ref_path")[0] if ref_path else None
        self._check_slots(settings)
        chip = self.device.chip
        estimator = Estimator(
            *(shape, self.mesh, self.device.hosts, self._narrow, self._compiled),
            lanes=chip.lanes if self._narrow else 0,
        )

        def measure(settings: RunSettings) -> Any:
            self._check_slots(settings)
            try:
                return estimator.memory(settings, reference)
            except ConfigError:
                raise
            except ValueError as error:  # a dimension that the mesh does not divide
                raise ConfigError(f"config.mesh: {error}") from error

        memory = measure(settings)
        found = None
        if change and memory.peak > self.device.usable:
            found = advice.find(
                config,
                memory,
                self.device.usable,
                self.device.count,
                shape.kv_heads,
                measure,
                lambda text: self._note(f"trying {text}"),
            )
        mesh = self.mesh(settings)
        work = speed.assumed_work(settings, turns, turn_tokens)
        return Plan(
            device=self.device,
            shape=where,
            parameters=count(estimator.lowering(settings).shapes.params),
            axes=dict(mesh.shape),
            memory=memory,
            narrowed=self._narrow and settings.policy.compute_dtype == "bfloat16",
            compiler=self._compiler,
            work=work,
            seconds=speed.seconds(shape, settings, self._chips(settings), work),
            found=found,
            checked=_checked(estimator, settings) if check else {},
        )

    def mesh(self, settings: RunSettings) -> Mesh:
        """Of a run on these devices; ConfigError where the axes do not fit them."""
        axes = settings.mesh
        try:
            return sharding.make_mesh(
                axes.data, axes.fsdp, axes.tensor, devices=self._devices
            )
        except ValueError as error:
            raise ConfigError(f"config.mesh: {error}") from error

    def _compiled(self, lowering: Any, name: str) -> Any:
        layers = lowering.model.config.layers
        self._note(f"compiling {name}, {layers} layers")
        return compiled(lowering, name)

    def _chips(self, settings: RunSettings) -> speed.Chips:
        mesh = self.mesh(settings)
        own = host_mesh(mesh, self.device.hosts)
        return speed.Chips(
            self.device,
            dict(mesh.shape),
            dict(own.shape),
            settings.policy.compute_dtype == "float32",
        )

    def _check_slots(self, settings: RunSettings) -> None:
        mesh, hosts = self.mesh(settings), self.device.hosts
        multiple = hosts * sharding.row_multiple(host_mesh(mesh, hosts))
        if settings.sampling.slots % multiple:
            raise ConfigError(
                f"config.sampling.slots: expected a multiple of {multiple}, the chips "
                f"that rows are split over, got {settings.sampling.slots}"
            )


def _checked(estimator: Estimator, settings: RunSettings) -> dict[str, tuple[int, int]]:
    return {
        name: (
            estimator.asked(settings, name).total,
            estimator.whole(settings, name).total,
        )
        for name in programs_of(settings)
    }


def count(params: Any) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
