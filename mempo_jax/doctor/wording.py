"""Findings as a few lines on a screen."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence

from mempo_jax.doctor.findings import Finding, Seen
from mempo_jax.doctor.naming import number, steps_text
from mempo_jax.doctor.record import Record
from mempo_jax.doctor.table import SHORTEST

WIDTH = 88
# What says of a run without findings that all is well.
VITAL = (
    *("success", "reward_std_in_group", "degenerate_groups", "edit_distance"),
    *("kl", "entropy", "clip_fraction", "log_prob_gap", "bank_size"),
)


def lines(findings: Sequence[Finding], record: Record) -> list[str]:
    """All findings, or that there are none, and the figures that say so."""
    table = record.table
    told = [] if findings else ["Nothing found."]
    for finding in findings:
        told += [*_short(finding)] if finding.because_of else [*_whole(finding)]
    if not len(table):
        return told
    told.append(f"{_steps(table.steps)}; figures, first and last:")
    told += [f"  {line}" for line in _vital(record)]
    told += textwrap.wrap(
        "A loss near 0 is normal on-policy: advantages of a group add up to 0. Judge "
        "by success and reward.",
        WIDTH,
    )
    return told


def seen_text(seen: Sequence[Seen]) -> str:
    """Figures, those of the same steps together."""
    parts = []
    for (first, last), group in itertools.groupby(
        seen, key=lambda each: (each.first_step, each.last_step)
    ):
        figures = ", ".join(
            f"{each.what} {number(each.value)}"
            + (f" ({each.remark})" if each.remark else "")
            for each in group
        )
        if first is None:
            parts.append(figures)
        else:
            parts.append(f"{steps_text(first, last)}: {figures}")
    return "; ".join(parts)


def _whole(finding: Finding) -> list[str]:
    head = f"{finding.severity.upper()} {finding.name}: {finding.what}"
    told = [*textwrap.wrap(head, WIDTH), *_indented(finding.why)]
    if finding.seen:
        told += _indented("seen: " + seen_text(finding.seen))
    for remedy in finding.remedies:
        told += _indented(f"- {remedy}", hang="  ")
    return [*told, ""]


def _short(finding: Finding) -> list[str]:
    """A finding that another one explains."""
    causes = ", ".join(finding.because_of)
    head = f"{finding.severity} {finding.name}: {finding.what} Probably from {causes}."
    return [*textwrap.wrap(head, WIDTH, subsequent_indent="  "), ""]


def _indented(text: str, hang: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent="  ", subsequent_indent="  " + hang
    )


def _steps(steps) -> str:
    n = len(steps)
    many = f"{n} step{'' if n == 1 else 's'}, {steps[0]} to {steps[-1]}"
    return many if n >= 10 else f"{many} (few to judge by)"


def _vital(record: Record) -> list[str]:
    table, told = record.table, []
    for metric in VITAL:
        rows = table.measured(metric)
        if not len(rows):
            continue
        first, last = table.early(metric), table.late(metric)
        if len(rows) < 2 * SHORTEST:  # the two would be the same
            ends = table.column(metric)[rows[[0, -1]]]
        else:
            ends = first.median, last.median
        told.append(f"{metric:20} {number(ends[0]):>9} {number(ends[1]):>9}")
    return told
