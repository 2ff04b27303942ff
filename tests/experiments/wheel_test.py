"""The package as a wheel installs it, in an environment that has no checkout."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = ("mempo_jax", "experiments", "configs")
FILES = ("setup.py", "pyproject.toml", "LICENSE", "README.md")
OWN_CONFIG = """
from mempo_jax.configs import base

def get_config():
    c = base.get_config()
    c.memory.embedder = "hashing"
    return c
"""


def pip(*words):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of a copy of the sources: building one leaves folders beside them."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    clean = shutil.ignore_patterns("__pycache__")
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=clean)
    for name in FILES:
        shutil.copy(ROOT / name, source)
    pip("wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={out}", str(source))
    [made] = out.iterdir()
    return made


@pytest.fixture(scope="module")
def mempo(wheel, tmp_path_factory):
    """Runs the installed command in a folder; returns exit code, output and errors.

    The environment is a fresh one. It takes what the package depends on from the
    folder of this interpreter, so that nothing has to be fetched; a checkout that is
    installed there, as ``make env`` does, is not seen.
    """
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True
    )
    paths = {"base": str(folder), "platbase": str(folder)}
    packages = pathlib.Path(sysconfig.get_path("purelib", "venv", vars=paths))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python, script = (folder / "bin" / name for name in ("python", "mempo"))
    pip(f"--python={python}", "install", "--no-deps", "--no-index", str(wheel))
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "XLA_FLAGS")}

    def run(*words, cwd, **more):
        command = [str(script), *words]
        done = subprocess.run(
            command, cwd=cwd, env=env | more, capture_output=True, text=True
        )
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_wheel_has_all_within_its_own_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"mempo_jax"}
    held = {name.removeprefix("mempo_jax/") for name in names}
    for ours, there in (("experiments", "launchers"), ("configs", "configs")):
        expected = {f"{there}/{path.name}" for path in (ROOT / ours).glob("*.py")}
        assert {name for name in held if name.startswith(f"{there}/")} == expected
    assert "py.typed" in held
    shim = zipfile.ZipFile(wheel).read("mempo_jax/configs/__init__.py").decode()
    assert "__path__" not in shim


def test_help_names_each_command_and_loads_nothing_slow(mempo, tmp_path):
    for words in ((), ("--help",)):
        code, out, err = mempo(*words, cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
        assert code == 0
        names = re.findall(r"^  (\w+)  +\w", out, re.MULTILINE)
        wanted = {"train", "evaluate", "report", "doctor", "trace", "plan", "chat"}
        assert wanted <= set(names)
        loaded = set(re.findall(r"\| +(\S+)$", err, re.MULTILINE))
        assert "mempo_jax.settings" in loaded
        assert not loaded & {"jax", "numpy", "absl", "ml_collections"}


def test_a_mistyped_command_names_the_nearest(mempo, tmp_path):
    code, out, err = mempo("trian", "--config=base", cwd=tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith("error: trian: unknown command; the nearest is train; see ")
    code, _, err = mempo("--config=base", "train", cwd=tmp_path)
    assert code == 2
    assert "expected a command first" in err


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("base", "config.train.x: unknown field"),
        ("configs/ledger_long.py", "config.train.x: unknown field"),
        ("own.py", "config.train.x: unknown field"),
        ("bse", "--config=bse: no such file; the nearest is base"),
        ("old.py", "expected 'from mempo_jax.configs import ...' in it"),
    ],
)
def test_a_config_is_found_by_its_name(mempo, tmp_path, name, error):
    (tmp_path / "own.py").write_text(OWN_CONFIG)
    (tmp_path / "old.py").write_text("from configs import base")
    words = (f"--config={name}", "--workdir=run", "--config.train.x=1")
    code, _, err = mempo("train", *words, cwd=tmp_path)
    assert code == 2
    assert error in err
    assert err.count("\n") == 1


def test_a_file_of_the_current_folder_is_taken_first(mempo, tmp_path):
    (tmp_path / "base.py").write_text("def get_config():\n    return {}")
    _, _, err = mempo("train", "--config=base", "--workdir=run", cwd=tmp_path)
    assert "--config=base: expected get_config() to return a ConfigDict" in err


def test_a_launcher_does_its_work_with_ones_own_config(mempo, tmp_path):
    (tmp_path / "own.py").write_text(OWN_CONFIG)
    few = "--config.train.demonstrations=3"
    words = ("--config=own.py", "--demonstrations=out.jsonl", few)
    code, out, err = mempo("cold_start", *words, cwd=tmp_path)
    assert code == 0, err
    assert out == "out.jsonl: 3 demonstrations\n"
    assert (tmp_path / "out.jsonl").read_text().count("\n") == 3


def test_help_of_a_launcher_is_typed_as_it_stands(mempo, tmp_path):
    code, out, _ = mempo("train", "--help", cwd=tmp_path)
    assert code == 0
    assert "    mempo train --config=configs/base.py --workdir=DIR" in out
    assert "experiments" not in out
