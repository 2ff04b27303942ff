"""What the doctor says: one finding a cause, with the figures that it was seen in."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

# In the order in which they are told.
PROBLEM, WARNING, NOTE = "problem", "warning", "note"
SEVERITIES = (PROBLEM, WARNING, NOTE)
# A field of the config as texts name it, or a section: config.SECTION.FIELD.
FIELD = re.compile(r"config\.(?!json\b)([a-z_]+(?:\.[a-z0-9_]+)*)")


@dataclasses.dataclass(frozen=True)
class Seen:
    """One figure: a metric's value over some steps.

    ``what`` is the metric's name, or words where it was computed from several;
    ``first_step`` and ``last_step`` are included, None where no step belongs to it.
    """

    what: str
    value: float
    first_step: int | None = None
    last_step: int | None = None
    remark: str = ""


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that a run suffers from, or may.

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
    seen: tuple[Seen, ...]
    remedies: tuple[str, ...]
    may_cause: tuple[str, ...] = ()
    because_of: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of the config that its remedies name, in order, each once."""
        found = [name for text in self.remedies for name in FIELD.findall(text)]
        return tuple(dict.fromkeys(found))

    def to_json(self) -> dict[str, Any]:
        """As plain objects, for ``--json``."""
        made = dataclasses.asdict(self) | {"fields": list(self.fields)}
        for each in made["seen"]:
            if not math.isfinite(each["value"]):
                each["value"] = None  # JSON has no NaN
        return made
