"""Two runs beside each other: where they part, and what may have parted them."""

from __future__ import annotations

import numpy as np

from mempo_jax.doctor.findings import NOTE, WARNING, Finding, Seen
from mempo_jax.doctor.machinery import unread_files
from mempo_jax.doctor.naming import number
from mempo_jax.doctor.record import Record

# Figures of time and place: they differ between any two runs.
TIMED = ("seconds", "recall_ms", "probe_share", "device_bytes", "compilations")
# Figures of what was sampled: with the same samples they are the same.
SAMPLED = ("success", "reward", "edit_distance", "tokens_per_trajectory", "turns")
ROUNDING = 1e-4  # relative: what another order of float32 sums may do in one step
SHOWN = 5  # fields, or metrics, that are named


def differences(first: Record, second: Record) -> list[Finding]:
    """What differs between two runs, and that nothing does where nothing does."""
    fields = differing_fields(first, second)
    found = [] if not fields else [_configs(first, second, fields)]
    found += [*_unread(second), *_machines(first, second)]
    return [*found, _runs(first, second, fields)]


def _unread(second: Record) -> list[Finding]:
    """Damaged files of the other run; ``examine`` tells those of the first."""
    return [
        Finding(
            "other_damaged",
            NOTE,
            f"Of the other run {text}.",
            "The runs are compared by what else there is.",
            (),
            (),
        )
        for text in unread_files(second)
    ]


def differing_fields(first: Record, second: Record) -> list[str]:
    """Fields that both configs have with other values, or one alone; sorted."""
    if not first.config or not second.config:
        return []
    names = sorted(first.config.keys() | second.config.keys())
    return [n for n in names if first.config.get(n) != second.config.get(n)]


def _configs(first: Record, second: Record, fields: list[str]) -> Finding:
    shared = [n for n in fields if n in first.config and n in second.config]
    alone = len(fields) - len(shared)
    told = [
        f"config.{name} is {_value(first, name)} here and {_value(second, name)} there"
        for name in shared[:SHOWN]
    ]
    if len(shared) > SHOWN:
        told.append(f"and {len(shared) - SHOWN} more")
    if alone:
        told.append(
            f"{alone} fields one of the two does not know: other versions of the code"
        )
    return Finding(
        "configs_differ",
        NOTE,
        f"The configs differ in {len(fields)} field{'s' * (len(fields) > 1)}.",
        "; ".join(told) + ".",
        (Seen("fields that differ", len(fields)),),
        (),
        may_cause=("runs_differ",),
    )


def _machines(first: Record, second: Record) -> list[Finding]:
    """Versions and devices, where both runs noted them."""
    here, there = first.machine, second.machine
    if not here or not there or here == there:
        return []
    told = [
        f"{name} is {here.get(name)!r} here and {there.get(name)!r} there"
        for name in here.keys() | there.keys()
        if here.get(name) != there.get(name)
    ]
    return [
        Finding(
            "machines_differ",
            NOTE,
            "The runs were computed with other versions or on other devices.",
            "; ".join(sorted(told)) + ".",
            (Seen("things that differ", len(told)),),
            ("the same bits are promised where all of these are the same",),
            may_cause=("runs_differ",),
        )
    ]


def _runs(first: Record, second: Record, fields: list[str]) -> Finding:
    steps, ours, theirs = np.intersect1d(
        first.table.steps, second.table.steps, return_indices=True
    )
    apart = _apart(first, second, ours, theirs)
    if not len(steps) or not apart:
        what = (
            f"All figures of the {len(steps)} steps that both have are the same."
            if len(steps)
            else "The runs have no step in common."
        )
        return Finding("runs_same", NOTE, what, "Times are left out.", (), ())
    at = min(row for row, _ in apart)
    names = [name for row, name in apart if row == at]
    sizes = {n: _relative(first, second, n, ours[at], theirs[at]) for n in names}
    seen = []
    for name in _first_ones(names):
        for record, row, whose in ((first, ours, "here"), (second, theirs, "there")):
            value = float(record.table.column(name)[row[at]])
            seen.append(Seen(name, value, int(steps[at]), int(steps[at]), whose))
    ends = [record.table.late("success") for record in (first, second)]
    if None not in ends:
        seen += [ends[0].seen("here"), ends[1].seen("there")]
    rounding = max(sizes.values()) < ROUNDING
    return Finding(
        "runs_differ",
        NOTE if fields else WARNING,
        f"The runs part at step {steps[at]}, in "
        f"{', '.join(_first_ones(names))}"
        + (f" and {len(names) - 3} more figures" if len(names) > 3 else "")
        + (", by rounding alone at first." if rounding else "."),
        _why(names, int(steps[at]), rounding, _starts_differ(first, second)),
        tuple(seen),
        () if fields else _advice(first, second),
    )


def _apart(
    first: Record, second: Record, ours: np.ndarray, theirs: np.ndarray
) -> list[tuple[int, str]]:
    """(first row that differs, metric) of each metric that both recorded."""
    found = []
    for name in first.table.columns:
        timed = name.startswith(TIMED) or name.endswith("_per_s")
        if timed or name not in second.table.columns:
            continue
        a, b = first.table.column(name)[ours], second.table.column(name)[theirs]
        rows = np.flatnonzero((a != b) & ~(np.isnan(a) & np.isnan(b)))
        if len(rows):
            found.append((int(rows[0]), name))
    return found


def _first_ones(names: list[str]) -> list[str]:
    """Three names, what was sampled before what was computed of it."""
    return sorted(names, key=lambda name: name not in SAMPLED)[:3]


def _why(names: list[str], step: int, rounding: bool, starts: bool) -> str:
    if starts:
        return "The policies differ before the first step: so do their evaluations."
    if any(name in SAMPLED for name in names):
        return (
            "Other samples were drawn: by another seed, temperature or task."
            if step == 0
            else "Other samples were drawn, so the weights behind the step before "
            "differed already, or the draws did."
        )
    if rounding:
        return (
            "The samples are the same; sums were added in another order: another "
            "machine, number of devices or version. Rounding grows from step to step."
        )
    return "The samples are the same, and something else is computed of them."


def _advice(first: Record, second: Record) -> tuple[str, ...]:
    """What to compare where the configs are the same, or one is not known."""
    if not first.config or not second.config:
        return (
            "config.json of one of them is missing or damaged: compare the commands",
        )
    known = first.machine and second.machine
    return (
        "the same bits are promised on a CPU with the same versions and devices"
        + (", as here: " if first.machine == second.machine and known else ": ")
        + "machines.json of each run names them",
        "tasks and data may differ: look at the files in config.env.data_dir and at "
        "config.policy.path",
    )


def _starts_differ(first: Record, second: Record) -> bool:
    both = first.cold_start and second.cold_start
    return bool(both) and first.cold_start != second.cold_start


def _relative(first: Record, second: Record, name: str, a: int, b: int) -> float:
    left, right = first.table.column(name)[a], second.table.column(name)[b]
    size = max(abs(left), abs(right), 1e-12)
    gap = abs(left - right) / size
    return float(gap) if np.isfinite(gap) else np.inf


def _value(record: Record, name: str) -> str:
    value = record.config[name]
    return number(value) if isinstance(value, float) else repr(value)
