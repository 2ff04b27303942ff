"""What ails a run: causes by name, with the figures, the field and the remedy.

    python -m experiments.doctor --workdir=RUN [--against=RUN2] [--json] [--strict]

RUN may be under way. Causes are told before what follows from them, the worst first.
With --against it is compared with another run: which fields differ, and at which step
and in which figure the two part.

Exit codes: 0, whatever was found; with --strict 1 where a problem or a warning was
found; 2 where RUN is no run or its metrics cannot be read; 3 where the output cannot be
written.
"""

import json
from typing import Any

from absl import flags

from experiments.flags import Command, new_options
from experiments.launch import launch, say
from mempo_jax.settings import ConfigError

OPTIONS = new_options()
flags.DEFINE_string("workdir", None, "the directory of a run", flag_values=OPTIONS)
flags.DEFINE_string("against", "", "another run, to compare", flag_values=OPTIONS)
flags.DEFINE_bool("json", False, "print one JSON object instead", flag_values=OPTIONS)
flags.DEFINE_bool(
    "strict", False, "exit code 1 on a problem or a warning", flag_values=OPTIONS
)
FOUND_EXIT = 1


def main(command: Command) -> int:
    from mempo_jax.doctor import NOTE, differences, examine, lines, read

    options = command.options
    if command.config is not None:
        raise ConfigError("--config: leave it out; that of --workdir is taken")
    record = read(options.workdir)
    other = read(options.against, "--against") if options.against else None
    found = examine(record)
    if other is not None:
        found = [*differences(record, other), *found]
    say(_json(options, record, found) if options.json else lines(found, record))
    bad = any(finding.severity != NOTE for finding in found)
    return FOUND_EXIT if options.strict and bad else 0


def _json(options: flags.FlagValues, record: Any, found: list[Any]) -> list[str]:
    steps = record.table.steps
    made = {
        "workdir": options.workdir,
        "against": options.against or None,
        "steps": len(steps),
        "last_step": int(steps[-1]) if len(steps) else None,
        "findings": [finding.to_json() for finding in found],
    }
    return [json.dumps(made, indent=1, allow_nan=False)]


if __name__ == "__main__":
    launch(main, OPTIONS, required=("workdir",))
