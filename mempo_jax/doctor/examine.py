"""Examining one run, causes before what follows from them, and comparing two."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from mempo_jax.doctor.conditions import NotMeasured
from mempo_jax.doctor.diagnoses import DIAGNOSES
from mempo_jax.doctor.findings import (
    NOTE,
    SEVERITIES,
    WARNING,
    Diagnosis,
    Figure,
    Finding,
    mean,
)
from mempo_jax.doctor.text import advise, choose, field_text, number, spell
from mempo_jax.runs import RunRecord

# Metrics of time and place differ between any two runs.
TIMED = ("seconds", "recall_ms", "probe_share", "device_bytes", "compilations")
# Metrics of what was sampled are the same if the samples are.
SAMPLED = ("success", "reward", "edit_distance", "tokens_per_trajectory", "turns")
ROUNDING = 1e-4  # relative: what another order of float32 sums may do in one step
MAX_FIELDS, MAX_METRICS = 5, 3  # that are named
# What one finding may explain of others, if one of its facts holds or always; a cause
# comes before what it explains in DIAGNOSES too.
MAY_CAUSE: Mapping[str, str | Mapping[str, str]] = {
    "failed_trajectories": "few_groups_teach advantages_zero",
    "longer": "truncated overflow",
    "overflow": {"mostly": "tasks_too_hard only_penalties success_flat"},
    "truncated": {"mostly": "tasks_too_hard only_penalties success_flat"},
    "memory_off": "tasks_too_hard recalls_find_nothing success_flat advantages_zero "
    "only_penalties no_better_than_cold_start",
    "non_finite_updates": "late_collapse policy_hardly_moves success_flat",
    "updates_too_large": "late_collapse kl_blow_up entropy_collapse entropy_explosion "
    "malformed_ops low_diversity success_flat advantages_zero few_groups_teach "
    "no_better_than_cold_start tasks_too_hard memory_unused write_only "
    "non_finite_updates only_penalties truncated overflow reward_flat_loss_falls "
    "duplicate_writes",
    "sampler_gap": {"capped": "late_collapse success_flat", "": "late_collapse"},
    "kl_blow_up": "late_collapse malformed_ops entropy_collapse",
    "lost_dialogue": "late_collapse malformed_ops",
    "entropy_explosion": "late_collapse malformed_ops success_flat",
    "entropy_collapse": "low_diversity advantages_zero few_groups_teach success_flat "
    "no_better_than_cold_start",
    "shaping_grows": "late_collapse",
    "late_collapse": "success_flat no_better_than_cold_start advantages_zero "
    "tasks_too_hard few_groups_teach reward_flat_loss_falls only_penalties",
    "constant_reward": "advantages_zero few_groups_teach success_flat "
    "reward_flat_loss_falls",
    "low_diversity": "advantages_zero few_groups_teach success_flat",
    "actions_cut": {
        "grave": "malformed_ops only_penalties tasks_too_hard memory_unused "
        "success_flat",
        "": "malformed_ops",
    },
    "malformed_ops": {"grave": "only_penalties tasks_too_hard memory_unused"},
    "memory_unused": "success_flat recalls_find_nothing tasks_too_hard",
    "write_only": "success_flat bank_growth tasks_too_hard reward_flat_loss_falls",
    "bank_growth": "slow_recall success_flat",
    "tasks_too_hard": "advantages_zero only_penalties few_groups_teach success_flat "
    "reward_flat_loss_falls no_better_than_cold_start",
    "tasks_too_easy": "advantages_zero",
    "credit_reaches_no_token": "advantages_zero success_flat policy_hardly_moves",
    "only_penalties": "success_flat reward_flat_loss_falls",
    "advantages_zero": "success_flat",
    "learning_rate_ended": "policy_hardly_moves success_flat",
    "policy_hardly_moves": "success_flat no_better_than_cold_start",
    "reward_flat_loss_falls": "success_flat",
    "success_flat": "no_better_than_cold_start",
    "recompilations": "slower",
    "device_memory": "slower unfinished",
}


def examine(record: RunRecord) -> list[Finding]:
    """Finds what a run suffers from.

    Args:
      record: the run.

    Returns:
      Causes, the worst first, each followed by what it may explain, which names its
      causes in ``because_of``. A cause counts as much as the worst that follows from
      it.
    """
    every = [diagnose(diagnosis, record) for diagnosis in DIAGNOSES]
    findings = [finding for finding in every if finding is not None]
    places = {finding.name: at for at, finding in enumerate(findings)}
    explained = [
        dataclasses.replace(
            finding,
            because_of=tuple(
                other.name for other in findings[:at] if finding.name in other.may_cause
            ),
        )
        for at, finding in enumerate(findings)
    ]
    roots = [_first_cause(finding, explained, places) for finding in explained]
    worst: dict[int, int] = {}
    for finding, root in zip(explained, roots, strict=True):
        rank = SEVERITIES.index(finding.severity)
        worst[root] = min(rank, worst.get(root, rank))
    order = sorted(
        range(len(findings)),
        key=lambda at: (worst[roots[at]], roots[at], at),
    )
    return [explained[at] for at in order]


def diagnose(diagnosis: Diagnosis, record: RunRecord) -> Finding | None:
    """Applies one row of the table.

    Args:
      diagnosis: the row.
      record: the run.

    Returns:
      The finding; None if the run does not have it, or did not measure what shows it.
    """
    try:
        symptom = diagnosis.condition(record)
    except NotMeasured:
        return None
    if symptom is None:
        return None
    facts = symptom.facts
    remedies = (advise(remedy, facts, record) for remedy in diagnosis.remedies)
    return Finding(
        name=diagnosis.name,
        severity=choose(diagnosis.severity, facts),
        what=spell(diagnosis.what, facts, record),
        why=spell(diagnosis.why, facts, record),
        seen=tuple(symptom.figures),
        remedies=tuple(filter(None, remedies)),
        may_cause=tuple(choose(MAY_CAUSE.get(diagnosis.name, ""), facts).split()),
    )


def differences(first: RunRecord, second: RunRecord) -> list[Finding]:
    """Finds what differs between two runs.

    Args:
      first: one run, "here" in the texts.
      second: the other, "there".

    Returns:
      Fields, damaged files and machines that differ, if any; last a finding that says
      where the metrics part, or that they do not.
    """
    fields = differing_fields(first, second)
    findings = [_configs(first, second, fields)] if fields else []
    for name, why in second.unread.items():
        what = f"Of the other run {name} cannot be read: {why}."
        consequence = "The runs are compared by what else there is."
        findings.append(Finding("other_damaged", NOTE, what, consequence, (), ()))
    findings += _machines(first, second)
    return [*findings, _runs(first, second, fields)]


def differing_fields(first: RunRecord, second: RunRecord) -> list[str]:
    """Lists the fields in which two configs differ.

    Args:
      first: one run.
      second: the other.

    Returns:
      Dotted names, sorted, also of fields that only one of them has; none if one config
      is not known.
    """
    if not first.config or not second.config:
        return []
    names = sorted(first.config.keys() | second.config.keys())
    return [n for n in names if first.config.get(n) != second.config.get(n)]


def _first_cause(
    finding: Finding, findings: Sequence[Finding], places: dict[str, int]
) -> int:
    """Follows the causes back; a cause comes before what it explains, so this ends."""
    while finding.because_of:
        finding = findings[places[finding.because_of[0]]]
    return places[finding.name]


def _configs(first: RunRecord, second: RunRecord, fields: list[str]) -> Finding:
    shared = [n for n in fields if n in first.config and n in second.config]
    alone = len(fields) - len(shared)
    texts = [
        f"config.{name} is {_value(first, name)} here and {_value(second, name)} there"
        for name in shared[:MAX_FIELDS]
    ]
    if len(shared) > MAX_FIELDS:
        texts.append(f"and {len(shared) - MAX_FIELDS} more")
    if alone:
        texts.append(
            f"{alone} fields one of the two does not know: other versions of the code"
        )
    return Finding(
        "configs_differ",
        NOTE,
        f"The configs differ in {len(fields)} field{'s' * (len(fields) > 1)}.",
        "; ".join(texts) + ".",
        (Figure("fields that differ", len(fields)),),
        (),
        may_cause=("runs_differ",),
    )


def _machines(first: RunRecord, second: RunRecord) -> list[Finding]:
    """Versions and devices, if both runs noted them."""
    here, there = first.machine, second.machine
    if not here or not there or here == there:
        return []
    texts = [
        f"{name} is {here.get(name)!r} here and {there.get(name)!r} there"
        for name in here.keys() | there.keys()
        if here.get(name) != there.get(name)
    ]
    return [
        Finding(
            "machines_differ",
            NOTE,
            "The runs were computed with other versions or on other devices.",
            "; ".join(sorted(texts)) + ".",
            (Figure("things that differ", len(texts)),),
            ("the same bits are promised where all of these are the same",),
            may_cause=("runs_differ",),
        )
    ]


def _runs(first: RunRecord, second: RunRecord, fields: list[str]) -> Finding:
    steps, ours, theirs = np.intersect1d(
        first.table.steps, second.table.steps, return_indices=True
    )
    parted = _first_rows_apart(first, second, ours, theirs)
    if not len(steps) or not parted:
        what = (
            f"All figures of the {len(steps)} steps that both have are the same."
            if len(steps)
            else "The runs have no step in common."
        )
        return Finding("runs_same", NOTE, what, "Times are left out.", (), ())
    at = min(parted.values())
    names = [name for name, row in parted.items() if row == at]
    gaps = [_relative_gap(first, second, n, ours[at], theirs[at]) for n in names]
    rounding = max(gaps) < ROUNDING
    # What was sampled is named before what was computed of it.
    shown = sorted(names, key=lambda name: name not in SAMPLED)[:MAX_METRICS]
    more = len(names) - len(shown)
    step = int(steps[at])
    figures = [
        Figure(name, float(record.table.column(name)[rows[at]]), step, step, whose)
        for name in shown
        for record, rows, whose in ((first, ours, "here"), (second, theirs, "there"))
    ]
    ends = first.table.late("success"), second.table.late("success")
    if None not in ends:
        figures += mean(ends[0], "here"), mean(ends[1], "there")
    starts = first.cold_start, second.cold_start
    return Finding(
        "runs_differ",
        NOTE if fields else WARNING,
        f"The runs part at step {step}, in {', '.join(shown)}"
        + (f" and {more} more figures" if more else "")
        + (", by rounding alone at first." if rounding else "."),
        _why(names, step, rounding, all(starts) and starts[0] != starts[1]),
        tuple(figures),
        () if fields else _advice(first, second),
    )


def _first_rows_apart(
    first: RunRecord, second: RunRecord, ours: np.ndarray, theirs: np.ndarray
) -> dict[str, int]:
    """The first row that differs, of each metric that both recorded."""
    rows_apart = {}
    for name in first.table.columns:
        timed = name.startswith(TIMED) or name.endswith("_per_s")
        if timed or name not in second.table.columns:
            continue
        a, b = first.table.column(name)[ours], second.table.column(name)[theirs]
        rows = np.flatnonzero((a != b) & ~(np.isnan(a) & np.isnan(b)))
        if len(rows):
            rows_apart[name] = int(rows[0])
    return rows_apart


def _why(names: list[str], step: int, rounding: bool, starts_differ: bool) -> str:
    if starts_differ:
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


def _advice(first: RunRecord, second: RunRecord) -> tuple[str, ...]:
    """What to compare if the configs are the same, or one is not known."""
    if not first.config or not second.config:
        return (
            "config.json of one of them is missing or damaged: compare the commands",
        )
    same_machine = first.machine and first.machine == second.machine
    return (
        "the same bits are promised on a CPU with the same versions and devices"
        + (", as here: " if same_machine else ": ")
        + "machines.json of each run names them",
        "other versions of transformers, tokenizers and orbax-checkpoint read text and "
        "weights otherwise: machines.json names them too",
        _tools_advice(first),
        "tasks and data may differ: look at the files in config.env.data_dir and at "
        "config.policy.path",
    )


def _tools_advice(record: RunRecord) -> str:
    """Of either run: their configs are the same."""
    field = "env.tools.deterministic"
    if record.field(field) is True:
        return (
            f"tools may answer by the time or from a network, although config.{field} "
            "fixes what they draw"
        )
    return f"fix what tools draw at random: {field_text(record, field)} True"


def _relative_gap(first: RunRecord, second: RunRecord, name: str, a: int, b: int):
    left, right = first.table.column(name)[a], second.table.column(name)[b]
    gap = abs(left - right) / max(abs(left), abs(right), 1e-12)
    return float(gap) if np.isfinite(gap) else np.inf


def _value(record: RunRecord, name: str) -> str:
    value = record.config[name]
    return number(value) if isinstance(value, float) else repr(value)
