"""A run as one HTML page that fetches nothing: results, curves, trajectories.

All of it is written and escaped by templates; the script only shows and hides. What is
closed is inert text in the page, and becomes elements when it is opened.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from mempo_jax.doctor import NOTE, Finding
from mempo_jax.doctor.findings import MIN_TREND_STEPS
from mempo_jax.report import curves, group_view, results
from mempo_jax.report.evidence import KINDS, asked_questions, verdict
from mempo_jax.report.lifelines import SIGNS
from mempo_jax.report.markup import (
    MEASURES,
    STEPS,
    TokenColours,
    asset,
    compact,
    count,
    number,
    render,
)
from mempo_jax.report.run_files import RecordedTrajectory, RunFiles, number_of
from mempo_jax.report.selection import Group, Selection
from mempo_jax.report.turns import trajectory
from mempo_jax.settings import flatten

# The beginning of every page, by which one is recognised.
START = '<!doctype html>\n<html lang="en" data-colour="advantage"><head>'
FACTS = {  # fields of the config, and their names on the page
    "policy.path": "policy",
    "env.name": "task",
    "sampling.group_size": "group size",
    "sampling.tasks_per_step": "tasks a step",
    "credit.modes": "credit",
    "memory.capacity": "capacity",
    "seed": "seed",
}
VERSIONS = ("jax", "flax", "python")  # of what machines.json notes


def page(
    run: RunFiles, selection: Selection, findings: Sequence[Finding] | None = None
) -> str:
    """Writes the page of a run.

    Args:
      run: what the directory of the run holds.
      selection: the trajectories to be shown.
      findings: of ``mempo_jax.doctor``, the gravest first; None if it was not asked.

    Returns:
      A whole HTML document.
    """
    members = [member for group in selection.groups for member in group.members]
    colours = TokenColours.of(members)
    script = asset("report.js")
    digest = hashlib.sha256(script.encode()).digest()
    return str(
        render(
            "page.html.j2",
            start=Markup(START),
            name=run.name,
            script=script,
            digest=base64.b64encode(digest).decode(),
            style=asset("report.css"),
            status=status(run),
            origin=" · ".join(_origin(run)),
            diagnosis=None if findings is None else diagnosis(run, findings),
            findings=findings or (),
            facts=" · ".join(_facts(run.config)),
            config=_config(run.config),
            results=render("results.html.j2", **_results(run)),
            curves=render("curves.html.j2", **_curves(run)),
            selection=selection,
            groups=[_group(group, colours, run.config) for group in selection.groups],
            step_names=_step_names(selection),
            outcomes=group_view.OUTCOMES | KINDS,
            colours=colours,
            measures=MEASURES,
            steps=STEPS,
            signs=SIGNS,
        )
    )


def status(run: RunFiles) -> str:
    """Says how far the run has come.

    Args:
      run: what the directory of the run holds.

    Returns:
      One line of plain text.
    """
    planned = run.config.get("train", {})
    steps = planned.get("steps") if isinstance(planned, Mapping) else None
    done = int(run.metrics.steps[-1]) + 1 if len(run.metrics) else 0
    of = f" of {steps:,}" if type(steps) is int else ""
    recorded = f"{done:,}{of} training steps recorded"
    if run.summary is not None:
        return f"Ended: {recorded}."
    if done or run.cold_start is not None:
        return f"Not ended: {recorded}. It is running, or was stopped."
    return "Not ended: no training step is recorded yet."


def diagnosis(run: RunFiles, findings: Sequence[Finding]) -> str:
    """Says what the doctor thinks of a run.

    Args:
      run: what the directory of the run holds.
      findings: of ``mempo_jax.doctor``.

    Returns:
      One line of plain text.
    """
    counts = Counter(finding.severity for finding in findings)
    words = [count(counts[severity], severity) for severity in counts]
    if any(finding.severity != NOTE for finding in findings):
        return f"The doctor found {', '.join(words)}."
    notes = f" ({', '.join(words)})" if words else ""
    if len(run.metrics) < MIN_TREND_STEPS:
        return f"The doctor found no problems, and too few steps to judge by{notes}."
    return f"The doctor found no problems{notes}."


def _origin(run: RunFiles) -> list[str]:
    """When the run was started, and on what it was computed, as far as it was noted."""
    machine, words = run.machine, []
    if run.starts:
        first, number = run.starts[0], len(run.starts)
        again = "" if number == 1 else f", {number} starts, the last {run.starts[-1]}"
        words.append(f"started {first}{again}")
    if machine.get("mempo_jax"):
        commit = str(machine.get("commit") or "")
        changed = " with changes" if commit.endswith("-dirty") else ""
        short = f", commit {commit[:12]}{changed}" if commit else ""
        words.append(f"mempo_jax {machine['mempo_jax']}{short}")
    words += [f"{name} {machine[name]}" for name in VERSIONS if machine.get(name)]
    if machine.get("device"):
        words.append(f"{machine.get('devices', 1)} × {machine['device']}")
    return words


def _facts(config: Mapping[str, Any]) -> list[str]:
    flat = flatten(config)
    return [f"{name} {_fact(flat[key])}" for key, name in FACTS.items() if key in flat]


def _fact(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_fact, value))
    known = None if isinstance(value, bool) else number_of(value)
    if known is not None:
        return compact(known)
    return str(value) or "nano"


def _config(config: Mapping[str, Any]) -> str:
    return json.dumps(config, indent=1, ensure_ascii=False) if config else ""


def _results(run: RunFiles) -> dict[str, Any]:
    summary = run.summary
    if summary is None:
        summary = {} if run.cold_start is None else {"cold_start": run.cold_start}
    evaluation = run.evaluation or {}
    tasks, seconds = evaluation.get("tasks"), summary.get("seconds")
    return {
        "tiles": results.tiles(summary),
        "tables": [results.before_and_after(summary), results.categories(summary)],
        "comparison": results.comparison(evaluation),
        "compared_tasks": tasks if type(tasks) is int else None,
        "seconds": [(n, v) for n, v in seconds.items() if type(v) is float]
        if isinstance(seconds, Mapping)
        else None,
    }


def _curves(run: RunFiles) -> dict[str, Any]:
    series = curves.series_of(run.metrics)
    shown = curves.panels(series).items()
    return {
        "unreadable": run.unreadable,
        "joined": max((each.joined for each in series.values()), default=1),
        "panels": [curves.panel(title, each) for title, each in shown],
        # Every metric, to be chosen; drawn when it is.
        "others": [curves.panel(n, {n: each}) for n, each in sorted(series.items())],
        "width": curves.WIDTH,
        "height": curves.HEIGHT,
        "left": curves.LEFT,
        "right": curves.WIDTH - curves.RIGHT,
    }


def _step_names(selection: Selection) -> dict[str, str]:
    """The steps that the page can be narrowed down to."""
    return {_step(group): group.where for group in selection.groups}


def _step(group: Group) -> str:
    return "held-out" if group.step is None else str(group.step)


def _group(
    group: Group, colours: TokenColours | None, config: Mapping[str, Any]
) -> dict[str, Any]:
    """A closed group, and what it holds."""
    reasons = ((id(member), verdict(member, config)) for member in group.members)
    verdicts = {key: reason for key, reason in reasons if reason is not None}
    outcomes = {member.outcome for member in group.members}
    return {
        "group": group,
        "step": _step(group),
        "outcomes": " ".join(sorted(outcomes | {v.kind for v in verdicts.values()})),
        "tallies": {
            policy: group_view.tally(members, verdicts)
            for policy, members in group.by_policy.items()
        },
        "questions": asked_questions(group.members),
        "comparison": group_view.comparison(group, colours),
        "members": [
            (
                member,
                _member(group, member),
                verdicts.get(id(member)),
                trajectory(member, colours),
            )
            for member in group.ordered
        ],
    }


def _member(group: Group, member: RecordedTrajectory) -> str:
    reward = "" if member.total is None else f", reward {number(member.total)}"
    return f"{group.name(member)}, {group_view.OUTCOMES[member.outcome]}{reward}"
