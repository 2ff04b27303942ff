"""What a run did, as one HTML page that opens anywhere.

    python -m experiments.report --workdir=DIR [--trajectories=N] [--out=FILE]

DIR is the directory of a run of experiments.train, ended or not. Writes DIR/report.html
(or FILE: a new one, or an earlier page of this command) and touches nothing else:
results before and after, what the doctor finds, curves of all metrics, and recorded
trajectories with their groups side by side, each memory as a line over the turns, and
the tokens coloured by the credit that training gave them.

Exit codes: 0 done; 2 where DIR is no run, or FILE cannot be written or holds something
else; 3 where the page is written but not what is to be said about it.
"""

import contextlib
import os
import pathlib
import secrets

from absl import flags

from mempo_jax.settings import ConfigError

from .flags import Command, new_options
from .launch import launch, say

OPTIONS = new_options(config=False)
flags.DEFINE_string("workdir", None, "the directory of a run", flag_values=OPTIONS)
flags.DEFINE_integer(
    "trajectories", 200, "that the page shows, about", flag_values=OPTIONS
)
flags.DEFINE_string(
    "out",
    "",
    "the file to write; report.html of --workdir if left",
    flag_values=OPTIONS,
)


def main(command: Command) -> int:
    """Writes the page of a run.

    Args:
      command: the parsed command line.

    Returns:
      The exit code.
    """
    options = command.options
    if options.trajectories < 1:
        raise ConfigError(f"--trajectories={options.trajectories}: expected at least 1")
    workdir = pathlib.Path(options.workdir)
    out = pathlib.Path(options.out) if options.out else workdir / "report.html"

    from mempo_jax.doctor import examine
    from mempo_jax.report.page import START, page, status
    from mempo_jax.report.run_files import read_run
    from mempo_jax.report.selection import select_groups
    from mempo_jax.runs import read_run as read_record

    target = _target(out, START.encode())

    try:
        run = read_run(workdir)
        selection = select_groups(workdir / "trajectories", options.trajectories)
    except OSError as error:
        raise ConfigError(f"--workdir={workdir}: {error}") from error
    if run is None:
        raise ConfigError(
            f"--workdir={workdir}: expected the directory of a run, found none of "
            "config.json, metrics.jsonl, trajectories/ there; see experiments.train"
        )
    try:
        findings = examine(read_record(workdir))
    except ConfigError:  # there is neither a config nor a metric, only trajectories
        findings = None
    size = _write(target, page(run, selection, findings))
    lines = [status(run)] + ([selection.size] if selection.recorded else [])
    written = f"{out}: {size / 1e6:.1f} MB"
    say([*lines, written], f"{written}, but ")
    return 0


def _target(out: pathlib.Path, start: bytes) -> pathlib.Path:
    """The file to write, with all links followed.

    A page replaces no link, no device and no pipe, and of files only those that begin
    with ``start``, as pages do.
    """
    target = pathlib.Path(os.path.realpath(out))
    if os.path.lexists(target) and not os.path.isfile(target):
        raise ConfigError(
            f"--out={out}: expected a regular file or nothing there, found something "
            "else, as a directory, a device or a pipe; name another file"
        )
    if os.path.isfile(target) and not _begins(target, start):
        raise ConfigError(
            f"--out={out}: expected nothing there or a page of this command, found "
            "another file, which would be lost; name another one, or remove it"
        )
    return target


def _begins(file: pathlib.Path, start: bytes) -> bool:
    try:
        with file.open("rb") as content:
            return content.read(len(start)) == start
    except OSError as error:
        raise ConfigError(f"--out={file}: {error}") from error


def _write(out: pathlib.Path, text: str) -> int:
    """Writes all of the page or nothing; returns the number of bytes."""
    page = text.encode("utf-8")
    # The random name belongs to no other file or link in the folder.
    fresh = out.with_name(f".report-{secrets.token_hex(8)}.writing")
    try:
        with fresh.open("xb") as file:
            file.write(page)
        os.replace(fresh, out)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise ConfigError(f"{out}: {error}") from error
    return len(page)


if __name__ == "__main__":
    launch(main, OPTIONS, required=("workdir",))
