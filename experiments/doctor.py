"""Names what is wrong with a run, with the figures, the field and the remedy.

    python -m experiments.doctor --workdir=RUN [--against=RUN2] [--json] [--strict]

RUN may be under way. Causes come before what follows from them, the worst first; a run
without problems is called so, or too short to judge. With --against it is compared with
another run: which fields differ, and at which step and in which figure the two part.

Exit codes: 0, whatever was found; with --strict 1 where a problem or a warning was
found; 2 where RUN is no run or its metrics cannot be read; 3 where the output cannot be
written.
"""

import json
from typing import Any

from absl import flags

from .flags import Command, new_options
from .launch import launch, say

OPTIONS = new_options(config=False)
flags.DEFINE_string("workdir", None, "the directory of a run", flag_values=OPTIONS)
flags.DEFINE_string("against", "", "another run, to compare", flag_values=OPTIONS)
flags.DEFINE_bool("json", False, "print one JSON object instead", flag_values=OPTIONS)
flags.DEFINE_bool(
    "strict", False, "exit code 1 on a problem or a warning", flag_values=OPTIONS
)
FOUND_EXIT = 1


def main(command: Command) -> int:
    """Prints what is wrong with a run.

    Args:
      command: the parsed command line.

    Returns:
      The exit code.
    """
    from mempo_jax.doctor import differences, examine, lines, verdict
    from mempo_jax.runs import read_run

    options = command.options
    record = read_run(options.workdir)
    other = read_run(options.against, "--against") if options.against else None
    findings = examine(record)
    if other is not None:
        findings = [*differences(record, other), *findings]
    summary = verdict(findings, record)
    if options.json:
        say(_json(options, record, summary, findings))
    else:
        say(lines(findings, record))
    return FOUND_EXIT if options.strict and summary == "problems" else 0


def _json(
    options: flags.FlagValues, record: Any, summary: str, findings: list[Any]
) -> list[str]:
    steps = record.table.steps
    report = {
        "workdir": options.workdir,
        "against": options.against or None,
        "steps": len(steps),
        "last_step": int(steps[-1]) if len(steps) else None,
        "verdict": summary,
        "findings": [finding.to_json() for finding in findings],
    }
    return [json.dumps(report, indent=1, allow_nan=False)]


if __name__ == "__main__":
    launch(main, OPTIONS, required=("workdir",))
