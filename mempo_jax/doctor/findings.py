"""What the doctor says: one finding a cause, with the figures that show it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mempo_jax.runs import RunRecord, Window

# From the worst to the least, which is the order on the screen.
PROBLEM, WARNING, NOTE = "problem", "warning", "note"
SEVERITIES = (PROBLEM, WARNING, NOTE)
MIN_TREND_STEPS = 20  # before a trend, or the lack of one, means anything
# A field of the config as texts name it, or a section: config.SECTION.FIELD.
FIELD = re.compile(r"config\.(?!json\b)([a-z_]+(?:\.[a-z0-9_]+)*)")

# A text that depends on the facts of its symptom: pieces one after the other; of a
# mapping the first piece whose fact is true ("not FACT": is false; "": always). Within
# a piece {fact} is a number or a word, {fact%} a percentage, {section.field} a field of
# the config with its value. A metric that is no fact is its late mean. In a remedy
# {section.field!=a|b} also says that it is of use only if the field is neither a nor b
# (a list: has neither), and so do == < <= > >=, so that no remedy sets what is set.
Text = str | Mapping[str, "Text"] | tuple["Text", ...]


@dataclasses.dataclass(frozen=True)
class Figure:
    """One figure: the value of a metric over some steps.

    Attributes:
      what: the metric's name, or words if it was computed from several.
      value: the value.
      first_step: the first step that it belongs to; None if it belongs to none.
      last_step: the last one, included.
      remark: what tells it from others of the same metric, as "now".
    """

    what: str
    value: float
    first_step: int | None = None
    last_step: int | None = None
    remark: str = ""


@dataclasses.dataclass(frozen=True)
class Finding:
    """A cause from which a run suffers, or may suffer.

    Attributes:
      name: a stable key.
      severity: one of ``SEVERITIES``: a problem keeps the run from learning or makes
        its figures wrong; a warning costs much or may become a problem; a note is good
        to know.
      what: one sentence.
      why: what brings it about, and what it does.
      seen: the figures.
      remedies: what to do, the most promising first; fields are named
        ``config.SECTION.FIELD``.
      may_cause: names of other findings that this one explains.
      because_of: names of those that explain it, filled in by ``examine``.
    """

    name: str
    severity: str
    what: str
    why: str
    seen: tuple[Figure, ...]
    remedies: tuple[str, ...]
    may_cause: tuple[str, ...] = ()
    because_of: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of the config that the remedies name, in order, each once."""
        names = [name for text in self.remedies for name in FIELD.findall(text)]
        return tuple(dict.fromkeys(names))

    def to_json(self) -> dict[str, Any]:
        """The finding as plain objects.

        Returns:
          Its attributes and ``fields``; figures that are not finite are None, since
          JSON has no NaN.
        """
        plain = dataclasses.asdict(self) | {"fields": list(self.fields)}
        for figure in plain["seen"]:
            if not math.isfinite(figure["value"]):
                figure["value"] = None
        return plain


class Symptom(NamedTuple):
    """What a condition saw in a run.

    Attributes:
      figures: the figures that show it.
      facts: what chooses among the texts of the diagnosis and fills them: truth
        values, numbers and words by the names that the texts use.
    """

    figures: Sequence[Figure] = ()
    facts: Mapping[str, Any] = {}


Condition = Callable[[RunRecord], Symptom | None]


class Diagnosis:
    """A row of the table: when something is found, what is said, what helps."""

    def __init__(
        self,
        condition: Condition,
        what: Text,
        why: Text,
        *remedies: Text,
        severity: str | Mapping[str, str] = WARNING,
    ) -> None:
        """Takes the row as it is written.

        Args:
          condition: gives the symptom, or None if the run does not have it. Its name
            is the stable key of the findings.
          what: one sentence.
          why: what brings it about, and what it does.
          *remedies: what to do, the most promising first.
          severity: one of ``SEVERITIES``, or several by fact, as in ``Text``.
        """
        self.name = condition.__name__
        self.condition = condition
        self.what, self.why, self.remedies = what, why, remedies
        self.severity = severity


def mean(window: Window, remark: str = "") -> Figure:
    """The mean of a window as a figure.

    Args:
      window: the window.
      remark: what tells it from others of the same metric.

    Returns:
      The figure.
    """
    steps = window.first_step, window.last_step
    return Figure(window.metric, window.mean, *steps, remark)


def median(window: Window, remark: str = "") -> Figure:
    """The median of a window as a figure, for metrics with extreme single steps.

    Args:
      window: the window.
      remark: what tells it from others of the same metric.

    Returns:
      The figure.
    """
    return dataclasses.replace(mean(window, remark), value=window.median)
