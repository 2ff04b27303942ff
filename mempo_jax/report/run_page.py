"""A run as one HTML page that fetches nothing: results, curves, trajectories.

All of it is made and escaped in Python; the script only shows and hides.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any

from mempo_jax.report import browsing, curves, results
from mempo_jax.report.markup import compact, count, element, escaped, inert, note
from mempo_jax.report.records import number_of
from mempo_jax.report.run_files import Run, status
from mempo_jax.settings import flatten

# How every page begins, and so how one is known again.
START = '<!doctype html>\n<html lang="en" data-colour="advantage"><head>'
FACTS = {  # of the config, as they are called on the page
    "policy.path": "policy",
    "env.name": "task",
    "sampling.group_size": "group size",
    "sampling.tasks_per_step": "tasks a step",
    "credit.modes": "credit",
    "memory.capacity": "capacity",
    "seed": "seed",
}


def page(run: Run) -> str:
    """The whole page."""
    script = _asset("report.js")
    trajectories, colours = browsing.section(run.chosen)
    style = f"{_asset('report.css')}\n{colours}"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )
    title = f"{escaped(run.name)} – what the run did"
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{title}</title>'
        f"<style>{style}</style>"
    )
    main = (
        _header(run)
        + _section("results", "Results", _results(run))
        + _section("curves", "Curves", _curves(run))
        + _section("trajectories", "Trajectories", trajectories)
        + _section("config", "Config", _config(run))
    )
    body = f"<main>{main}</main><script>{script}</script>"
    return f"{START}{head}</head><body>{body}</body></html>\n"


def _header(run: Run) -> str:
    flat = flatten(run.config)
    facts = [f"{told} {_fact(flat[key])}" for key, told in FACTS.items() if key in flat]
    jumps = "".join(
        element("button", name, type="button", data_go=name.lower())
        for name in ("Results", "Curves", "Trajectories", "Config")
    )
    return element(
        "header",
        element("h1", escaped(run.name))
        + element("p", escaped(status(run)), id="status")
        + element("p", escaped(" · ".join(facts)), class_="muted")
        + element("nav", jumps, aria_label="sections"),
    )


def _results(run: Run) -> str:
    summary = run.summary
    if summary is None and run.before is not None:
        summary = {"cold_start": run.before}
    parts = []
    if summary is not None:
        parts += [results.tiles(summary), results.before_and_after(summary)]
        parts.append(results.categories(summary))
    if run.evaluation is not None:
        tasks = run.evaluation.get("tasks")
        on = f" on {tasks:,} held-out tasks" if type(tasks) is int else ""
        made = results.comparison(run.evaluation)
        parts += [element("h3", f"Beside other policies{on}"), made] if made else []
    if not any(parts):
        return note("No evaluation is recorded yet.")
    seconds = run.summary.get("seconds") if run.summary else None
    if isinstance(seconds, Mapping):
        spent = (
            f"{escaped(n)} {v:.0f}" for n, v in seconds.items() if type(v) is float
        )
        parts.append(note(f"seconds: {', '.join(spent)}"))
    return "".join(parts)


def _curves(run: Run) -> str:
    series = curves.series_of(run.metrics)
    if not series:
        return note("No metrics are recorded yet.")
    parts = []
    if run.unreadable:
        lines = count(run.unreadable, "line")
        told = "could not be read, as where a run was killed while it wrote."
        parts.append(note(f"{lines} of metrics.jsonl {told}"))
    joined = next(iter(series.values())).joined
    each = f"each point is the mean of {joined} steps, " if joined > 1 else ""
    told = f"pale: {each}as measured; bold: running mean of five."
    parts.append(note(f"{told[0].upper()}{told[1:]} Point at a curve for its values."))
    made = [curves.figure(name, each) for name, each in curves.panels(series).items()]
    parts.append(element("div", "".join(made), class_="panels"))
    parts.append(_more(series))
    return "".join(parts)


def _more(series: Mapping[str, curves.Series]) -> str:
    """Every metric, to be chosen; drawn when it is."""
    boxes, drawings = [], []
    for n, (name, each) in enumerate(sorted(series.items())):
        box = f'<input type="checkbox" data-shows="curve{n}">'
        boxes.append(element("label", f"{box}{escaped(name)}"))
        drawings.append(inert(f"curve{n}", curves.figure(name, {name: each})))
    inner = element("summary", f"All {count(len(series), 'metric')}")
    inner += element("div", "".join(boxes), class_="choices")
    inner += element("div", "", class_="panels", id="chosen")
    return element("details", inner, class_="more") + "".join(drawings)


def _config(run: Run) -> str:
    if not run.config:
        return note("config.json is missing or cannot be read.")
    text = escaped(json.dumps(run.config, indent=1, ensure_ascii=False), 100_000)
    inner = element("summary", "The whole config") + element("pre", text)
    return element("details", inner)


def _section(key: str, title: str, inner: str) -> str:
    return element("section", element("h2", title) + inner, id=key)


def _fact(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_fact, value))
    known = None if isinstance(value, bool) else number_of(value)
    if known is not None:
        return compact(known)
    return str(value) or "nano"


def _asset(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text("utf-8")
