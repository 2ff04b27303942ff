"""Checks of the arguments of a bank's methods, made before anything changes.

They find faults of the caller. What a policy can get wrong (an id that does not exist,
an empty text) is an outcome and no exception, and is not checked here.
"""

from __future__ import annotations

import numbers
import operator
import reprlib

import numpy as np

LAST_TURN = 2**31 - 1  # turn indices are int32 where training reads them


def turn(where: str, step) -> int:
    """Returns a turn index.

    Args:
      where: name of the method, for the message.
      step: an integer from 0 to ``LAST_TURN``.

    Raises:
      TypeError: not an integer.
      ValueError: out of bounds.
    """
    if type(step) is int and 0 <= step <= LAST_TURN:  # on every op: the fast way
        return step
    return integer(f"{where}: step (a turn index)", step, 0, LAST_TURN)


def integer(where: str, value, least: int, most: int | None = None) -> int:
    """Returns a Python integer; booleans, floats and strings are refused.

    Args:
      where: method and argument, for the message.
      value: the argument.
      least: lowest value.
      most: highest value; no bound if None.

    Raises:
      TypeError: not an integer.
      ValueError: out of bounds.
    """
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise TypeError(f"{where}: expected an integer, got {short(value)}")
    number = operator.index(value)
    if number < least or (most is not None and number > most):
        bound = f">= {least}" + ("" if most is None else f" and <= {most}")
        raise ValueError(f"{where}: expected an integer {bound}, got {short(number)}")
    return number


def number(where: str, value) -> float:
    """Returns a float.

    Args:
      where: method and argument, for the message.
      value: a real number; infinite ones pass.

    Raises:
      TypeError: not a number.
      ValueError: NaN.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{where}: expected a number, got {short(value)}")
    if value != value:  # only NaN differs from itself
        raise ValueError(f"{where}: expected a number, got NaN")
    return float(value)


def text(where: str, value) -> str:
    """Returns a string as it is.

    Args:
      where: method and argument, for the message.
      value: the argument; TypeError if it is no string.
    """
    if not isinstance(value, str):
        raise TypeError(f"{where}: expected a str, got {short(value)}")
    return value


def optional_text(where: str, value) -> str | None:
    """Returns a string, or None.

    Args:
      where: method and argument, for the message.
      value: the argument; TypeError if it is neither.
    """
    return None if value is None else text(where, value)


def span(where: str, value) -> tuple[int, int] | None:
    """Returns a token range (start, end), or None.

    Args:
      where: name of the method, for the message.
      value: a pair with 0 <= start <= end, or None.

    Raises:
      TypeError: neither None nor a pair of integers.
      ValueError: out of bounds.
    """
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
    """Shows a value and its type in a message; a long value is cut.

    Args:
      value: anything.
    """
    return f"{reprlib.repr(value)} ({type(value).__name__})"
