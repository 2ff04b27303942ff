"""Names the causes of what is wrong with a run, from its metrics; numpy only."""

from mempo_jax.doctor.examine import differences, examine
from mempo_jax.doctor.findings import NOTE, PROBLEM, WARNING, Figure, Finding
from mempo_jax.doctor.text import lines, verdict

__all__ = [
    "NOTE",
    "PROBLEM",
    "WARNING",
    "Figure",
    "Finding",
    "differences",
    "examine",
    "lines",
    "verdict",
]
