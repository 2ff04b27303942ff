"""The files beside the code say what is true of it."""

import pathlib
import re

import mempo_jax

ROOT = pathlib.Path(__file__).parents[1]


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
