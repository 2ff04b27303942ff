"""All diagnoses of one run, causes before what follows from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from mempo_jax.doctor import (
    drift,
    machinery,
    memory_use,
    plateau,
    progress,
    signals,
    stability,
    tasks,
    waste,
    writing,
)
from mempo_jax.doctor.findings import SEVERITIES, Finding
from mempo_jax.doctor.record import Record

Diagnosis = Callable[[Record], Finding | None]
# What can be the cause of another stands before it.
DIAGNOSES: tuple[Diagnosis, ...] = (
    machinery.no_steps,
    machinery.damaged_record,
    machinery.failed_trajectories,
    waste.longer,
    machinery.overflow,
    machinery.truncated,
    memory_use.memory_off,
    stability.non_finite_updates,
    stability.updates_too_large,
    stability.sampler_gap,
    stability.stale_sampler,
    drift.kl_blow_up,
    drift.lost_dialogue,
    drift.entropy_explosion,
    drift.entropy_collapse,
    progress.shaping_grows,
    progress.late_collapse,
    tasks.constant_reward,
    tasks.low_diversity,
    writing.actions_cut,
    writing.malformed_ops,
    machinery.penalties_at_floor,
    memory_use.memory_unused,
    memory_use.write_only,
    memory_use.recalls_find_nothing,
    writing.merge_rate_high,
    writing.duplicate_writes,
    memory_use.bank_growth,
    memory_use.slow_recall,
    tasks.tasks_too_hard,
    tasks.tasks_too_easy,
    signals.credit_reaches_no_token,
    signals.only_penalties,
    signals.advantages_zero,
    signals.few_groups_teach,
    plateau.learning_rate_ended,
    plateau.bonus_ended,
    plateau.policy_hardly_moves,
    plateau.reward_flat_loss_falls,
    plateau.success_flat,
    progress.no_better_than_cold_start,
    waste.recompilations,
    waste.device_memory,
    waste.slower,
    waste.padding,
    waste.probes_dear,
    machinery.unfinished,
)


def examine(record: Record) -> list[Finding]:
    """What is found: causes, the worst first, each followed by what it may explain.

    A cause counts as much as the worst that follows from it. What follows names its
    causes in ``because_of``.
    """
    found = [finding for look in DIAGNOSES if (finding := look(record)) is not None]
    places = {finding.name: at for at, finding in enumerate(found)}
    explained = [
        dataclasses.replace(
            finding,
            because_of=tuple(f.name for f in found[:at] if finding.name in f.may_cause),
        )
        for at, finding in enumerate(found)
    ]
    roots = [_root(finding, explained, places) for finding in explained]
    worst: dict[int, int] = {}
    for finding, root in zip(explained, roots, strict=True):
        rank = SEVERITIES.index(finding.severity)
        worst[root] = min(rank, worst.get(root, rank))
    order = sorted(
        range(len(found)),
        key=lambda at: (worst[roots[at]], roots[at], at),
    )
    return [explained[at] for at in order]


def _root(finding: Finding, found: Sequence[Finding], places: dict[str, int]) -> int:
    """Where the first cause of all stands; causes stand before what they explain."""
    while finding.because_of:
        finding = found[places[finding.because_of[0]]]
    return places[finding.name]
