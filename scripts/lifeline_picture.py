"""A picture of what a group shows: its best and its worst attempt, memory by memory.

    python -m scripts.lifeline_picture --workdir=DIR --group=KEY --out=FILE.png

DIR is the directory of a run; KEY names a group in the links of its report, such as
step-10-ledger-train-81. Needs Chromium on PATH, or CHROMIUM=PROGRAM.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from mempo_jax.report.group_view import picture
from mempo_jax.report.selection import select_groups

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTH, TALL = 980, 2_000  # of the window in pixels; the page says how tall it is
MEASURE = "<script>document.title = document.body.offsetHeight</script>"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", type=pathlib.Path, required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args(words)
    groups = select_groups(options.workdir / "trajectories", sys.maxsize).groups
    group = next((each for each in groups if each.key == options.group), None)
    if group is None or group.step is None or not group.spread:
        keys = ", ".join(
            each.key for each in groups if each.step is not None and each.spread
        )
        parser.error(f"--group={options.group}: expected one of {keys or 'no group'}")
    program = os.environ.get("CHROMIUM") or next(
        filter(None, map(shutil.which, NAMES)), None
    )
    if program is None:
        parser.error(f"expected one of {', '.join(NAMES)} on PATH, or CHROMIUM=PROGRAM")
    photograph(program, str(picture(group)), options.out)
    print(f"{options.out}: {options.out.stat().st_size / 1e3:.0f} kB")
    return 0


def photograph(program: str, html: str, out: pathlib.Path) -> None:
    """Writes a page as a PNG, as tall as the page is.

    Args:
      program: Chromium.
      html: the page.
      out: the file to write.

    Raises:
      subprocess.CalledProcessError: Chromium failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "page.html"
        page.write_text(html.replace("</body>", f"{MEASURE}</body>"), "utf-8")
        command = [
            *(program, "--headless=new", "--no-sandbox", "--disable-gpu"),
            *("--hide-scrollbars", f"--user-data-dir={folder}/profile"),
        ]
        look = [f"--window-size={WIDTH},{TALL}", "--dump-dom", page.as_uri()]
        dom = subprocess.run(
            [*command, *look], capture_output=True, check=True, encoding="utf-8"
        ).stdout
        height = int(re.search(r"<title>(\d+)</title>", dom)[1])
        shoot = [
            *("--force-device-scale-factor=1.5", f"--window-size={WIDTH},{height}"),
            *(f"--screenshot={out.absolute()}", page.as_uri()),
        ]
        subprocess.run([*command, *shoot], capture_output=True, check=True)


if __name__ == "__main__":
    sys.exit(main())
