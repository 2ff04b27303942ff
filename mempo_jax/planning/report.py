"""A plan as text, and as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

from mempo_jax.planning.advice import Found
from mempo_jax.planning.chips import GIB, GPU_DEFAULT_SHARE, GPU_SHARE, Device
from mempo_jax.planning.memory import TITLES, Memory
from mempo_jax.planning.speed import LEFT_OUT, OF_BANDWIDTH, OF_LINK, OF_PEAK, Work


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that is told of a run on a device.

    shape: where the policy's was found. parameters: how many. axes: of the mesh.
    narrowed: whether bfloat16 was derived from float32. seconds: by stage. checked:
    bytes of each program as the compiler was asked, arguments included: continued from
    small depths, and compiled at the whole one; {} where that was not done.
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

    @property
    def fits(self) -> bool:
        return self.memory.peak <= self.device.usable

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())


def as_json(plan: Plan) -> dict[str, Any]:
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
    if plan.found is not None:
        made["change"] = plan.found.changes
        made["then"] = {"sum": plan.found.memory.peak, "fits": plan.found.fits}
    return made


def as_text(plan: Plan) -> str:
    return "\n".join(
        [*_head(plan), "", *_memory(plan), "", *_verdict(plan), *_time(plan)]
    )


def _head(plan: Plan) -> list[str]:
    device, chip = plan.device, plan.device.chip
    axes = " x ".join(f"{name} {size}" for name, size in plan.axes.items())
    chips, hosts = _counted(device.count, "chip"), _counted(device.hosts, "host")
    return [
        f"policy   {plan.shape}: {plan.parameters:,} parameters",
        f"device   {device.name}: {chips} of {chip.memory / GIB:.1f} GiB, "
        f"{hosts}; mesh {axes}",
    ]


def _memory(plan: Plan) -> list[str]:
    memory = plan.memory
    lines = [_row("GiB on each device", "stays", "made", "sum")]
    lines += [_row(name, _gib(size)) for name, size in memory.stays.items()]
    lines.append(_row("gradients (float32 sums)", "", _gib(memory.sums)))
    for name, made in memory.made.items():
        title, total = TITLES[name], memory.while_in(name)
        mark = "  <- most" if name == memory.fullest else ""
        lines.append(_row(f"in {title}", "", _gib(made), _gib(total)) + mark)
    return [*lines, "", *_how_sure(plan), *_check(plan)]


def _how_sure(plan: Plan) -> list[str]:
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


def _check(plan: Plan) -> list[str]:
    if not plan.checked:
        return []
    lines = ["", _row("GiB of a program, as asked", "continued", "compiled", "off by")]
    for name, (continued, whole) in plan.checked.items():
        off = f"{continued / whole - 1:+.1%}"
        lines.append(_row(TITLES[name], _gib(continued), _gib(whole), off))
    return lines


def _verdict(plan: Plan) -> list[str]:
    peak, device = plan.memory.peak, plan.device
    usable = device.usable
    share = f"{peak / usable:.0%} of the {usable / GIB:.1f} GiB that can be used"
    lines = [f"{'fits' if plan.fits else 'DOES NOT FIT'}: {_gib(peak)} GiB, {share}"]
    tight = device.chip.memory * GPU_DEFAULT_SHARE
    if device.chip.kind == "gpu" and plan.fits and peak > tight:
        lines.append(f"  set XLA_PYTHON_CLIENT_MEM_FRACTION={GPU_SHARE} (default .75)")
    found = plan.found
    if found is not None and found.changes:
        changes = " ".join(
            f"--config.{n}={_value(v)}" for n, v in found.changes.items()
        )
        what = "fits" if found.fits else "still does not fit"
        lines.append(f"change {changes}")
        lines.append(f"  then it {what}: {_gib(found.memory.peak)} GiB")
    elif found is not None:
        lines.append(
            "no change of a field that was tried saves anything; take more chips"
        )
    return lines


def _value(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _time(plan: Plan) -> list[str]:
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
