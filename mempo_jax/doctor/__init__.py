"""What ails a run: causes by name, from its metrics, with figures and remedies.

``read`` reads the directory of a run, ``examine`` finds, ``differences`` compares two
runs, ``lines`` says it.
"""

from mempo_jax.doctor.difference import differences
from mempo_jax.doctor.examine import examine
from mempo_jax.doctor.findings import NOTE, PROBLEM, WARNING, Finding, Seen
from mempo_jax.doctor.record import Record, read
from mempo_jax.doctor.wording import lines

__all__ = [
    "NOTE",
    "PROBLEM",
    "WARNING",
    "Finding",
    "Record",
    "Seen",
    "differences",
    "examine",
    "lines",
    "read",
]
