"""How this launcher was started, so that what it prints can be typed as it is.

The same files are ``experiments`` in a checkout, started by ``python -m``, and
``mempo_jax.launchers`` in an installed package, started by the command ``mempo``.
"""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import shutil
import sys

IN_CHECKOUT = __package__ == "experiments"
_MODULE = re.compile(r"(?:python -m )?\bexperiments\.([a-z_]+)")


def command_line(*words: str | os.PathLike) -> str:
    """The command that runs ``words`` with the program that runs now.

    Args:
      *words: a launcher's name and its arguments, such as "report" and
        "--workdir=DIR"; none for the program alone.

    Returns:
      A line for a shell in the current folder, with quotes if a word needs them.
    """
    program, words = _program(), [os.fspath(word) for word in words]
    if program[-1] == "-m":
        module = ".".join([__package__, *words[:1]])
        program, words = [*program, module], words[1:]
    return shlex.join([*program, *words])


def as_started(text: str) -> str:
    """A text about launchers, with their names as they are typed here.

    Args:
      text: what a docstring or an error says, with ``experiments.NAME`` for a launcher.

    Returns:
      The same text in a checkout; elsewhere with ``mempo NAME``.
    """
    return text if IN_CHECKOUT else _MODULE.sub(r"mempo \1", text)


def _program() -> list[str]:
    """What comes before a launcher's name: ``mempo``, or python and ``-m``."""
    folder = os.path.dirname(os.path.abspath(sys.executable))
    if not IN_CHECKOUT and (script := _how_to_call("mempo", folder)):
        return [script]
    names = ("python", "python3", os.path.basename(sys.executable))
    # Links are not followed: an environment's python is a link to the system's.
    for name in names:
        if _folder_of(shutil.which(name)) == folder:
            return [name, "-m"]
    return [_short(sys.executable), "-m"]


def _how_to_call(name: str, folder: str) -> str | None:
    """How to call the script ``name`` of ``folder``, or else one on PATH."""
    beside, on_path = shutil.which(name, path=folder), shutil.which(name)
    if beside is None or _folder_of(on_path) == folder:
        return name if on_path else None
    return _short(beside)


def _folder_of(program: str | None) -> str | None:
    return None if program is None else os.path.dirname(os.path.abspath(program))


def _short(path: str) -> str:
    """The path from the current folder if it is deeper than that, else absolute.

    A bare name would be looked for on PATH.
    """
    absolute = pathlib.Path(os.path.abspath(path))
    here = pathlib.Path.cwd()
    below = here in absolute.parents[1:]
    return str(absolute.relative_to(here) if below else absolute)
