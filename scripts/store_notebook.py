"""Runs the notebook from top to bottom and stores it with its outputs.

    python scripts/store_notebook.py

It needs the extra [notebook] and takes a few minutes. The table in the first cell takes
its figures from the run. Progress bars are kept as they ended, and nothing that names
this machine's folders may be left; the test in tests/notebooks checks both.
"""

import os
import pathlib
import re
import tempfile
from typing import Any

NOTEBOOK = pathlib.Path(__file__).parents[1] / "notebooks" / "mempo_quickstart.ipynb"
CELL_LIMIT_S = 7_200
# What the last figures are printed as, and the row of the first cell's table that
# shows them.
FIGURES = {
    r"success (\S+) before training": "the agent before training",
    r"before training, (\S+) after": "the agent after training",
    r"success of `rag`, with the same memory: (\S+)": "a rule with the same memory",
}


def main() -> None:
    # Imported here: a test reads FIGURES where the extra is not installed.
    import nbclient
    import nbformat

    made = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MEMPO_WORKDIR"] = folder
        place = {"metadata": {"path": str(NOTEBOOK.parent)}}
        nbclient.NotebookClient(
            made,
            timeout=CELL_LIMIT_S,
            kernel_name="python3",
            resources=place,
            record_timing=False,
        ).execute()
    for cell in made.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
    made.metadata.language_info = {"name": "python"}
    made.cells[0].source = filled(made.cells[0].source, printed(made))
    nbformat.write(made, NOTEBOOK)


def joined(outputs: list[Any]) -> list[Any]:
    """Outputs with the pieces of each stream in one, as it ended."""
    kept: list[Any] = []
    for output in outputs:
        named = output.get("name")
        if kept and named and named == kept[-1].get("name"):
            kept[-1].text += output.text
        else:
            kept.append(output)
    for output in kept:
        if output.output_type == "stream":
            output.text = ended(output.text)
    return kept


def ended(text: str) -> str:
    """A stream as a terminal shows it in the end: what a bar overwrote is left out."""
    return "\n".join(line.split("\r")[-1].rstrip() for line in text.split("\n"))


def printed(made: Any) -> str:
    outputs = [out for cell in made.cells for out in cell.get("outputs", ())]
    return "".join(out.text for out in outputs if out.get("name") == "stdout")


def filled(source: str, text: str) -> str:
    """The first cell, with the figures of the run in its table."""
    for pattern, row in FIGURES.items():
        figure = re.search(pattern, text)[1]
        source = re.sub(rf"(\| {row} \|) .* \|", rf"\1 {figure} |", source)
    return source


if __name__ == "__main__":
    main()
