"""The files beside the code say what is true of it."""

import ast
import importlib.metadata
import pathlib
import re

import mempo_jax

ROOT = pathlib.Path(__file__).parents[1]
# How an extra is named: pip install -e '.[tpu]', mempo_jax[wandb], extra [tpu], extras
# [a], [b] and [c]; in documents also `[cuda12]`.
NAME = r"`?\[[a-z][\w,-]*\]`?(?!\()"  # followed by "(" it is a link
LIST = rf"{NAME}(?:(?:,? and |,? or |, |; ){NAME})*"
EXTRA = re.compile(rf"(?:\bextras?\s+|['\"]\.|\bmempo_jax){LIST}")
QUOTED = re.compile(r"`\[[a-z][\w,-]*\]`")


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_one_version_everywhere():
    version = mempo_jax.__version__
    assert f'version="{version}"' in read("setup.py")
    assert re.search(rf"^version: {re.escape(version)}$", read("CITATION.cff"), re.M)
    released = re.findall(r"^## \[(\d\S*)\] - (\S+)$", read("CHANGELOG.md"), re.M)
    assert released[0][0] == version, "the newest release of CHANGELOG.md"
    date = re.search(r"^date-released: (\S+)$", read("CITATION.cff"), re.M)[1]
    assert released[0][1] == date
    assert "## [Unreleased]" in read("CHANGELOG.md")


def test_one_licence_everywhere():
    assert 'license="Apache-2.0"' in read("setup.py")
    assert "\nlicense: Apache-2.0\n" in read("CITATION.cff")
    assert "Apache License" in read("LICENSE")


def test_contributing_names_targets_and_paths_that_there_are():
    text = read("CONTRIBUTING.md")
    targets = set(re.findall(r"\bmake ([a-z]+)", text))
    assert {"env", "test", "lint"} <= targets
    there = set(re.findall(r"^([a-z ]+):", read("Makefile"), re.M))
    assert targets <= {name for names in there for name in names.split()}
    named = set(re.findall(r"`((?:[a-z_.]+/)+(?:[a-z_]+\.py)?)`", text))
    named -= {"mempo_jax/launchers/"}  # in a wheel
    assert len(named) > 8
    assert [name for name in named if not (ROOT / name).exists()] == []


def extras():
    """The extras of setup.py, each with what it installs."""
    calls = (
        x for x in ast.walk(ast.parse(read("setup.py"))) if isinstance(x, ast.Call)
    )
    for call in calls:
        for keyword in call.keywords:
            if keyword.arg == "extras_require":
                return ast.literal_eval(keyword.value)
    raise AssertionError("setup.py has no extras_require")


def named_extras(*patterns):
    """Which extras files name, by file."""
    named = {}
    for file in sorted({file for each in patterns for file in ROOT.glob(each)}):
        text = file.read_text(encoding="utf-8")
        passages = EXTRA.findall(text)
        passages += QUOTED.findall(text) if file.suffix == ".md" else []
        lists = re.findall(r"\[([\w,-]+)\]", " ".join(passages))
        named[str(file.relative_to(ROOT))] = {n for x in lists for n in x.split(",")}
    return named


DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/*.md", "benchmarks/*.md")
SOURCES = ("mempo_jax/**/*.py", "experiments/*.py", "scripts/*", "pyproject.toml")


def test_extras_that_are_named_are_those_of_setup():
    named = named_extras(*DOCUMENTS, *SOURCES)
    assert len(set().union(*named.values())) > 8, "the pattern finds hardly any"
    unknown = {file: names - set(extras()) for file, names in named.items()}
    assert {file: names for file, names in unknown.items() if names} == {}


def test_each_extra_is_named_where_a_user_reads():
    """Those for which make has a target and a lock file are made by that."""
    made = {name for name in extras() if (ROOT / f"requirements-{name}.lock").exists()}
    assert made == {"test", "notebook", "parity"}
    named = named_extras("README.md", "docs/*.md")
    assert set().union(*named.values()) == set(extras()) - made


def test_what_the_accelerators_need_is_an_extra_of_jax():
    """pip only warns of an extra that a package lacks, and installs nothing for it."""
    offered = importlib.metadata.metadata("jax").get_all("Provides-Extra")
    wanted = {
        name
        for needs in extras().values()
        for need in needs
        for name in re.findall(r"^jax\[([\w-]+)\]", need)
    }
    assert wanted == {"tpu", "cuda12", "cuda13"}
    assert wanted <= set(offered)
    assert extras()["cuda"] == extras()["cuda13"]


def test_the_check_of_a_gpu_installs_extras_that_there_are():
    script = read("scripts/gpu_check.sh")
    chosen = set(re.findall(r"\bcuda=(cuda\d+)", script))
    assert chosen == {"cuda12", "cuda13"}
    assert chosen <= set(extras())
    assert '".[$cuda,test]"' in script
