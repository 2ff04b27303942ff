"""The command line as a user types it: values, and one clear line for mistakes."""

import copy
import importlib
import pathlib
import subprocess
import sys

import pytest
from absl import flags as absl_flags
from ml_collections import ConfigDict

from experiments import flags
from experiments.__main__ import COMMANDS
from experiments.launch import launch
from mempo_jax.settings import ConfigError

ROOT = pathlib.Path(__file__).parents[2]
OF_A_RUN = ("evaluate", "report", "doctor")
CONFIG = """
from ml_collections import ConfigDict

def get_config():
    return ConfigDict({
        "seed": 1,
        "sampling": {"group_size": 8, "temperature": 0.9, "top_k": None},
        "credit": {"modes": ("uniform",), "gammas": (0.5, 1.0), "none": ()},
        "memory": {"enabled": True},
        "env": {"data_dir": ""},
    })
"""


@pytest.fixture
def config_file(tmp_path):
    (tmp_path / "base.py").write_text(CONFIG)
    return tmp_path / "base.py"


def options():
    made = flags.new_options()
    absl_flags.DEFINE_string("workdir", None, "a directory", flag_values=made)
    absl_flags.DEFINE_integer("tasks", 0, "how many", flag_values=made)
    return made


def parse(config_file, *words):
    words = [f"--config={config_file}", "--workdir=w", *words]
    return flags.parse(words, options(), required=("config", "workdir"))


def test_plain_run_reads_the_file_and_the_options(config_file):
    command = parse(config_file, "--tasks=3")
    assert isinstance(command.config, ConfigDict)
    assert command.config.sampling.group_size == 8
    assert (command.options.workdir, command.options.tasks) == ("w", 3)
    assert command.overrides == {}


@pytest.mark.parametrize(
    ("word", "path", "expected"),
    [
        ("sampling.group_size=16", "sampling.group_size", 16),
        ("sampling.temperature=1", "sampling.temperature", 1.0),
        ("sampling.temperature=1e-3", "sampling.temperature", 0.001),
        ("sampling.top_k=5", "sampling.top_k", 5),
        ("sampling.top_k=none", "sampling.top_k", None),
        ("memory.enabled=false", "memory.enabled", False),
        ("memory.enabled=True", "memory.enabled", True),
        ("env.data_dir=/a=b", "env.data_dir", "/a=b"),
        ("env.data_dir=7", "env.data_dir", "7"),
        ("env.data_dir=", "env.data_dir", ""),
        (
            "credit.modes=uniform,attribution",
            "credit.modes",
            ("uniform", "attribution"),
        ),
        ("credit.modes=('a','b')", "credit.modes", ("a", "b")),
        ("credit.modes=('a',)", "credit.modes", ("a",)),
        ("credit.modes=('a')", "credit.modes", ("a",)),
        ("credit.modes=[a, b]", "credit.modes", ("a", "b")),
        ("credit.modes=ops_only", "credit.modes", ("ops_only",)),
        ("credit.modes=", "credit.modes", ()),
        ("credit.modes=()", "credit.modes", ()),
        ("credit.gammas=1,0.25", "credit.gammas", (1.0, 0.25)),
        ("credit.gammas=(1, 2)", "credit.gammas", (1.0, 2.0)),
        ("credit.none=a,2", "credit.none", ("a", 2)),
    ],
)
def test_overrides_take_the_type_of_what_they_replace(
    config_file, word, path, expected
):
    command = parse(config_file, f"--config.{word}")
    value = command.config
    for part in path.split("."):
        value = value[part]
    assert value == expected
    assert type(value) is type(expected)
    assert command.overrides == {path: expected}


def test_a_value_may_stand_apart(config_file):
    command = parse(config_file, "--config.seed", "-3", "--config.memory.enabled", "no")
    assert command.config.seed == -3
    assert command.config.memory.enabled is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--config.sampling.grup_size=4"],
            "config.sampling.grup_size: unknown field; the nearest is"
            " config.sampling.group_size",
        ),
        (
            ["--config.group_size=4"],
            "config.group_size: unknown field; the nearest is"
            " config.sampling.group_size",
        ),
        (
            ["--config.seed.x=4"],
            "config.seed.x: unknown field; the nearest is config.seed",
        ),
        (
            ["--config.sampling.group_size=eight"],
            "config.sampling.group_size: expected int, got 'eight'",
        ),
        (
            ["--config.sampling.group_size=8.5"],
            "config.sampling.group_size: expected int, got '8.5'",
        ),
        (
            ["--config.sampling.temperature=inf"],
            "config.sampling.temperature: expected float, got 'inf'",
        ),
        (
            ["--config.memory.enabled=maybe"],
            "config.memory.enabled: expected bool, got 'maybe'",
        ),
        (
            ["--config.credit.gammas=1,x"],
            "config.credit.gammas[1]: expected float, got 'x'",
        ),
        (
            ["--config.sampling=4"],
            "config.sampling: this is a section; set one of its fields: group_size,"
            " temperature, top_k",
        ),
        (
            ["--config.seed"],
            "--config.seed: expected a value, as in --config.seed=VALUE",
        ),
        (["--wrkdir=x"], "--wrkdir: unknown option; the nearest is --workdir"),
        (["--zzz=x"], "--zzz: unknown option; see --help"),
        (["--config.zzz=4"], "config.zzz: unknown field; configs/base.py has all"),
        (["stray"], "stray: unknown argument; options begin with --, as in --config"),
        (
            ["--tasks=many"],
            "flag --tasks=many: invalid literal for int() with base 10: 'many'; see"
            " --help",
        ),
    ],
)
def test_mistakes_are_one_line_that_names_the_remedy(config_file, words, message):
    with pytest.raises(ConfigError) as caught:
        parse(config_file, *words)
    assert str(caught.value) == message


def test_a_config_file_that_is_none(tmp_path, config_file):
    with pytest.raises(ConfigError, match=r"no such file; the nearest is .*base\.py"):
        flags.load_config(str(tmp_path / "bse.py"))
    config_file.write_text("x = 1")
    with pytest.raises(ConfigError, match=r"expected it to define get_config"):
        flags.load_config(str(config_file))
    config_file.write_text("def get_config():\n    return {}")
    with pytest.raises(ConfigError, match=r"return a ConfigDict, got dict"):
        flags.load_config(str(config_file))


OF_THE_FILE = "def get_config():\n    return "


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (OF_THE_FILE + "1 / 0", "line 2: ZeroDivisionError: division by zero"),
        (OF_THE_FILE + "[", "line 2: SyntaxError: '[' was never closed"),
        ("def get_config(x):\n    return x", "TypeError: get_config() missing 1"),
        ("\nimport nowhere", "line 2: ModuleNotFoundError: No module named 'nowhere'"),
        ("from mempo_jax import nowhere", "line 1: ImportError: cannot import name"),
        ("import configs", "expected 'from mempo_jax.configs import ...' in it"),
        ("x = y", "line 1: NameError: name 'y' is not defined"),
        ("raise SystemExit", "line 1: SystemExit: no message"),
        ("open('/nowhere/at/all')", "line 1: FileNotFoundError: [Errno 2]"),
        ("import json\n\njson.loads('')", "line 3: JSONDecodeError: Expecting value"),
        ("get_config = 3", "expected it to define get_config()"),
        ("\0", "SyntaxError: source code"),
    ],
)
def test_a_fault_inside_a_config_file_is_one_line_that_names_its_line(
    config_file, monkeypatch, content, message
):
    monkeypatch.setattr(sys, "path", [x for x in sys.path if x not in ("", str(ROOT))])
    monkeypatch.delitem(sys.modules, "configs", raising=False)
    config_file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        flags.load_config(str(config_file))
    assert str(caught.value).startswith(f"--config={config_file}: {message}")


def test_a_fault_in_a_file_that_the_config_imports_names_that_file(
    config_file, monkeypatch
):
    monkeypatch.syspath_prepend(config_file.parent)
    helper = config_file.with_name("helper_of_a_config.py")
    helper.write_text("x = (")
    config_file.write_text("import helper_of_a_config")
    with pytest.raises(ConfigError) as caught:
        flags.load_config(str(config_file))
    assert f": {helper}, line 1: SyntaxError: " in str(caught.value)


def test_a_relative_path_has_its_lines_named_too(config_file, monkeypatch):
    monkeypatch.chdir(config_file.parent)
    config_file.write_text("x = y")
    with pytest.raises(ConfigError, match=r"^--config=base\.py: line 1: NameError"):
        flags.load_config("base.py")


def options_of(name):
    """A launcher's options, without the values of another test."""
    return copy.deepcopy(importlib.import_module(f"experiments.{name}").OPTIONS)


@pytest.mark.parametrize("name", [n for n in COMMANDS if n not in OF_A_RUN])
def test_a_wrong_path_is_what_each_launcher_speaks_of_first(name):
    """Not of another option that is missing: that comes with the next try."""
    with pytest.raises(ConfigError, match=r"^--config=/nope\.py: no such file$"):
        flags.parse(["--config=/nope.py"], options_of(name), required=("workdir",))


@pytest.mark.parametrize("word", ["--config=/nope.py", "--config.seed=1", "--config"])
@pytest.mark.parametrize("name", OF_A_RUN)
def test_what_looks_at_a_run_takes_no_config(name, word):
    with pytest.raises(ConfigError, match=r"leave it out; the config of --workdir is"):
        flags.parse([word], options_of(name), required=("workdir",))


def test_no_launcher_ends_in_a_traceback_for_a_wrong_config(capsys):
    for name in COMMANDS:
        main = importlib.import_module(f"experiments.{name}").main
        with pytest.raises(SystemExit) as caught:
            launch(main, options_of(name), argv=["--config=/nope.py"])
        assert caught.value.code == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith("error: --config")


def test_a_directory_is_no_config(tmp_path):
    (tmp_path / "some.py").mkdir()
    with pytest.raises(ConfigError, match="expected a python file, got a directory"):
        flags.load_config(str(tmp_path / "some.py"))


def test_no_config_is_an_error_unless_the_launcher_says_so():
    with pytest.raises(ConfigError, match=r"--config is missing: .*; see --help"):
        flags.parse(["--workdir=w"], options())
    command = flags.parse(["--workdir=w"], options(), required=())
    assert command.config is None
    with pytest.raises(ConfigError, match=r"give --config=FILE\.py as well"):
        flags.parse(["--workdir=w", "--config.seed=1"], options(), required=())


def test_a_required_option_is_asked_for(config_file):
    with pytest.raises(ConfigError, match="--workdir is missing: a directory"):
        flags.parse([f"--config={config_file}"], options(), required=("workdir",))


PROGRAM = '''
"""What the program does."""
from experiments import flags
from experiments.launch import launch

def main(command):
    if command.config.seed == 13:
        raise RuntimeError("a bug")
    return command.config.seed - 2

launch(main, flags.new_options())
'''


@pytest.mark.parametrize(
    ("word", "code", "lines", "start"),
    [
        ("--config.seed=2", 0, 0, ""),
        ("--config.seed=5", 3, 0, ""),
        ("--help", 0, 0, ""),
        ("--confg=x", 2, 1, "error: --confg: unknown option; the nearest is --config"),
        ("--config.sed=2", 2, 1, "error: config.sed: unknown field; the nearest is"),
        ("--config.seed=x", 2, 1, "error: config.seed: expected int, got 'x'"),
        ("--config.seed=13", 1, None, "Traceback"),
    ],
)
def test_a_program_ends_in_one_line_and_a_code(config_file, word, code, lines, start):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"--config={config_file}", word],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert done.stderr.startswith(start)
    if lines is not None:
        assert len(done.stderr.splitlines()) == lines


def test_a_message_of_several_lines_becomes_one(capsys):
    def main(command):
        raise ConfigError(f"first\n  second {command.options.workdir}")

    with pytest.raises(SystemExit) as caught:
        launch(main, options(), required=(), argv=["--workdir=x"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: first second x\n"
