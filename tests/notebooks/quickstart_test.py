"""The notebook: stored with one run's outputs, and on demand run as a reader does."""

import ast
import base64
import html
import json
import pathlib
import re

import pytest

from mempo_jax import api
from mempo_jax.evaluation.compare import NAMES
from mempo_jax.report.turns import HEADS, STAR
from scripts import store_notebook
from tests.report.reading import Read

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "mempo_quickstart.ipynb"
AGAIN = "run scripts/store_notebook.py, which stores it with its outputs"
PICTURE = r'"image/png": "[^"]+"'
CELL_LIMIT_S = 600
MARGIN = 0.25  # of success; half of what three worlds gained
OWN_PATHS = re.compile(r"(?<![\w./])/(home|root|tmp|work|Users|content|mnt)\b")


def cells(kind, stored=None):
    stored = stored or json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return [cell for cell in stored["cells"] if cell["cell_type"] == kind]


def source(cell):
    return "".join(cell["source"])


def test_the_outputs_of_one_run_are_stored():
    text = NOTEBOOK.read_text(encoding="utf-8")
    stored = json.loads(text)
    ran = cells("code", stored)
    assert [cell["execution_count"] for cell in ran] == list(range(1, len(ran) + 1)), (
        AGAIN
    )
    assert all(cell["outputs"] for cell in ran), AGAIN
    outputs = [output for cell in ran for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"stream", "display_data"}
    texts = ["".join(out["text"]) for out in outputs if out["output_type"] == "stream"]
    assert not any("\r" in text or "warning" in text.lower() for text in texts)
    assert [cell["metadata"] for cell in stored["cells"]] == [{}] * len(stored["cells"])
    assert set(stored["metadata"]) == {"kernelspec", "language_info", "colab"}
    assert stored["metadata"]["kernelspec"]["name"] == "python3"
    assert stored["metadata"]["language_info"] == {"name": "python"}
    assert not OWN_PATHS.findall(re.sub(PICTURE, "", text))
    assert len(re.findall(PICTURE, text)) == 2


def test_it_begins_with_what_it_shows():
    """The figures of the first cell are those that the stored run printed last."""
    first = source(json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"][0])
    rows = dict(re.findall(r"^\| ([^|]+) \| (\d\.\d+) \|$", first, re.MULTILINE))
    assert list(rows) == list(store_notebook.FIGURES.values())
    stored = printed(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    for pattern, row in store_notebook.FIGURES.items():
        assert re.search(pattern, stored)[1] == rows[row], AGAIN
    before, after, rule = (float(figure) for figure in rows.values())
    assert after >= before + MARGIN
    assert after > rule


def test_the_badge_and_the_installation_name_the_same_place():
    text = "\n".join(source(cell) for cell in cells("markdown") + cells("code"))
    [repository] = re.findall(r'^REPOSITORY = "https://github\.com/(\S+)"$', text, re.M)
    opened = re.findall(
        r"colab\.research\.google\.com/github/(\S+?)/blob/(\S+?)\)", text
    )
    assert opened == [(repository, f"main/{NOTEBOOK.relative_to(ROOT).as_posix()}")]


def test_it_uses_what_is_public_and_copies_nothing():
    text = "\n".join(source(cell) for cell in cells("code"))
    tree = ast.parse(text.replace("%matplotlib inline", ""))
    named = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("mempo_jax")
        for alias in node.names
    ]
    assert {"run", "Agent", "compare"} <= set(named) <= set(api.__all__)
    assert not [name for name in named if name.startswith("_")]
    defined = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    assert defined == {"chip", "around", "install", "load", "mean"}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def executed(workdir):
    """The notebook after a run of all its cells; a cell that raises fails here."""
    import nbclient
    import nbformat

    made = nbformat.read(NOTEBOOK, as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMPO_WORKDIR", str(workdir))
        patch.delenv("XLA_FLAGS")  # one device, as a reader has it
        place = {"metadata": {"path": str(NOTEBOOK.parent)}}
        nbclient.NotebookClient(
            made, timeout=CELL_LIMIT_S, kernel_name="python3", resources=place
        ).execute()
    return made


def shown(executed, kind):
    """What the cells displayed, of one MIME type."""
    return [
        output["data"][kind]
        for cell in cells("code", executed)
        for output in cell["outputs"]
        if kind in output.get("data", ())
    ]


def printed(executed):
    return "".join(
        "".join(output["text"])  # a list of lines in a stored file
        for cell in cells("code", executed)
        for output in cell["outputs"]
        if output.get("name") == "stdout"
    )


@pytest.mark.notebook
def test_training_is_seen_to_help(executed, workdir):
    summary = json.loads((workdir / "run" / "summary.json").read_text())
    before, after = (
        summary[name]["success_sampled"]["mean"] for name in ("cold_start", "trained")
    )
    assert after >= before + MARGIN
    told = re.search(r"success (\S+) before training, (\S+) after", printed(executed))
    assert told.groups() == (f"{before:.2f}", f"{after:.2f}"), "the same tasks"


@pytest.mark.notebook
def test_pictures_are_drawn(executed):
    pictures = [base64.b64decode(data) for data in shown(executed, "image/png")]
    assert len(pictures) == 2
    for picture in pictures:
        assert picture.startswith(b"\x89PNG")
        width, height = (int.from_bytes(picture[i : i + 4], "big") for i in (16, 20))
        assert width > 600
        assert height > 250
    assert set(map(len, pictures)) != {0}


@pytest.mark.notebook
def test_trajectories_and_the_comparison_are_tables(executed):
    tables = [Read(page) for page in shown(executed, "text/html")]
    *trajectories, comparison = tables
    assert len(trajectories) == 3
    for table in trajectories:
        assert table.rows[0] == list(HEADS)
        kinds = {kind for row in table.rows[1:] for kind in row[3].splitlines()}
        assert {"recall", "answer"} <= kinds
        assert STAR in table.text
    assert "write" in {row[3] for row in trajectories[-1].rows}
    assert [row[0] for row in comparison.rows[1:]] == list(NAMES)


@pytest.mark.notebook
def test_advantages_are_those_of_the_group(executed):
    found = re.findall(r"reward (\S+), advantage (\S+)", printed(executed))
    assert len(found) == 8
    assert sum(float(advantage) for _, advantage in found) == pytest.approx(0, abs=0.1)
    assert max(found, key=lambda pair: float(pair[0]))[1].startswith("+")
    best = html.unescape(shown(executed, "text/html")[0])
    assert f"advantage {max(float(a) for _, a in found):+.2f}" in best
