"""Starts a launcher under absl: ours is one line, anything else a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from absl import app, flags

from mempo_jax.settings import ConfigError

from .flags import Command, parse
from .naming import as_started

USAGE_EXIT, STOPPED_EXIT, INTERRUPTED_EXIT = 2, 3, 130
WARNINGS_ONLY = "-1"  # absl shows what libraries log at INFO otherwise


def launch(
    main: Callable[[Command], int | None],
    options: flags.FlagValues,
    *,
    required: Sequence[str] = ("config",),
    argv: Sequence[str] | None = None,
) -> None:
    """Parses the command line, runs ``main`` on it, and exits with what it returns.

    A ConfigError ends in one line and exit code 2. Other exceptions pass: a traceback
    is what a bug should show.

    Args:
      main: gets the parsed command line. It should import what is slow to import.
      options: the launcher's flags, from ``flags.new_options``.
      required: names of the options that must be given.
      argv: the arguments without the program's name; None takes the process's.
    """
    # read by transformers when it is imported, which says that it found no PyTorch
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

    def read(words: list[str]) -> Command:
        flags.FLAGS([words[0], f"--verbosity={WARNINGS_ONLY}"])
        command = parse(words[1:], options, required=required)
        if options.help:
            print(as_started(sys.modules[main.__module__].__doc__ or ""))
            print(options.get_help())
            sys.exit(0)
        return command

    words = sys.argv if argv is None else ["launcher", *argv]
    try:
        app.run(main, argv=list(words), flags_parser=read)
    except ConfigError as error:
        fail(error, USAGE_EXIT)
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED_EXIT)


def fail(error: object, code: int) -> None:
    """Exits with ``code`` behind one line about ``error``."""
    print(f"error: {as_started(' '.join(str(error).split()))}", file=sys.stderr)
    sys.exit(code)


def say(lines: Sequence[str], done: str = "") -> None:
    """Prints them; a reader that has seen enough, such as ``head``, is no fault.

    done: what was finished before, for the error where the output cannot be written.
    """
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        _drop_output()
        fail(f"{done}the output cannot be written: {error}", STOPPED_EXIT)


def _drop_output() -> None:
    """Else Python tries once more at its exit to write what is left, and complains."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
