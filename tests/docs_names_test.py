"""What README and docs name exists: links, anchors, fields, files, targets, causes."""

from __future__ import annotations

import re

import pytest

from configs import base
from tests.docs_pages import (
    FENCE,
    PAGES,
    ROOT,
    blocks_of,
    check_target,
    prose_of,
    text_of,
)
from tests.doctor.sick_cases import SICK

README_LINES = 250


def test_every_diagnosis_is_explained():
    page = prose_of("docs/diagnosing.md")
    heads = [line.split("|")[1] for line in page.splitlines() if line[:3] == "| `"]
    named = {name for head in heads for name in re.findall(r"`([a-z_]+)`", head)}
    assert named == set(SICK)


def anchors_of(text: str) -> set[str]:
    """Anchors that GitHub makes of the headings of a page."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        anchors.add(words.replace(" ", "-"))
    return anchors


@pytest.mark.parametrize("page", PAGES)
def test_its_links_lead_somewhere(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        there = file.exists() and (
            not anchor or anchor in anchors_of(file.read_text(encoding="utf-8"))
        )
        broken += [] if there else [target]
    assert broken == []


def test_readme_leads_to_every_page():
    linked = set(re.findall(r"\]\((docs/\w+\.md)", text_of("README.md")))
    assert linked == {page for page in PAGES if page.startswith("docs/")}


def test_readme_is_short():
    assert len(text_of("README.md").splitlines()) <= README_LINES


def test_readme_shows_every_package():
    tree = text_of("README.md").split("## Where things are")[1].split("```")[1]
    named = set(re.findall(r"^  (\w+)/", tree, re.MULTILINE))
    folders = (ROOT / "mempo_jax").iterdir()
    packages = {folder.name for folder in folders if (folder / "__init__.py").exists()}
    # In a checkout the configs are a folder of their own.
    assert named == packages - {"configs"}
    files = re.findall(r"^  (\w+\.py)", tree, re.MULTILINE)
    assert [name for name in files if not (ROOT / "mempo_jax" / name).exists()] == []


def fields_of(config, prefix: str = "") -> set[str]:
    """Every field and section of a config, by dotted name."""
    names = set()
    for name, value in config.items():
        names.add(prefix + name)
        if hasattr(value, "items"):
            names |= fields_of(value, f"{prefix}{name}.")
    return names


@pytest.mark.parametrize("page", PAGES)
def test_its_fields_are_in_the_config(page):
    config = base.get_config()
    fields, sections = fields_of(config), "|".join(config)
    pattern = (
        rf"`(?:--config\.|config\.)?((?:{sections})(?:\.[a-z][a-z0-9_]*)+)(?![\w./(])"
    )
    named = set(re.findall(pattern, prose_of(page)))
    shown = "\n".join(b.text for b in blocks_of(page) if b.rule != "fails")
    named |= set(re.findall(r"--config\.([a-z][\w.]*)=", shown))
    assert named - fields == set()


FOLDERS = "mempo_jax|configs|docs|tests|experiments|benchmarks|notebooks|scripts"


@pytest.mark.parametrize("page", PAGES)
def test_its_paths_exist(page):
    named = re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", prose_of(page))
    named += re.findall(r"`([A-Z_]{4,}\.md|\.ci/\w+)`", prose_of(page))
    modules = re.findall(r"`((?:experiments|benchmarks)\.\w+)\b", prose_of(page))
    named += [f"{module.replace('.', '/')}.py" for module in modules]
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_its_make_targets_exist(page):
    for target in sorted(set(re.findall(r"`make ([a-z0-9_]+)`", prose_of(page)))):
        check_target(target, page)


@pytest.mark.parametrize("page", PAGES)
def test_its_code_is_fenced(page):
    """A block that is merely indented would not be seen by the test above."""
    indented = re.findall(r"\n\n( {4,}\S.*)", prose_of(page))
    assert indented == []
