"""Writing a file so that no reader, and no kill, ever meets half of it."""

from __future__ import annotations

import os
import pathlib


def write_text(file: pathlib.Path, text: str) -> None:
    """Writes a file completely or not at all; what was there before is replaced.

    The text goes into ``NAME.writing`` in the same directory first, since a rename is
    atomic within one file system only.

    Args:
      file: the file's path; its directory must be there.
      text: its content, written as UTF-8.

    Raises:
      OSError: it cannot be written; the old file is then still there.
    """
    draft = file.with_name(file.name + ".writing")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, file)
