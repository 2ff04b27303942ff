"""The console command ``mempo``: one command for each launcher.

    mempo COMMAND [OPTIONS]

It is also ``python -m experiments COMMAND`` in a checkout.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

import mempo_jax
from mempo_jax.settings import nearest

from .naming import IN_CHECKOUT, command_line

USAGE_EXIT = 2
COMMANDS = {
    "train": "train a policy to manage its memory (cold start, then GRPO)",
    "evaluate": "compare the policy of a run with rules and with its cold start",
    "report": "write what a run did as one HTML page",
    "doctor": "say what is wrong with a run, why, and which field to change",
    "trace": "run one task three times and print every memory operation",
    "chat": "talk with a policy and watch what it does to its memory",
    "plan": "say what a run needs of named hardware, without that hardware",
    "cold_start": "make a policy from demonstrations alone, or write these",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the launcher that the first argument names, on the other arguments.

    Args:
      argv: the arguments without the program's name; None takes the process's.

    Returns:
      The exit code if no launcher was run. A launcher exits by itself.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print("\n".join(_help()))
        return 0
    name, *options = words
    if name == "--version":
        print(f"mempo_jax {mempo_jax.__version__}")
        return 0
    if name not in COMMANDS:
        print(f"error: {_unknown(name)}", file=sys.stderr)
        return USAGE_EXIT
    # As `python -m` does: environments and rewards of the user's own are found in the
    # current folder. It comes last, so that no file there hides an installed package.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    sys.argv = [sys.argv[0], *options]
    # The same as `python -m`, and a launcher is loaded only if it is the one to run.
    runpy.run_module(f"{__package__}.{name}", run_name="__main__", alter_sys=True)
    return 0


def _help() -> list[str]:
    width = max(map(len, COMMANDS)) + 2
    program, config = command_line(), "configs/base.py" if IN_CHECKOUT else "base"
    return [
        f"usage: {program} COMMAND [OPTIONS]",
        "",
        *(f"  {name:{width}}{about}" for name, about in COMMANDS.items()),
        "",
        f"{program} COMMAND --help tells the options of a command. To begin:",
        f"  {program} train --config={config} --workdir=runs/base",
    ]


def _unknown(name: str) -> str:
    if name.startswith("-"):
        return f"{name}: expected a command first, one of {', '.join(COMMANDS)}"
    near = nearest(name, COMMANDS)
    hint = f"the nearest is {near}" if near else f"expected one of {[*COMMANDS]}"
    return f"{name}: unknown command; {hint}; see {command_line()} --help"


if __name__ == "__main__":
    sys.exit(main())
