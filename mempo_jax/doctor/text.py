"""How findings are put into words: numbers, fields, sentences, lines on a screen."""

from __future__ import annotations

import itertools
import operator
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mempo_jax.doctor.findings import MIN_TREND_STEPS, NOTE, Figure, Finding, Text
from mempo_jax.runs import RunRecord
from mempo_jax.runs.table import MIN_WINDOW

WIDTH = 88
# Metrics that show whether a run without findings goes well.
VITAL = (
    *("success", "reward_std_in_group", "degenerate_groups", "edit_distance"),
    *("kl", "entropy", "clip_fraction", "log_prob_gap", "bank_size"),
)
MAX_VALUE_CHARS = 40  # a longer value of a field, as a prompt, is not shown
# A slot of a text: its name, "%" for a percentage, or a comparison with a value.
SLOT = re.compile(r"\{([a-z0-9_/]+(?:\.[a-z0-9_]+)*)(%?)(?:([=!<>]=|<|>)([^}]+))?\}")
COMPARE = {
    **{"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
}


def number(value: float) -> str:
    """Spells a number.

    Args:
      value: the number.

    Returns:
      Its first three digits; a whole number in full.
    """
    if value != value:
        return "not a number"
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.3g}"


def share(value: float) -> str:
    """Spells a share as a percentage.

    Args:
      value: the share, 1 for all.

    Returns:
      Whole per cents, but never 0 % or 100 % for a share that is neither.
    """
    percent = 100 * value
    if 0 < percent < 1 or 99 < percent < 100:
        return f"{percent:.1f} %"
    return f"{percent:.0f} %"


def steps_text(first: int, last: int) -> str:
    """Spells a range of steps.

    Args:
      first: the first step.
      last: the last step, included.

    Returns:
      As "steps 3 to 9".
    """
    return f"step {first}" if first == last else f"steps {first} to {last}"


def field_text(record: RunRecord, name: str) -> str:
    """Spells a field of the config.

    Args:
      record: the run.
      name: the field's dotted name.

    Returns:
      The name with the value that the run has, if it is known and short.
    """
    value = record.field(name)
    shown = repr(value)
    if value is None or len(shown) > MAX_VALUE_CHARS:
        return f"config.{name}"
    return f"config.{name} (now {shown})"


def choose(options: Any, facts: Mapping[str, Any]) -> Any:
    """Takes the option that the facts ask for.

    Args:
      options: a mapping from facts to options: "not FACT" for one that is false, "" for
        all others; or the only option.
      facts: the facts of the symptom.

    Returns:
      The option of the first fact that is true; "" if there is none.
    """
    if not isinstance(options, Mapping):
        return options
    for fact, option in options.items():
        name = fact.removeprefix("not ")
        if not fact or bool(facts.get(name)) == (name == fact):
            return option
    return ""


def spell(text: Text, facts: Mapping[str, Any], record: RunRecord) -> str:
    """Puts a text of the table into words.

    Args:
      text: as ``Text`` says.
      facts: the facts of the symptom.
      record: the run.

    Returns:
      The text for this run; "" if no piece of it holds.
    """
    if isinstance(text, tuple):
        return "".join(spell(piece, facts, record) for piece in text)
    if isinstance(text, Mapping):
        return spell(choose(text, facts), facts, record)

    def fill(slot: re.Match[str]) -> str:
        name, percent = slot.groups()[:2]
        if "." in name:
            return field_text(record, name)
        value = facts[name] if name in facts else record.table.late(name).mean
        if isinstance(value, str | int):
            return str(value)
        return share(value) if percent else number(value)

    return SLOT.sub(fill, text)


def advise(remedy: str | Mapping[str, str], facts: Mapping[str, Any], record) -> str:
    """Puts a remedy into words, if the run can still follow it.

    Args:
      remedy: one text, or one by fact.
      facts: the facts of the symptom.
      record: the run.

    Returns:
      The text; "" if a comparison in it is false of the run's config, as that of
      "{memory.judge!=lexical} lexical" is if the judge is lexical already.
    """
    text = choose(remedy, facts)
    for name, _, sign, wanted in SLOT.findall(text):
        if sign and not _compare(record.field(name), sign, wanted):
            return ""
    return spell(text, facts, record)


def _compare(value: Any, sign: str, wanted: str) -> bool:
    """True if the value compares as wanted, or cannot be compared."""
    if value is None:
        return True
    if sign in COMPARE:
        known = isinstance(value, int | float)  # the config may be a damaged one
        return not known or COMPARE[sign](value, float(wanted))
    values = {str(each) for each in (value if isinstance(value, list) else [value])}
    return values.isdisjoint(wanted.split("|")) == (sign == "!=")


def verdict(findings: Sequence[Finding], record: RunRecord) -> str:
    """Sums up what was found.

    Args:
      findings: what was found; notes are no problems.
      record: the run.

    Returns:
      "problems"; else "too_short" if the run has fewer than ``MIN_TREND_STEPS`` steps,
      so that a trend could not be seen; else "no_problems".
    """
    if any(finding.severity != NOTE for finding in findings):
        return "problems"
    return "too_short" if len(record.table) < MIN_TREND_STEPS else "no_problems"


def lines(findings: Sequence[Finding], record: RunRecord) -> list[str]:
    """Lines for a screen.

    Args:
      findings: what was found, in order; may be empty.
      record: the run.

    Returns:
      The verdict if there is no problem, all findings, the figures of the run.
    """
    table, text = record.table, []
    steps = _count(len(table))
    if verdict(findings, record) == "no_problems":
        text.append(f"No problems found in {steps}.")
    elif verdict(findings, record) == "too_short":
        text.append(
            f"Too short to judge: {steps}, and at least {MIN_TREND_STEPS} are needed."
        )
    for finding in findings:
        text += _short(finding) if finding.because_of else _whole(finding)
    if not len(table):
        return text
    text.append(f"{_recorded(table.steps)}; figures, first and last:")
    text += [f"  {line}" for line in _vital(record)]
    text += textwrap.wrap(
        "A loss near 0 is normal on-policy: advantages of a group add up to 0. Judge "
        "by success and reward.",
        WIDTH,
    )
    return text


def figures_text(figures: Sequence[Figure]) -> str:
    """Spells figures, those of the same steps together.

    Args:
      figures: the figures.

    Returns:
      As "steps 3 to 9: kl 0.25, success 1 (now)".
    """
    parts = []
    for (first, last), group in itertools.groupby(
        figures, key=lambda figure: (figure.first_step, figure.last_step)
    ):
        values = ", ".join(
            f"{figure.what} {number(figure.value)}"
            + (f" ({figure.remark})" if figure.remark else "")
            for figure in group
        )
        parts.append(
            values if first is None else f"{steps_text(first, last)}: {values}"
        )
    return "; ".join(parts)


def _whole(finding: Finding) -> list[str]:
    head = f"{finding.severity.upper()} {finding.name}: {finding.what}"
    text = [*textwrap.wrap(head, WIDTH), *_indented(finding.why)]
    if finding.seen:
        text += _indented("seen: " + figures_text(finding.seen))
    for remedy in finding.remedies:
        text += _indented(f"- {remedy}", hang="  ")
    return [*text, ""]


def _short(finding: Finding) -> list[str]:
    """A finding that another one explains."""
    causes = ", ".join(finding.because_of)
    head = f"{finding.severity} {finding.name}: {finding.what} Probably from {causes}."
    return [*textwrap.wrap(head, WIDTH, subsequent_indent="  "), ""]


def _indented(text: str, hang: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent="  ", subsequent_indent="  " + hang
    )


def _count(steps: int) -> str:
    return f"{steps} step{'' if steps == 1 else 's'}"


def _recorded(steps: np.ndarray) -> str:
    text = f"{_count(len(steps))}, {steps[0]} to {steps[-1]}"
    if len(steps) >= MIN_TREND_STEPS:
        return text
    return f"{text} (trends are judged from {MIN_TREND_STEPS} steps on)"


def _vital(record: RunRecord) -> list[str]:
    table, text = record.table, []
    for metric in VITAL:
        rows = table.measured(metric)
        if not len(rows):
            continue
        first, last = table.ends(metric)
        if len(rows) < 2 * MIN_WINDOW:  # the windows would overlap
            ends = table.column(metric)[rows[[0, -1]]]
        else:
            ends = first.median, last.median
        text.append(f"{metric:20} {number(ends[0]):>9} {number(ends[1]):>9}")
    return text
