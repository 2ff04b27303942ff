"""Starts a launcher under absl: our errors are one line, others a traceback."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import app, flags

from mempo_jax.settings import ConfigError, local_path

from .flags import SHIPPED, Command, config_file, load_config, parse
from .naming import as_started

USAGE_EXIT, STOPPED_EXIT, INTERRUPTED_EXIT = 2, 3, 130
PATH_OPTIONS = ("workdir", "out", "policy", "bank", "demonstrations", "against")
# The beginning of what jax logs with a date and a source line, and our words for it.
SAID_BY_JAX = {
    "An NVIDIA GPU may be present": (
        "this computes on the CPU; for the NVIDIA GPU that may be present install the "
        "extra [cuda13], or [cuda12] with an older driver"
    ),
    "A Google TPU may be present": (
        "this computes on the CPU; for the TPU that may be present install the extra "
        "[tpu]"
    ),
}
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

    def read(words: list[str]) -> Command:
        flags.FLAGS([words[0], f"--verbosity={WARNINGS_ONLY}"])
        command = parse(words[1:], options, required=required)
        if options.help:
            print(as_started(sys.modules[main.__module__].__doc__ or ""))
            print(options.get_help())
            sys.exit(0)
        _expand_paths(options)
        return command

    words = sys.argv if argv is None else ["launcher", *argv]
    try:
        with plain_warnings():
            app.run(main, argv=list(words), flags_parser=read)
    except ConfigError as error:
        fail(error, USAGE_EXIT)
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED_EXIT)


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Within it a warning is one line without its source line, above any bar.

    The same text is printed once: several functions may be traced with one setting.
    """
    jax_log, printed = logging.getLogger("jax._src.xla_bridge"), set()

    def show(message: Warning | str, *place: Any, **named: Any) -> None:
        if str(message) not in printed:
            printed.add(str(message))
            warn(message)

    with warnings.catch_warnings():
        warnings.showwarning = show
        jax_log.addFilter(_jax_said)
        try:
            yield
        finally:
            jax_log.removeFilter(_jax_said)


def warn(text: object) -> None:
    """Prints a warning on one line; a progress bar moves out of its way.

    Args:
      text: of the warning; line breaks become spaces.
    """
    from tqdm import tqdm

    tqdm.write(f"warning: {' '.join(str(text).split())}", file=sys.stderr)


def advise(settings: Any, command: Command) -> None:
    """Warns of values outside the recommended ranges.

    What a config of this project sets itself is left out: it is on purpose, and the
    file says why. An override of it is not.

    Args:
      settings: of the run.
      command: that the settings were read from, with its config file.
    """
    from mempo_jax.config import advice, from_config

    file = config_file(command.options.config)
    known: list[str] = []
    if file.resolve().parent == SHIPPED.resolve():
        known = advice(from_config(load_config(str(file)).to_dict()))
    for line in advice(settings):
        if line not in known:
            warn(line)


def _jax_said(record: logging.LogRecord) -> bool:
    """A filter: shows ours of ``SAID_BY_JAX`` instead, passes other records."""
    for beginning, plain in SAID_BY_JAX.items():
        if str(record.msg).startswith(beginning):
            warn(plain)
            return False
    return True


def _expand_paths(options: flags.FlagValues) -> None:
    """Replaces a leading ``~`` in options that are paths; the shell leaves it there.

    Raises:
      ConfigError: an address such as ``gs://bucket``.
    """
    for name in PATH_OPTIONS:
        text = options[name].value if name in options else ""
        if text:
            path = local_path(text, f"--{name}")
            # Other paths are shown later as they were typed.
            options[name].value = str(path) if text.startswith("~") else text


def fail(error: object, code: int) -> None:
    """Prints one line about an error and exits.

    Args:
      error: its text is shown.
      code: the exit code.
    """
    print(f"error: {as_started(' '.join(str(error).split()))}", file=sys.stderr)
    sys.exit(code)


def say(lines: Sequence[str], done: str = "") -> None:
    """Prints lines; a reader that closes early, such as ``head``, is no error.

    Args:
      lines: to print.
      done: what was finished before, for the error if the output cannot be written.
    """
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        _drop_output()
        fail(f"{done}the output cannot be written: {error}", STOPPED_EXIT)


def _drop_output() -> None:
    """Sends later output nowhere: at its exit Python would try again, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
