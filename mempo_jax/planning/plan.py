"""Puts a plan together: shape, memory, time, and what to change.

What to change where a run does not fit: fields are tried, the cheapest first.

A plan as text, and as plain data.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from mempo_jax.config import MeshConfig, RunConfig, from_config
from mempo_jax.distributed import placement
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.planning import speed
from mempo_jax.planning.devices import GIB, GPU_DEFAULT_SHARE, GPU_SHARE, Device
from mempo_jax.planning.memory import (
    SAMPLING,
    TITLES,
    Estimator,
    Memory,
    compiled,
    programs_of,
)
from mempo_jax.planning.programs import Lowering, host_mesh, policy_shape, shape_of
from mempo_jax.planning.speed import LEFT_OUT, OF_BANDWIDTH, OF_LINK, OF_PEAK, Work
from mempo_jax.settings import ConfigError

MOST_CHANGES = 6
LORA_RANK = 32
PREFILL = (1_024, 256)  # new context tokens of one call, where memory is short
WORTH = 0.85  # of the bytes before, that a cheap change must come under
Changes = dict[str, Any]
Measure = Callable[[RunConfig], Memory]


@dataclasses.dataclass(frozen=True)
class Found:
    """Fields to change, with their values, and what the run then needs."""

    changes: Changes
    memory: Memory
    fits: bool


def with_changes(config: Mapping[str, Any], changes: Changes) -> RunConfig:
    """Settings of a config with some fields changed, by dotted name.

    Raises:
      ConfigError: the values do not go together.
    """
    return from_config(changed(config, changes))


def changed(config: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """A copy of a config with some fields changed, by dotted name."""
    config = copy.deepcopy(dict(config))
    for name, value in changes.items():
        *sections, field = name.split(".")
        part = config
        for section in sections:
            part = part[section]
        part[field] = value
    return config


def nearest_mesh(
    mesh: MeshConfig, devices: int, fits: Callable[[Changes], bool]
) -> Changes | None:
    """The changes that make a mesh use all devices, as few and as small as possible.

    Distance is counted in doublings and halvings of fsdp and tensor together. Of two
    equally near meshes the one with the larger tensor is taken: weights that tensor
    splits are not gathered while turns are sampled.

    Args:
      mesh: the axes of the config, which do not fit the number of devices.
      devices: how many there are.
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
        # With data given, the product must come out right; -1 takes what remains.
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


def find(
    config: Mapping[str, Any],
    memory: Memory,
    usable: int,
    devices: int,
    heads: int,
    measure: Measure,
    note: Callable[[str], None] = lambda text: None,
) -> Found:
    """Changes fields, one after the other, until the run fits.

    At each turn the fields that bear on what is fullest are tried, those that cost only
    speed before others; the first that fits is taken, else the one that saves most.

    Args:
      memory: of the run as it is. usable: bytes of one device.
      devices: of the slice. heads: of keys, which mesh.tensor must divide.
      measure: settings -> memory; raises ValueError for what cannot run.
      note: told of each try.
    """
    found = Found({}, memory, memory.peak <= usable)
    for _ in range(MOST_CHANGES):
        if found.fits:
            break
        settings = with_changes(config, found.changes)
        for tries in _tiers(settings, found.memory, usable, devices, heads):
            best = _best(config, found, tries, usable, measure, note)
            if best.memory.peak < WORTH * found.memory.peak or best.fits:
                break
        if best.memory.peak >= found.memory.peak:
            break
        found = best
    return found


def _best(
    config: Mapping[str, Any],
    found: Found,
    tries: Iterator[Changes],
    usable: int,
    measure: Measure,
    note: Callable[[str], None],
) -> Found:
    """The first that fits, else the one that needs least; ``found`` if none is less."""
    best = found
    for more in tries:
        changes = found.changes | more
        note(", ".join(f"{name}={value}" for name, value in more.items()))
        try:
            made = measure(with_changes(config, changes))
        except ConfigError:
            continue
        tried = Found(changes, made, made.peak <= usable)
        if tried.memory.peak < best.memory.peak:
            best = tried
        if tried.fits:
            break
    return best


def _tiers(
    settings: RunConfig, memory: Memory, usable: int, devices: int, heads: int
) -> Iterator[Iterator[Changes]]:
    """What costs only speed comes first, where it can help at all."""
    in_update = memory.fullest not in SAMPLING
    if memory.standing + (memory.sums if in_update else 0) <= usable:
        yield _less_at_once(settings, memory.fullest, devices)
    yield _spread_or_less(settings, devices, heads)


def _spread_or_less(settings: RunConfig, devices: int, heads: int) -> Iterator[Changes]:
    policy, mesh = settings.policy, settings.mesh
    for fsdp in (2**n for n in range(1, devices.bit_length())):
        if fsdp > mesh.fsdp and devices % (fsdp * mesh.tensor) == 0:
            yield {"mesh.fsdp": fsdp}
    for tensor in (2, 4, 8):
        fits = devices % tensor == 0 and heads % tensor == 0
        if tensor > mesh.tensor and fits:
            yield {"mesh.tensor": tensor, "mesh.fsdp": devices // tensor}
    if policy.param_dtype == "float32":
        narrow = {"policy.param_dtype": "bfloat16", "policy.compute_dtype": "bfloat16"}
        yield narrow | _gap(settings)
    if not policy.lora.rank:
        yield {"policy.lora.rank": LORA_RANK}


def _less_at_once(settings: RunConfig, fullest: str, devices: int) -> Iterator[Changes]:
    """Smaller pieces of the same work: only speed is lost."""
    train, sampling = settings.train, settings.sampling
    if fullest in SAMPLING:
        buckets = sampling.prefill_buckets
        for last in PREFILL:
            if fullest == "prefill" and buckets[-1] > last:
                smaller = tuple(size for size in buckets if size < last)
                yield {"sampling.prefill_buckets": (*smaller, last)}
        for part in (2, 4, 8):
            if sampling.slots % part == 0:
                yield {"sampling.slots": sampling.slots // part}
        return
    if not settings.policy.remat:
        yield {"policy.remat": True}
    least = train.length_buckets[-1] * devices // settings.mesh.tensor
    rows = train.micro_batch_tokens // least
    for fewer in (rows // 2, rows // 4, 1):
        if 1 <= fewer < rows:
            yield {"train.micro_batch_tokens": fewer * least}


def _gap(settings: RunConfig) -> Changes:
    """Rounding in bfloat16 alone would stop a run with a tight bound."""
    gap = settings.train.max_log_prob_gap
    return {} if gap >= 0.1 else {"train.max_log_prob_gap": 0.1}


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """All that is told of a run on a device.

    shape: where the policy's was found. parameters: how many. axes: of the mesh.
    narrowed: whether bfloat16 was derived from float32. seconds: by stage. checked:
    bytes of each program as the compiler was asked, arguments included: continued from
    small depths, and compiled at the whole one; {} where that was not done.
    other_mesh: changes to a mesh that does not fit the number of chips, else {}.
    """

    device: Device
    shape: str
    parameters: int
    axes: dict[str, int]
    memory: Memory
    narrowed: bool
    compiler: str
    work: Work
    seconds: dict[str, float]
    found: Found | None = None
    checked: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    other_mesh: Changes = dataclasses.field(default_factory=dict)

    @property
    def fits(self) -> bool:
        return self.memory.peak <= self.device.usable

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())


def as_json(plan: RunPlan) -> dict[str, Any]:
    """Bytes of one device, seconds of one step; numbers and strings only."""
    memory = plan.memory
    made: dict[str, Any] = {
        "device": plan.device.name,
        "chips": plan.device.count,
        "hosts": plan.device.hosts,
        "policy": plan.shape,
        "parameters": plan.parameters,
        "mesh": plan.axes,
        "compiler": plan.compiler,
        "stays": memory.stays,
        "gradients": memory.sums,
        "programs": memory.made,
        "sum": memory.peak,
        "fullest": memory.fullest,
        "usable": plan.device.usable,
        "fits": plan.fits,
        "work": dataclasses.asdict(plan.work),
        "seconds": plan.seconds | {"total": plan.total_seconds},
    }
    if plan.checked:
        made["checked"] = plan.checked
    if plan.other_mesh:
        made["mesh_change"] = plan.other_mesh
    if plan.found is not None:
        made["change"] = plan.found.changes
        made["then"] = {"sum": plan.found.memory.peak, "fits": plan.found.fits}
    return made


def as_text(plan: RunPlan) -> str:
    return "\n".join(
        [*_head(plan), "", *_memory(plan), "", *_verdict(plan), *_time(plan)]
    )


def _head(plan: RunPlan) -> list[str]:
    device, chip = plan.device, plan.device.chip
    axes = " x ".join(f"{name} {size}" for name, size in plan.axes.items())
    chips, hosts = _counted(device.count, "chip"), _counted(device.hosts, "host")
    lines = [
        f"policy   {plan.shape}: {plan.parameters:,} parameters",
        f"device   {device.name}: {chips} of {chip.memory / GIB:.1f} GiB, "
        f"{hosts}; mesh {axes}",
    ]
    if plan.other_mesh:
        lines.append(
            f"mesh     that of the config does not fit {chips}; planned with "
            f"{_overrides(plan.other_mesh)}"
        )
    return lines


def _overrides(changes: Changes) -> str:
    """As they are given on the command line."""
    return " ".join(f"--config.{n}={_value(v)}" for n, v in changes.items())


def _memory(plan: RunPlan) -> list[str]:
    memory = plan.memory
    lines = [_row("GiB on each device", "stays", "made", "sum")]
    lines += [_row(name, _gib(size)) for name, size in memory.stays.items()]
    lines.append(_row("gradients (float32 sums)", "", _gib(memory.sums)))
    for name, made in memory.made.items():
        title, total = TITLES[name], memory.while_in(name)
        mark = "  <- most" if name == memory.fullest else ""
        lines.append(_row(f"in {title}", "", _gib(made), _gib(total)) + mark)
    return [*lines, "", *_how_sure(plan), *_check(plan)]


def _how_sure(plan: RunPlan) -> list[str]:
    lines = [
        "stays, gradients: exact, from shapes and the partition table.",
        f"in ...: asked of the {plan.compiler} compiler at small depths, and continued "
        "in a straight line.",
    ]
    if plan.narrowed:
        lines.append(
            "It was asked about float32 (a CPU has no bfloat16 products, and makes "
            "copies for them);"
        )
        lines.append("bfloat16 is derived by shares measured once: estimates.")
    return lines


def _check(plan: RunPlan) -> list[str]:
    if not plan.checked:
        return []
    lines = ["", _row("GiB of a program, as asked", "continued", "compiled", "off by")]
    for name, (continued, whole) in plan.checked.items():
        off = f"{continued / whole - 1:+.1%}"
        lines.append(_row(TITLES[name], _gib(continued), _gib(whole), off))
    return lines


def _verdict(plan: RunPlan) -> list[str]:
    peak, device = plan.memory.peak, plan.device
    usable = device.usable
    share = f"{peak / usable:.0%} of the {usable / GIB:.1f} GiB that can be used"
    lines = [f"{'fits' if plan.fits else 'DOES NOT FIT'}: {_gib(peak)} GiB, {share}"]
    tight = device.chip.memory * GPU_DEFAULT_SHARE
    if device.chip.kind == "gpu" and plan.fits and peak > tight:
        lines.append(f"  set XLA_PYTHON_CLIENT_MEM_FRACTION={GPU_SHARE} (default .75)")
    found = plan.found
    if found is not None and found.changes:
        what = "fits" if found.fits else "still does not fit"
        lines.append(f"change {_overrides(found.changes)}")
        lines.append(f"  then it {what}: {_gib(found.memory.peak)} GiB")
    elif found is not None:
        lines.append(
            "no change of a field that was tried saves anything; take more chips"
        )
    return lines


def _value(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _time(plan: RunPlan) -> list[str]:
    stages = ", ".join(f"{name} {_s(took)}" for name, took in plan.seconds.items())
    return [
        "",
        f"a step  about {_s(plan.total_seconds)} s: {stages}",
        f"  of {plan.work} (assumed; see --turns, --turn_tokens),",
        f"  at {OF_PEAK:.0%} of peak, {OF_BANDWIDTH:.0%} of memory bandwidth, "
        f"{OF_LINK:.0%} of the links (assumed).",
        f"  Left out: {LEFT_OUT}.",
    ]


def _s(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2f}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _row(name: str, *columns: str) -> str:
    return f"{name:28}" + "".join(f"{column:>10}" for column in columns).rstrip()


def _gib(size: float) -> str:
    gib = size / GIB
    return f"{gib:.2f}" if gib >= 0.1 else f"{gib:.4f}"


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
    ) -> RunPlan:
        """Of a run with this config.

        If the config's mesh does not fit the number of chips, the nearest mesh that
        does is planned, and the plan says so.

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
        other_mesh = self._other_mesh(config, settings, shape)
        if other_mesh:
            config = changed(config, other_mesh)
            settings = from_config(config)
        self._check_slots(settings)
        chip = self.device.chip
        estimator = Estimator(
            *(shape, self.mesh, self.device.hosts, self._narrow, self._compiled),
            lanes=chip.lanes if self._narrow else 0,
        )

        def measure(settings: RunConfig) -> Any:
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
            found = find(
                config,
                memory,
                self.device.usable,
                self.device.count,
                shape.kv_heads,
                measure,
                lambda text: self._note(f"trying {text}"),
            )
            if found.changes:  # what is to be typed, in one place
                found = dataclasses.replace(found, changes=other_mesh | found.changes)
        mesh = self.mesh(settings)
        work = speed.assumed_work(settings, turns, turn_tokens)
        return RunPlan(
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
            other_mesh=other_mesh,
        )

    def mesh(self, settings: RunConfig) -> Mesh:
        """Of a run on these devices; ConfigError where the axes do not fit them."""
        axes = settings.mesh
        try:
            return placement.make_mesh(
                axes.data, axes.fsdp, axes.tensor, devices=self._devices
            )
        except ValueError as error:
            raise ConfigError(f"config.mesh: {error}") from error

    def _other_mesh(
        self, config: Mapping[str, Any], settings: RunConfig, shape: DecoderConfig
    ) -> Changes:
        """Changes to the mesh if its axes do not fit the number of chips, else {}."""
        try:
            self.mesh(settings)
            return {}
        except ConfigError:
            axes = settings.mesh
            if min(axes.fsdp, axes.tensor, abs(axes.data)) < 1 or axes.data < -1:
                raise  # no number of chips would do

            def fits(changes: Changes) -> bool:
                hosts = self.device.hosts
                try:
                    changed = with_changes(config, changes)
                    self._check_slots(changed)
                    lowering = Lowering(shape, changed, self.mesh(changed), hosts=hosts)
                    return min(lowering.row_shape) > 0
                except ValueError:  # ConfigError, or a dimension that does not divide
                    return False

            changes = nearest_mesh(axes, self.device.count, fits)
            if changes is None:
                raise
            return changes

    def _compiled(self, lowering: Any, name: str) -> Any:
        layers = lowering.model.config.layers
        self._note(f"compiling {name}, {layers} layers")
        return compiled(lowering, name)

    def _chips(self, settings: RunConfig) -> speed.Chips:
        mesh = self.mesh(settings)
        own = host_mesh(mesh, self.device.hosts)
        return speed.Chips(
            self.device,
            dict(mesh.shape),
            dict(own.shape),
            settings.policy.compute_dtype == "float32",
        )

    def _check_slots(self, settings: RunConfig) -> None:
        mesh, hosts = self.mesh(settings), self.device.hosts
        multiple = hosts * placement.row_multiple(host_mesh(mesh, hosts))
        if settings.sampling.slots % multiple:
            raise ConfigError(
                f"config.sampling.slots: expected a multiple of {multiple}, the chips "
                f"that rows are split over, got {settings.sampling.slots}"
            )


def _checked(estimator: Estimator, settings: RunConfig) -> dict[str, tuple[int, int]]:
    return {
        name: (
            estimator.asked(settings, name).total,
            estimator.whole(settings, name).total,
        )
        for name in programs_of(settings)
    }


def count(params: Any) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
