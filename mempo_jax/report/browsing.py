"""The recorded trajectories of a run: chosen by step and outcome, opened when wanted.

What is closed stands in the page as inert text, and becomes elements when it is opened.
"""

from __future__ import annotations

from collections.abc import Iterable

from mempo_jax.report import groups, shades, turns
from mempo_jax.report.choosing import Chosen, Group
from mempo_jax.report.guide import guide
from mempo_jax.report.markup import count, element, escaped, inert, note, number


def section(chosen: Chosen) -> tuple[str, str]:
    """The section of a page, HTML, and the style that its colours need."""
    tint = shades.shades_of(chosen.groups)
    return _section(chosen, tint), "" if tint is None else shades.style()


def _section(chosen: Chosen, tint: shades.Shades | None) -> str:
    if not chosen.groups:
        told = "No trajectories are recorded; see config.log.trajectories_every."
        return note(f"{told}{_unreadable(chosen)}")
    parts = [note(shown(chosen))]
    if tint is None:
        parts.append(
            note("These records have no token credit: texts are not coloured.")
        )
    parts.append(guide(tint))
    parts.append(_controls(chosen.groups, tint))
    fragments: list[str] = []
    for n, group in enumerate(chosen.groups):
        entry, held = _group(n, group, tint)
        parts.append(entry)
        fragments += held
    parts.append(element("p", "No group fits.", id="none", class_="note", hidden=True))
    return "".join(parts) + "".join(fragments)


def shown(chosen: Chosen) -> str:
    """How many of the recorded trajectories the page has, in one line."""
    parts = [
        f"{chosen.shown:,} of {chosen.recorded:,} recorded trajectories, in "
        f"{count(len(chosen.groups), 'group')}"
    ]
    if chosen.step_files:
        parts.append(f"from {chosen.step_files_shown} of {chosen.step_files} steps")
    told = f"{' '.join(parts)}."
    if chosen.shown < chosen.recorded:
        told += " --trajectories=N shows more."
    return f"{told}{_unreadable(chosen)}"


def _unreadable(chosen: Chosen) -> str:
    counted = ((chosen.unreadable, "line"), (chosen.unreadable_files, "file"))
    told = " and ".join(count(many, noun) for many, noun in counted if many)
    return f" {told} could not be read." if told else ""


def _controls(made: Iterable[Group], tint: shades.Shades | None) -> str:
    steps = dict.fromkeys(group.step for group in made)
    where = [("", "all steps")] + [
        ("held-out", "held-out") if step is None else (str(step), f"step {step}")
        for step in steps
    ]
    outcomes = [("", "all outcomes"), *groups.OUTCOMES.items()]
    parts = [_select("step", where), _select("outcome", outcomes)]
    parts.append(
        '<label>find <input type="search" id="find" placeholder="task or text"></label>'
    )
    if tint is not None:
        parts.append(_switch())
        parts.append(shades.legend(tint))
    parts.append(element("output", "", id="count", class_="muted"))
    return element("form", "".join(parts), id="filter")


def _select(name: str, options: Iterable[tuple[str, str]]) -> str:
    inner = "".join(element("option", told, value=value) for value, told in options)
    return element("label", f"{name} {element('select', inner, id=name)}")


def _switch() -> str:
    choices = [*shades.MEASURES, "nothing"]
    radios = "".join(
        element(
            "label",
            f'<input type="radio" name="colour" value="{name}"'
            f"{' checked' if name == 'advantage' else ''}>{name}",
        )
        for name in choices
    )
    return element(
        "fieldset",
        f"{element('legend', 'tokens coloured by')}{radios}",
        class_="switch",
    )


def _group(n: int, group: Group, tint: shades.Shades | None) -> tuple[str, list[str]]:
    """The closed group, and what it holds, inert."""
    held, members = [], []
    for m, record in enumerate(groups.ordered(group)):
        key = f"t{n}-{m}"
        reward = "" if record.total is None else f", reward {number(record.total)}"
        told = (
            f"{groups.name(group, record)}, {groups.OUTCOMES[record.outcome]}{reward}"
        )
        members.append(
            element(
                "details",
                element("summary", escaped(told)) + element("div", "", data_holds=key),
                class_="member",
                data_outcome=record.outcome,
            )
        )
        held.append(inert(key, turns.trajectory(record, tint)))
    inner = groups.comparison(group, tint) + "".join(members)
    held.append(inert(f"g{n}", inner))
    closed = element(
        "details",
        element("summary", groups.heading(group))
        + element("div", "", data_holds=f"g{n}"),
        class_="group",
        data_step="held-out" if group.step is None else group.step,
        data_outcomes=" ".join(sorted({m.outcome for m in group.members})),
        data_task=group.task,
        data_members=len(members),
    )
    return closed, held
