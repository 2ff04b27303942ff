"""How figures and fields are spelt in a finding."""

from __future__ import annotations

from mempo_jax.doctor.record import Record


def field(record: Record, name: str) -> str:
    """A field of the config with the value that the run has, where it is known."""
    value = record.field(name)
    if value is None:
        return f"config.{name}"
    shown = repr(value)
    return f"config.{name} (now {shown})" if len(shown) <= 40 else f"config.{name}"


def number(value: float) -> str:
    """Three digits that mean something; whole numbers as such."""
    if value != value:
        return "not a number"
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.3g}"


def share(value: float) -> str:
    """A share as a percentage, never 0 % or 100 % where it is not."""
    percent = 100 * value
    if 0 < percent < 1 or 99 < percent < 100:
        return f"{percent:.1f} %"
    return f"{percent:.0f} %"


def steps_text(first: int, last: int) -> str:
    """The steps of a figure, in words."""
    return f"step {first}" if first == last else f"steps {first} to {last}"
