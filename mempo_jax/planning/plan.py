"""Plans a run on a named device: shape, memory, time, and what to change.

If a run does not fit, changes of its config are tried, the cheapest first. The plan is
printed as text or as plain data. Bytes of programs and all seconds are estimates; see
``memory`` and ``speed`` for how far they can be trusted.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from mempo_jax.config import RunConfig, from_config
from mempo_jax.distributed import placement
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.planning import speed
from mempo_jax.planning.devices import (
    GIB,
    GPU_DEFAULT_SHARE,
    GPU_SHARE,
    Device,
    nearest_mesh,
)
from mempo_jax.planning.memory import (
    SAMPLING,
    TITLES,
    Estimator,
    Memory,
    compiled,
    programs_of,
)
from mempo_jax.planning.programs import (
    Lowering,
    count,
    engine_mesh,
    kernel_of,
    policy_shape,
    shape_of,
)
from mempo_jax.planning.speed import LEFT_OUT, OF_BANDWIDTH, OF_LINK, OF_PEAK, Work
from mempo_jax.settings import LOG_PROB_GAPS, ConfigError

MOST_CHANGES = 6  # rounds of a search, so that it ends
LORA_RANK = 32  # of adapters, if all weights cannot be trained
PREFILL = (1_024, 256)  # new context tokens of one call to try if memory is short
# A cheap change must bring the bytes below this share of those before; one that saves
# less is not worth its speed, and a change of the next kind is tried instead.
WORTH = 0.85
Changes = dict[str, Any]  # dotted config field -> value
Measure = Callable[[RunConfig], Memory]
Note = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """The plan of a run on a device.

    Attributes:
      device, memory: the chips, and the bytes on each.
      shape, parameters: where the policy's shape was found, and how many it has.
      axes: sizes of the mesh's axes by name.
      compiler, narrowed: its name; whether it was asked about float32 for bfloat16.
      work, seconds: what a step is assumed to consist of, and its time by stage.
      found: changes of a run that does not fit; None if none were looked for.
      attention: the kernel of whole rows that the run uses there, by name.
      checked: bytes of each program with its arguments, extrapolated from small depths
        and compiled at the full one; {} if that was not asked for.
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
    attention: str = "xla"
    checked: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    other_mesh: Changes = dataclasses.field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether the run as configured fits."""
        return self.memory.peak <= self.device.usable

    @property
    def total_seconds(self) -> float:
        """Seconds of one step."""
        return sum(self.seconds.values())


class Planner:
    """Plans runs on one named device.

    Args:
      device: the chips to plan for.
      devices: of jax, one for each chip; only compiled for, so they need not exist.
      compiler: name of their compiler, for the text.
      narrow: see ``memory.Estimator``.
      note: called with a description of each slow part.
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
        """Plans a run with this config.

        If the config's mesh does not fit the number of chips, the nearest mesh that
        does is planned, and the plan says so.

        Args:
          config: as nested dicts.
          turns, turn_tokens: see ``speed.assumed_work``.
          check: compile the programs at their full depth as well.
          change: look for changes if the run does not fit.

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
        kernel = kernel_of(settings, self.device.chip.kind, shape, reference)
        self._check_slots(settings)
        chip = self.device.chip
        estimator = Estimator(
            *(shape, self.mesh, self.device.hosts, self._narrow, self._compiled),
            lanes=chip.lanes if self._narrow else 0,
            engine_devices=self._engine_devices,
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
            if found.changes:  # one list of all that the user has to type
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
            attention=kernel,
            checked=_checked(estimator, settings) if check else {},
            other_mesh=other_mesh,
        )

    def mesh(self, settings: RunConfig) -> Mesh:
        """Builds the mesh of ``settings``; ConfigError if it does not fit the chips."""
        axes = settings.mesh
        try:
            devices, _ = placement.split_devices(self._by_host(), axes.sampling.devices)
            return placement.make_mesh(
                axes.data, axes.fsdp, axes.tensor, devices=devices
            )
        except ValueError as error:
            raise ConfigError(f"config.mesh: {error}") from error

    def _by_host(self) -> list[list[Any]]:
        own = len(self._devices) // self.device.hosts
        return [self._devices[n : n + own] for n in range(0, len(self._devices), own)]

    def _engine_devices(self, settings: RunConfig) -> list[Any]:
        """Those of one host that sample alone."""
        alone = settings.mesh.sampling.devices
        return placement.split_devices(self._by_host(), alone)[1] if alone else []

    def _engine_mesh(self, settings: RunConfig) -> Mesh:
        mesh, alone = self.mesh(settings), self._engine_devices(settings)
        try:
            return engine_mesh(settings, mesh, self.device.hosts, alone)
        except ValueError as error:
            raise ConfigError(f"config.mesh: {error}") from error

    def _other_mesh(
        self, config: Mapping[str, Any], settings: RunConfig, shape: DecoderConfig
    ) -> Changes:
        """Returns changes to a mesh that does not fit the number of chips, else {}."""
        try:
            self.mesh(settings)
            return {}
        except ConfigError:
            axes = settings.mesh
            if min(axes.fsdp, axes.tensor, abs(axes.data)) < 1 or axes.data < -1:
                raise  # no number of chips would do

            alone = axes.sampling.devices * self.device.hosts
            count = self.device.count - alone

            def fits(changes: Changes) -> bool:
                hosts = self.device.hosts
                try:
                    changed = with_changes(config, changes)
                    self._check_slots(changed)
                    lowering = Lowering(shape, changed, self.mesh(changed), hosts=hosts)
                    return min(lowering.row_shape) > 0
                except ValueError:  # ConfigError, or a dimension that does not divide
                    return False

            changes = nearest_mesh(axes, count, fits)
            if changes is None:
                raise
            return changes

    def _compiled(self, lowering: Any, name: str) -> Any:
        layers = lowering.model.config.layers
        self._note(f"compiling {name}, {layers} layers")
        return compiled(lowering, name)

    def _chips(self, settings: RunConfig) -> speed.Chips:
        mesh = self.mesh(settings)
        own = self._engine_mesh(settings)
        return speed.Chips(
            self.device,
            dict(mesh.shape),
            dict(own.shape),
            settings.policy.compute_dtype == "float32",
        )

    def _check_slots(self, settings: RunConfig) -> None:
        own = placement.row_multiple(self._engine_mesh(settings))
        multiple = self.device.hosts * own
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


@dataclasses.dataclass(frozen=True)
class Found:
    """Changes of a config ({} if none helps), and the run with them."""

    changes: Changes
    memory: Memory
    fits: bool


def find(
    config: Mapping[str, Any],
    memory: Memory,
    usable: int,
    devices: int,
    heads: int,
    measure: Measure,
    note: Callable[[str], None] = lambda text: None,
) -> Found:
    """Changes one field after the other until the run fits.

    Each round tries the fields that affect the fullest program, those that cost only
    speed first. The first that fits is taken, else the one that saves most.

    Args:
      config, memory: of the run as it is.
      usable, devices: bytes of one chip, and number of chips.
      heads: key/value heads, which mesh.tensor must divide.
      measure: settings -> memory; raises ConfigError for settings that cannot run.
      note: called with a description of each try.
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
    """Returns the first try that fits, else the least of all tries and ``found``."""
    best = found
    for more in tries:
        changes = found.changes | more
        note(", ".join(f"{name}={value}" for name, value in more.items()))
        try:
            memory = measure(with_changes(config, changes))
        except ConfigError:
            continue  # such a run could not start
        tried = Found(changes, memory, memory.peak <= usable)
        if tried.memory.peak < best.memory.peak:
            best = tried
        if tried.fits:
            break
    return best


def _tiers(
    settings: RunConfig, memory: Memory, usable: int, devices: int, heads: int
) -> Iterator[Iterator[Changes]]:
    """Yields groups of changes; those that cost only speed first, if they can help."""
    # Gradients stay through an update: smaller pieces of work make no room for them.
    in_update = memory.fullest not in SAMPLING
    if memory.standing + (memory.sums if in_update else 0) <= usable:
        yield _less_at_once(settings, memory.fullest, devices)
    yield _spread_or_less(settings, devices, heads)


def _spread_or_less(settings: RunConfig, devices: int, heads: int) -> Iterator[Changes]:
    """Yields changes that split weights further, or make them fewer or narrower."""
    policy, mesh = settings.policy, settings.mesh
    for fsdp in (2**n for n in range(1, devices.bit_length())):
        if fsdp > mesh.fsdp and devices % (fsdp * mesh.tensor) == 0:
            yield {"mesh.fsdp": fsdp}
    for tensor in (2, 4, 8):  # 8: the most chips that one host has
        fits = devices % tensor == 0 and heads % tensor == 0
        if tensor > mesh.tensor and fits:
            yield {"mesh.tensor": tensor, "mesh.fsdp": devices // tensor}
    if policy.param_dtype == "float32":
        narrow = {"policy.param_dtype": "bfloat16", "policy.compute_dtype": "bfloat16"}
        yield narrow | _wider_gap(settings)
    if not policy.lora.rank:
        yield {"policy.lora.rank": LORA_RANK}


def _less_at_once(settings: RunConfig, fullest: str, devices: int) -> Iterator[Changes]:
    """Yields changes that do the same work in smaller pieces: only speed is lost."""
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


def _wider_gap(settings: RunConfig) -> Changes:
    """Raises a tight bound that rounding in bfloat16 alone would exceed."""
    tight = 0 < settings.train.max_log_prob_gap < LOG_PROB_GAPS["bfloat16"]
    return {"train.max_log_prob_gap": 0.0} if tight else {}


def with_changes(config: Mapping[str, Any], changes: Changes) -> RunConfig:
    """Builds settings from ``config`` with ``changes``, new values by dotted name.

    Raises:
      ConfigError: the values do not go together.
    """
    return from_config(changed(config, changes))


def changed(config: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Copies ``config``, nested dicts, with ``changes``, new values by dotted name."""
    config = copy.deepcopy(dict(config))
    for name, value in changes.items():
        *sections, field = name.split(".")
        part = config
        for section in sections:
            part = part[section]
        part[field] = value
    return config


def as_json(plan: RunPlan) -> dict[str, Any]:
    """Converts ``plan`` to plain data: bytes of one device, seconds of one step."""
    memory = plan.memory
    content: dict[str, Any] = {
        "device": plan.device.name,
        "chips": plan.device.count,
        "hosts": plan.device.hosts,
        "policy": plan.shape,
        "parameters": plan.parameters,
        "mesh": plan.axes,
        "attention": plan.attention,
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
        content["checked"] = plan.checked
    if plan.other_mesh:
        content["mesh_change"] = plan.other_mesh
    if plan.found is not None:
        content["change"] = plan.found.changes
        content["then"] = {"sum": plan.found.memory.peak, "fits": plan.found.fits}
    return content


def as_text(plan: RunPlan) -> str:
    """Renders ``plan`` as lines to print."""
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
        f"kernel   {plan.attention}, of the attention of whole rows",
    ]
    if plan.other_mesh:
        lines.append(
            f"mesh     that of the config does not fit {chips}; planned with "
            f"{_overrides(plan.other_mesh)}"
        )
    return lines


def _overrides(changes: Changes) -> str:
    """Spells changes as they are given on the command line."""
    return " ".join(f"--config.{n}={_value(v)}" for n, v in changes.items())


def _memory(plan: RunPlan) -> list[str]:
    memory = plan.memory
    lines = [_row("GiB on each device", "stays", "made", "sum")]
    lines += [_row(name, _gib(size)) for name, size in memory.stays.items()]
    lines.append(_row("gradients (float32 sums)", "", _gib(memory.sums)))
    for name, size in memory.made.items():
        title, total = TITLES[name], memory.while_in(name)
        mark = "  <- most" if name == memory.fullest else ""
        lines.append(_row(f"in {title}", "", _gib(size), _gib(total)) + mark)
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
    if plan.attention == "cudnn":
        lines.append(
            "Attention in score and train step is cuDNN's kernel there, planned as xla:"
        )
        lines.append("cuDNN's workspace and its speed are not modelled.")
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
    stages = ", ".join(f"{name} {_digits(took)}" for name, took in plan.seconds.items())
    return [
        "",
        f"a step  about {_digits(plan.total_seconds)} s: {stages}",
        f"  of {plan.work} (assumed; see --turns, --turn_tokens),",
        f"  at {OF_PEAK:.0%} of peak, {OF_BANDWIDTH:.0%} of memory bandwidth, "
        f"{OF_LINK:.0%} of the links (assumed).",
        f"  Left out: {LEFT_OUT}.",
    ]


def _digits(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2f}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _row(name: str, *columns: str) -> str:
    return f"{name:28}" + "".join(f"{column:>10}" for column in columns).rstrip()


def _gib(size: float) -> str:
    gib = size / GIB
    return f"{gib:.2f}" if gib >= 0.1 else f"{gib:.4f}"
