"""README and docs say what is true: their code runs, their links and names exist.

A fenced block is run by its language and by a comment above it, which readers of the
page do not see:

    <!-- test: skip (REASON) -->     not run
    <!-- test: parse (REASON) -->    the command line and its config are checked only
    <!-- test: tiny [FIELD=VALUE ...] -->  with the overrides of ``TINY``, and these
    <!-- test: with FIELD=VALUE ... -->    with these overrides alone
    <!-- test: fails -->             must end with exit code 2 and one line of error
    <!-- test: make -->              each is a target of the Makefile
    <!-- test: file NAME -->         a python block that is also written to NAME
    <!-- test: output -->            a text block: what the block before it printed

Without one, python is executed (all blocks of a page in one namespace) and each command
of bash is run as it is. A command for which there is no rule fails the test.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from experiments.flags import load_config, override
from mempo_jax.config import from_config
from tests.docs_pages import (
    PAGES,
    ROOT,
    RULES,
    TINY,
    Block,
    blocks_of,
    check_target,
    prose_of,
)

WITH_CONFIG = ("train", "cold_start", "trace", "plan")
LAUNCHERS = (*WITH_CONFIG, "evaluate", "report", "doctor", "chat")
NOT_RUN = ("source .venv/bin/activate",)
# Numbers are the same compiled well or badly, and nothing here compares them.
XLA_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)


class Reader:
    """Does what a page says, in a folder of the page's own."""

    def __init__(self, process: subprocess.Popen, folder: pathlib.Path) -> None:
        self._process = process
        self._folder = folder

    def read(self, page: str) -> None:
        """Runs every block of a page; an assertion names the place that fails."""
        printed = ""
        for block in blocks_of(page):
            pattern = RULES.get(block.rule)
            ok = pattern is not None and re.fullmatch(pattern, block.marker)
            assert ok, f"{block.place}: no such rule: {block.marker!r}"
            printed = self._run(page, block, printed)

    def _run(self, page: str, block: Block, printed: str) -> str:
        """Runs one block; returns what it printed."""
        if block.rule == "skip":
            return ""
        if block.language == "python":
            if block.rule == "file":
                (self._folder / block.marker.split()[1]).write_text(block.text)
            done = self.ask(page, python=block.text, name=block.place)
            assert done["code"] == 0, f"{block.place}\n{done['err']}"
            return done["out"]
        if block.language == "bash":
            commands = commands_of(block.text)
            return "".join(self._command(page, block, each) for each in commands)
        if block.rule == "output":
            assert block.text == printed, f"{block.place}: it printed\n{printed}"
        elif block.language == "json":
            json.loads(block.text)
        else:
            language = block.language
            assert language == "text", f"{block.place}: no rule for {language!r}"
        return ""

    def _command(self, page: str, block: Block, command: str) -> str:
        if command in NOT_RUN:
            return ""
        if command.startswith("make "):
            for target in shlex.split(command, comments=True)[1:]:
                check_target(target, block.place)
            return ""
        env, name, words = launcher_of(command)
        assert name, f"{block.place}: no rule runs {command!r}; mark it as skip"
        if name in WITH_CONFIG:
            words += [f"--config.{field}" for field in block.overrides]
        if block.rule == "parse":
            check_config(words, block.place)
            return ""
        if name == "plan":  # it sets how many devices JAX shall have
            code, out, err = run_alone(name, words, self._folder)
        else:
            request = {"module": f"experiments.{name}", "words": words, "env": env}
            done = self.ask(page, **request, input="ann phone is 23\n")
            code, out, err = done["code"], done["out"], done["err"]
        expected = 2 if block.rule == "fails" else 0
        assert code == expected, f"{block.place}: {command}\n{out[-2000:]}{err[-4000:]}"
        return out if code == 0 else err[err.index("error: ") :]

    def ask(self, page: str, **request) -> dict:
        """Has the process answer a request."""
        request |= {"folder": str(self._folder), "namespace": page}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"{page}: the process that runs the pages has died"
        return json.loads(line)


def commands_of(text: str) -> list[str]:
    """The commands of a bash block, each on one line, without comments."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [line for line in map(str.strip, lines) if line and line[0] != "#"]


def launcher_of(command: str) -> tuple[dict[str, str], str, list[str]]:
    """(environment, launcher, arguments) of a command; "" if it is no launcher's."""
    words, env = shlex.split(command, comments=True), {}
    while words and re.match(r"[A-Z_]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    if words[:2] == ["python", "-m"] and words[2].startswith("experiments."):
        name, words = words[2].removeprefix("experiments."), words[3:]
    elif words[:1] == ["mempo"]:
        name, words = words[1], words[2:]
    else:
        return env, "", words
    return env, name if name in LAUNCHERS else "", words


def check_config(words: list[str], place: str) -> None:
    """The config of a command line that is not run is one that a run would take."""
    [path] = [w.removeprefix("--config=") for w in words if w.startswith("--config=")]
    config = load_config(str(ROOT / path))
    for word in words:
        if word.startswith("--config."):
            override(config, *word.removeprefix("--config.").split("=", 1))
    try:
        from_config(config.to_dict())
    except ValueError as error:
        pytest.fail(f"{place}: {error}")


def environment(cache: pathlib.Path) -> dict[str, str]:
    """Of the processes that run what the pages show."""
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": XLA_FLAGS,
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def run_alone(name: str, words: list[str], folder: pathlib.Path) -> tuple:
    command = [sys.executable, "-m", f"experiments.{name}", *words]
    env = environment(folder / "compiled")
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """The process that runs what the pages show; one for all of them."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "tests.docs_process"]
    env = environment(tmp_path_factory.mktemp("compiled"))
    errors = (tmp_path_factory.mktemp("errors") / "stderr").open("w")
    with (
        errors,
        subprocess.Popen(command, cwd=ROOT, env=env, stderr=errors, **pipes) as started,
    ):
        yield started
        started.stdin.close()


@pytest.fixture(scope="module")
def run(process, tmp_path_factory) -> pathlib.Path:
    """A tiny run, trained once; every page finds it as runs/base."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "configs").symlink_to(ROOT / "configs")
    words = ["--config=configs/base.py", "--workdir=base"]
    words += [f"--config.{field}" for field in TINY]
    request = {"module": "experiments.train", "words": words, "env": {}, "input": ""}
    done = Reader(process, folder).ask("run", **request)
    assert done["code"] == 0, done["err"]
    return folder / "base"


@pytest.mark.parametrize("page", PAGES)
def test_its_code_runs(page, process, run, tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/base").symlink_to(run)
    Reader(process, tmp_path).read(page)


def test_every_metric_is_explained(run):
    rows = (run / "metrics.jsonl").read_text().splitlines()
    recorded = {name.split("/")[0] for row in rows for name in json.loads(row)}
    page = prose_of("docs/tracking.md")
    tables = [line for line in page.splitlines() if line.startswith("| `")]
    named = {
        name.split("/")[0]
        for line in tables
        for name in re.findall(r"`([a-z0-9_]+(?:/[A-Z]+)?)`", line.split("|")[1])
    }
    assert recorded - {"step"} <= named
