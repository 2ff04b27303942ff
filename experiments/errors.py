"""What a launcher does with an error: ours is one line, anything else a traceback."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence

from mempo_jax.settings import ConfigError

USAGE_EXIT = 2


def launcher(
    main: Callable[[Sequence[str]], int | None],
) -> Callable[[Sequence[str] | None], int]:
    """Wraps ``main(argv)`` so that a ConfigError ends in one line and exit code 2.

    The wrapped function takes the arguments without the program's name (None:
    ``sys.argv[1:]``) and returns the exit code, for ``sys.exit(main())``. Other
    exceptions pass: a traceback is what a bug should show.
    """

    @functools.wraps(main)
    def run(argv: Sequence[str] | None = None) -> int:
        try:
            return main(sys.argv[1:] if argv is None else argv) or 0
        except ConfigError as error:
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
            return USAGE_EXIT

    return run
