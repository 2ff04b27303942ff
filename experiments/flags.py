"""The command line: ``--config=FILE.py``, ``--config.FIELD=VALUE``, and a few options.

Options are absl flags, in a ``FlagValues`` of each launcher's own. Overrides are typed
by the value that they replace. A field that does not exist, or a value of another type,
is a ``ConfigError`` of one line that names the nearest field.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib.util
import math
import pathlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from mempo_jax.settings import ConfigError, local_path, nearest

PREFIX = "--config."
# Beside this folder in a checkout and in an installed package alike.
SHIPPED = pathlib.Path(__file__).parents[1] / "configs"
BOOLEANS = {"true": True, "1": True, "yes": True} | {
    "false": False,
    "0": False,
    "no": False,
}


@dataclasses.dataclass(frozen=True)
class Command:
    """A parsed command line.

    Attributes:
      config: None if no ``--config`` was given.
      overrides: changed fields by dotted name, without the leading ``config.``.
      options: the launcher's own flags, by attribute.
    """

    config: ConfigDict | None
    overrides: dict[str, Any]
    options: flags.FlagValues


def new_options(*, config: bool = True) -> flags.FlagValues:
    """Flags for one launcher, with ``--config`` and ``--help`` among them.

    A launcher adds its own by ``flags.DEFINE_string(..., flag_values=OPTIONS)``.

    Args:
      config: whether there is ``--config``; without, the config is that of a run.
    """
    options = flags.FlagValues()
    if config:
        flags.DEFINE_string(
            "config",
            None,
            "a config file, or the name of one of ours, such as base; "
            "--config.FIELD=VALUE overrides one of its fields",
            flag_values=options,
        )
    flags.DEFINE_bool(
        "help", False, "show this help", short_name="h", flag_values=options
    )
    return options


def parse(
    argv: Sequence[str],
    options: flags.FlagValues,
    *,
    required: Sequence[str] = ("config",),
) -> Command:
    """Reads a launcher's command line.

    Args:
      argv: the arguments, without the program's name.
      options: the launcher's flags, from ``new_options``.
      required: names of the options that must be given.

    Raises:
      ConfigError: an unknown option or field, a value that does not fit, or a config
        file that is missing or not one.
    """
    if "config" not in options:
        _refuse_config(argv)
    pairs, rest = _split_overrides(argv)
    _parse_options(rest, options)
    if options.help:
        return Command(None, {}, options)
    # Faults of what was typed come before what was not: the file is read first, so that
    # a wrong path is not hidden behind another option that is missing.
    path = options.config if "config" in options else None
    config = None if path is None else load_config(path)
    for name in required:
        if not options[name].value:
            about = options[name].help
            raise ConfigError(f"--{name} is missing: {about}; see --help")
    if config is None:
        if pairs:
            raise ConfigError(f"{PREFIX}{pairs[0][0]}: give --config=FILE.py as well")
        return Command(None, {}, options)
    overrides = {path: override(config, path, text) for path, text in pairs}
    return Command(config, overrides, options)


def _refuse_config(argv: Sequence[str]) -> None:
    """Raises a ConfigError if ``--config`` or one of its fields is among the words."""
    for word in argv:
        name = word.partition("=")[0]
        if name == "--config" or name.startswith(PREFIX):
            raise ConfigError(f"{name}: leave it out; the config of --workdir is taken")


def _parse_options(words: Sequence[str], options: flags.FlagValues) -> None:
    try:
        _, *stray = options(["launcher", *words])
    except flags.UnrecognizedFlagError as error:
        near = nearest(error.flagname, [name for name in options if len(name) > 1])
        hint = f"the nearest is --{near}" if near else "see --help"
        raise ConfigError(f"--{error.flagname}: unknown option; {hint}") from error
    except flags.Error as error:
        raise ConfigError(f"{error}; see --help") from error
    if stray:
        raise ConfigError(
            f"{stray[0]}: unknown argument; options begin with --, as in --config"
        )


def load_config(path: str) -> ConfigDict:
    """The ConfigDict that ``get_config()`` of a config file returns.

    Args:
      path: a python file; or one of ours by its name, as ``base`` or
        ``configs/base.py``, if the current folder has no such file.

    Raises:
      ConfigError: no such file, or it is no config.
    """
    file = config_file(path).absolute()  # as tracebacks name it
    spec = importlib.util.spec_from_file_location(f"config_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--config={path}: expected a python file (.py)")
    module = importlib.util.module_from_spec(spec)
    with _faults_in_one_line(path, file):
        spec.loader.exec_module(module)
    if not callable(getattr(module, "get_config", None)):
        raise ConfigError(f"--config={path}: expected it to define get_config()")
    with _faults_in_one_line(path, file):
        config = module.get_config()
    if not isinstance(config, ConfigDict):
        raise ConfigError(
            f"--config={path}: expected get_config() to return a ConfigDict, got"
            f" {type(config).__name__}"
        )
    return config


@contextlib.contextmanager
def _faults_in_one_line(path: str, file: pathlib.Path) -> Iterator[None]:
    """Makes whatever a config file raises a ConfigError that names the line of it."""
    try:
        yield
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        if error.name == "configs":
            raise ConfigError(
                f"--config={path}: expected 'from mempo_jax.configs import ...' in it; "
                "'configs' alone is found in a checkout only"
            ) from error
        raise ConfigError(_fault(path, file, error)) from error
    # A file that ends the process would otherwise end the launcher without a word.
    except (Exception, SystemExit) as error:
        raise ConfigError(_fault(path, file, error)) from error


def _fault(path: str, file: pathlib.Path, error: BaseException) -> str:
    """Says in which line of a config file an error arose, and what Python says of it.

    The innermost line of the file itself is named: below it is the code of others.
    """
    where, line = str(file), 0
    if isinstance(error, SyntaxError):  # of this file, or of one that it imports
        where, line = error.filename or where, error.lineno or 0
    else:
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == str(file):
                line = frame.lineno or 0
    place = f"line {line}" if where == str(file) else f"{where}, line {line}"
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    found = f"{place}: " if line else ""
    return f"--config={path}: {found}{type(error).__name__}: {text or 'no message'}"


def config_file(path: str) -> pathlib.Path:
    """The file that ``--config=path`` means.

    Args:
      path: as for ``load_config``.

    Raises:
      ConfigError: no such file; the error has the nearest name.
    """
    file = local_path(path, "--config")
    with_suffix = file if file.suffix == ".py" else file.parent / f"{file.name}.py"
    candidates = [file, with_suffix]
    if file.parent in (pathlib.Path(), pathlib.Path("configs")):
        candidates.append(SHIPPED / with_suffix.name)
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    if file.is_dir():
        raise ConfigError(f"--config={path}: expected a python file, got a directory")
    folders = (SHIPPED, file.parent)  # for a name in both, the file beside ``path``
    # By stems: the suffix, which all have, would make any two names alike.
    files = {each.stem: each for folder in folders for each in folder.glob("[!_]*.py")}
    near = nearest(with_suffix.stem, files)
    shown = near and (near if files[near].parent == SHIPPED else files[near])
    hint = f"; the nearest is {shown}" if near else ""
    raise ConfigError(f"--config={path}: no such file{hint}")


def override(config: ConfigDict, path: str, text: str) -> Any:
    """Sets one field of a config from the text of the command line.

    Args:
      config: changed in place.
      path: of the field, dotted, without the leading ``config.``.
      text: the new value, see ``parse_value``.

    Returns:
      The new value.

    Raises:
      ConfigError: there is no such field, or the value is of another type.
    """
    *parents, name = path.split(".")
    part: Any = config
    for parent in parents:
        part = part[parent] if isinstance(part, ConfigDict) and parent in part else None
    if not isinstance(part, ConfigDict) or name not in part:
        near = nearest(path, _leaves(config))
        raise ConfigError(
            f"config.{path}: unknown field; "
            + (f"the nearest is config.{near}" if near else "configs/base.py has all")
        )
    old = part[name]
    if isinstance(old, Mapping | ConfigDict):
        raise ConfigError(
            f"config.{path}: this is a section; set one of its fields:"
            f" {', '.join(sorted(old))}"
        )
    expected = type(old) if old is not None else part.get_type(name)
    value = parse_value(text, expected, old, f"config.{path}")
    with part.unlocked(), part.ignore_type():
        part[name] = value
    return value


def parse_value(text: str, expected: type, old: Any, path: str) -> Any:
    """``text`` as a value of the type ``expected``, that of the present value ``old``.

    Tuples are written ``a,b`` or ``('a', 'b')``; their elements take the type of the
    old ones. A field whose value is None takes any Python literal, else the text.

    Args:
      text: from the command line.
      expected: type of the field.
      old: its present value.
      path: what the error calls the field.

    Raises:
      ConfigError: the text is no value of that type.
    """
    if issubclass(expected, (tuple, list)):
        return _parse_tuple(text, old, path)
    if old is None and text.lower() == "none":
        return None
    if expected is type(None):
        return _literal(text)
    if expected is str:
        return text
    try:
        value = _PARSERS[expected](text)
    except KeyError:
        raise ConfigError(
            f"{path}: a value of type {expected.__name__} cannot be given on the"
            " command line; change it in a config file"
        ) from None
    except ValueError:
        raise ConfigError(
            f"{path}: expected {expected.__name__}, got {text!r}"
        ) from None
    return value


def _parse_tuple(text: str, old: Sequence[Any] | None, path: str) -> tuple[Any, ...]:
    stripped = text.strip()
    if stripped[:1] in ("(", "["):
        items = _literal(stripped)
        if isinstance(items, str):  # brackets around bare words: (a, b)
            items = _split(stripped.strip("()[]"))
    else:
        items = _split(stripped)
    if not isinstance(items, (tuple, list)):
        items = (items,)  # ('a') is a string to Python; here it means one element
    kinds = {type(each) for each in old or ()}
    if len(kinds) != 1:
        return tuple(
            _literal(each) if isinstance(each, str) else each for each in items
        )
    (kind,) = kinds
    return tuple(
        parse_value(str(each), kind, each, f"{path}[{i}]")
        for i, each in enumerate(items)
    )


def _split(text: str) -> list[str]:
    return [each.strip().strip("'\"") for each in text.split(",") if each.strip()]


def _bool(text: str) -> bool:
    if text.lower() not in BOOLEANS:
        raise ValueError(text)
    return BOOLEANS[text.lower()]


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


_PARSERS: Mapping[type, Callable[[str], Any]] = {bool: _bool, int: int, float: _float}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _leaves(config: ConfigDict, prefix: str = "") -> list[str]:
    names = []
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            names += _leaves(value, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names


def _split_overrides(argv: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """The (field, text) pairs of ``--config.FIELD`` arguments, and the other words."""
    pairs, rest = [], []
    waiting = list(argv)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith(PREFIX):
            rest.append(word)
            continue
        flag, equals, text = word.partition("=")
        if not equals:
            if not waiting or waiting[0].startswith("--"):
                raise ConfigError(f"{flag}: expected a value, as in {flag}=VALUE")
            text = waiting.pop(0)
        pairs.append((flag[len(PREFIX) :], text))
    return pairs, rest
