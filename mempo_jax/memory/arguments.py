"""Arguments of a bank's methods: faults of the caller, found before anything changes.

What a policy can get wrong (an id that is not there, an empty text) is not found here:
that is an outcome, not an exception.
"""

from __future__ import annotations

import numbers
import operator
import reprlib

import numpy as np

LAST_TURN = 2**31 - 1  # turn indices are int32 where training reads them


def turn(where: str, step) -> int:
    """A turn index; TypeError or ValueError names ``where`` it came in."""
    if type(step) is int and 0 <= step <= LAST_TURN:
        return step
    return integer(f"{where}: step (a turn index)", step, 0, LAST_TURN)


def integer(where: str, value, least: int, most: int | None = None) -> int:
    """A Python integer within bounds; booleans, floats and strings are refused."""
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise TypeError(f"{where}: expected an integer, got {short(value)}")
    number = operator.index(value)
    if number < least or (most is not None and number > most):
        bound = f">= {least}" + ("" if most is None else f" and <= {most}")
        raise ValueError(f"{where}: expected an integer {bound}, got {short(number)}")
    return number


def number(where: str, value) -> float:
    """A float that is a number; TypeError or ValueError for anything else."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{where}: expected a number, got {short(value)}")
    if value != value:
        raise ValueError(f"{where}: expected a number, got NaN")
    return float(value)


def text(where: str, value) -> str:
    """A string as it is; TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{where}: expected a str, got {short(value)}")
    return value


def optional_text(where: str, value) -> str | None:
    """A string or None."""
    return None if value is None else text(where, value)


def span(where: str, value) -> tuple[int, int] | None:
    """A token range (start, end), or None."""
    if value is None:
        return None
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(
            f"{where}: token_span: expected (start, end) or None, got {short(value)}"
        )
    first, last = value
    start = integer(f"{where}: token_span start", first, 0)
    return start, integer(f"{where}: token_span end", last, start)


def short(value) -> str:
    """A value for a message, with its type; long ones are cut."""
    return f"{reprlib.repr(value)} ({type(value).__name__})"
