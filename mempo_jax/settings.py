"""From a config section to a frozen dataclass: every field checked, none defaulted.

A config is any mapping of sections; each section becomes one frozen dataclass whose
fields have no defaults, so that a default value can live in ``configs/`` alone. What
does not fit is a ``ConfigError`` that names the field by its full path. A field's type
may hold a bound (``Annotated``, ``PositiveInt``), which ``check_bounds`` applies.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import math
import os
import pathlib
import re
import types
import typing
import warnings
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Annotated, Any, TypeVar

T = TypeVar("T")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Shares of common letters from which one name may be meant by another: of the last part
# of dotted names, and of the names as they are.
_ALIKE, _ALIKE_WHOLE = 0.6, 0.75
# The largest difference between the sampler's and the trainer's log-prob of a token, in
# nats, by what both compute with: two programs that sum in another order. Bfloat16
# keeps 8 bits: SmolLM2-135M had a gap of 0.31 among 1,504 tokens (0.03 on average). A
# wrong context, position or temperature costs some token several nats in either.
LOG_PROB_GAPS = {"float32": 1e-3, "bfloat16": 1.0}


# The form of saved configs, runs and policies, written into each as ``VERSION_KEY``. It
# is raised when an older mempo_jax would misread what a newer one writes. Version 1 is
# what was saved before there was a number.
SAVED_VERSION = 2
VERSION_KEY = "version"
# Old dotted name -> new one, of fields that were renamed since they were first saved.
RENAMED_FIELDS: dict[str, str] = {}


class ConfigError(ValueError):
    """A setting that cannot be used; its message fits on one line and names it."""


def check_version(saved: Mapping[str, Any], source: str | os.PathLike) -> None:
    """Refuses what a newer mempo_jax has saved, since its fields may mean other things.

    Args:
      saved: a JSON object that may hold ``VERSION_KEY``.
      source: its file, for the error.

    Raises:
      ConfigError: it is of a newer version, or its version is no number.
    """
    version = saved.get(VERSION_KEY, 1)
    is_number = isinstance(version, int) and not isinstance(version, bool)
    if is_number and 1 <= version <= SAVED_VERSION:
        return
    newer = is_number and version > SAVED_VERSION
    remedy = (
        "a newer mempo_jax saved it; install that one" if newer else "it is damaged"
    )
    raise ConfigError(
        f"{os.fspath(source)}: expected saved version 1 to {SAVED_VERSION}, got "
        f"{version!r}: {remedy}"
    )


def with_version(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config in the form in which it is saved.

    Args:
      config: nested sections.
    """
    return {VERSION_KEY: SAVED_VERSION, **config}


def migrated(saved: Mapping[str, Any], source: str | os.PathLike) -> dict[str, Any]:
    """Returns a saved config without its version and with today's names of its fields.

    It warns once, by name, of fields that were renamed.

    Args:
      saved: nested sections, as read from JSON; not changed.
      source: its file, for the error and the warning.

    Raises:
      ConfigError: as ``check_version``.
    """
    check_version(saved, source)
    config = copy.deepcopy({k: v for k, v in saved.items() if k != VERSION_KEY})
    renamed = []
    for old, new in RENAMED_FIELDS.items():
        section, _, field = old.rpartition(".")
        fields = _section_of(config, section)
        if fields is None or field not in fields:
            continue
        value = fields.pop(field)
        section, _, field = new.rpartition(".")
        # A section that came later may not be there yet.
        target = _section_of(config, section, make=True)
        if target is not None:
            target.setdefault(field, value)
            renamed.append(f"{old} is now {new}")
    if renamed:
        text = f"{os.fspath(source)} was saved before some fields were renamed"
        warnings.warn(f"{text}: {', '.join(renamed)}", stacklevel=2)
    return config


def add_missing(
    config: dict[str, Any],
    defaults: Mapping[str, Any],
    wanted: Container[str] | None = None,
    prefix: str = "",
) -> list[str]:
    """Adds the fields that the sections of a saved config lack.

    A whole section of the config is never added: without one it is no config of a run.
    Sections inside of sections are, since new ones came with new kinds of tasks.

    Args:
      config: nested sections; changed.
      defaults: the same sections, complete.
      wanted: dotted names of the fields that may be added; None for all.
      prefix: the dotted name of the section ``config``, with its last dot.

    Returns:
      "name = value" of each field that was added.
    """
    added = []
    for field, value in defaults.items():
        name = f"{prefix}{field}"
        if isinstance(value, Mapping):
            part = config.get(field, {} if prefix else None)
            if isinstance(part, dict):
                added += add_missing(part, value, wanted, f"{name}.")
                if part:
                    config[field] = part
        elif prefix and field not in config and (wanted is None or name in wanted):
            config[field] = value
            added.append(f"{name} = {value!r}")
    return added


def _section_of(config: dict, name: str, make: bool = False) -> dict | None:
    """The section of a dotted name; None if there is none, or something else."""
    for part in name.split(".") if name else ():
        config = config.setdefault(part, {}) if make else config.get(part)
        if not isinstance(config, dict):
            return None
    return config


def local_path(path: str | os.PathLike, field: str) -> pathlib.Path:
    """A path of this machine's file system, with a leading ``~`` expanded.

    Args:
      path: as the user gave it.
      field: what the error calls it, as in ``--workdir``.

    Raises:
      ConfigError: an address such as ``gs://bucket``, or the home of an unknown user.
    """
    text = os.fspath(path)
    if _SCHEME.match(text):
        raise ConfigError(
            f"{field}={text}: expected a directory of the file system, got an address; "
            "mount the bucket, or use a local directory and copy it afterwards"
        )
    try:
        return pathlib.Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{field}={text}: {error}") from error


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name most like ``name``; None if none is like it at all.

    Dotted names are compared by their last part first: a field looked for in the
    wrong section is found by its own name.

    Args:
      name: what the user wrote.
      names: what there is.
    """
    leaf = name.rpartition(".")[2]

    def likeness(other: str) -> tuple[float, float]:
        other_leaf = other.rpartition(".")[2]
        overall = difflib.SequenceMatcher(None, name, other).ratio()
        return (_same(leaf, other_leaf) + overall, overall)

    best = max(sorted(names), key=likeness, default=None)
    if best is None:
        return None
    total, overall = likeness(best)
    # Names of one section are alike by its name alone.
    return best if total - overall >= _ALIKE or overall >= _ALIKE_WHOLE else None


def _same(left: str, right: str) -> float:
    return difflib.SequenceMatcher(None, left, right).ratio()


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Fields of nested sections by dotted name; tuples as lists, as JSON has them.

    Args:
      config: nested sections.
      prefix: of all names, with its dot.
    """
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            listed = list(value) if isinstance(value, tuple) else value
            flat[f"{prefix}{name}"] = listed
    return flat


def section(cls: type[T], config: Mapping[str, Any], name: str) -> T:
    """Builds the frozen dataclass ``cls`` from the section ``config[name]``.

    Args:
      cls: a dataclass whose fields are annotated with bool, int, float, str, a tuple
        of these, an optional of these, a ``Literal``, or another such dataclass.
      config: the whole config, a mapping of sections (lists count as tuples, whole
        numbers as floats; nothing else is converted).
      name: the section's name, dotted where sections nest.

    Raises:
      ConfigError: the section or a field is missing, unknown or of a wrong type.
    """
    value: Any = config
    path = "config"
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = value if isinstance(value, Mapping) else ()
            raise ConfigError(
                f"{path}.{part}: this section is missing{_hint(part, known, path)}"
            )
        value, path = value[part], f"{path}.{part}"
    return build(cls, value, path)


def build(cls: type[T], value: Any, path: str) -> T:
    """Builds ``cls`` from its mapping ``value``, as ``section`` does.

    Args:
      cls: as for ``section``.
      value: the section.
      path: what the errors call it, as in ``config.train``.

    Raises:
      ConfigError: as for ``section``.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: expected a section, got {value!r}")
    types_by_name = typing.get_type_hints(cls)
    fields = [field.name for field in dataclasses.fields(cls)]
    for unknown in (str(key) for key in value if key not in fields):
        candidates = [field for field in fields if field not in value] or fields
        raise ConfigError(
            f"{path}.{unknown}: unknown field{_hint(unknown, candidates, path)}"
        )
    for missing in (field for field in fields if field not in value):
        raise ConfigError(
            f"{path}.{missing}: missing; expected {_spell(types_by_name[missing])}"
        )
    values = {
        field: _typed(types_by_name[field], value[field], f"{path}.{field}")
        for field in fields
    }
    return cls(**values)


def _hint(name: str, names: Iterable[str], path: str) -> str:
    near = nearest(name, names)
    return f"; the nearest is {path}.{near}" if near else ""


def _typed(expected: Any, value: Any, path: str) -> Any:
    """``value`` as the annotation ``expected`` wants it, or a ConfigError."""
    if dataclasses.is_dataclass(expected):
        return build(expected, value, path)
    origin = typing.get_origin(expected)
    if origin in (typing.Union, types.UnionType):
        return _typed_union(expected, value, path)
    if expected is tuple or origin is tuple:
        return _typed_tuple(expected, value, path)
    if origin is typing.Literal:
        fits = value in typing.get_args(expected)
    elif expected is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = fits and math.isfinite(value)
        value = float(value) if fits else value
    elif expected is int:
        fits = isinstance(value, int) and not isinstance(value, bool)
    else:
        fits = expected is Any or isinstance(value, expected)
    if not fits:
        raise ConfigError(f"{path}: expected {_spell(expected)}, got {value!r}")
    return value


def _typed_union(expected: Any, value: Any, path: str) -> Any:
    for option in typing.get_args(expected):
        if option is type(None):
            if value is None:
                return None
            continue
        try:
            return _typed(option, value, path)
        except ConfigError:
            continue
    raise ConfigError(f"{path}: expected {_spell(expected)}, got {value!r}")


def _typed_tuple(expected: Any, value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, (tuple, list)):
        raise ConfigError(f"{path}: expected {_spell(expected)}, got {value!r}")
    items = typing.get_args(expected)
    if not items:
        return tuple(value)
    if len(items) == 2 and items[1] is ...:
        items = (items[0],) * len(value)
    if len(items) != len(value):
        raise ConfigError(f"{path}: expected {len(items)} values, got {value!r}")
    return tuple(
        _typed(item, each, f"{path}[{i}]")
        for i, (item, each) in enumerate(zip(items, value, strict=True))
    )


def _spell(expected: Any) -> str:
    """An annotation in the words of an error."""
    origin = typing.get_origin(expected)
    args = typing.get_args(expected)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(arg) for arg in args)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_spell(arg) for arg in args)
    if origin is tuple:
        inner = [_spell(arg) for arg in args if arg is not ...]
        return f"a tuple of {', '.join(inner)}"
    if expected is type(None):
        return "None"
    if dataclasses.is_dataclass(expected):
        return "a section"
    return getattr(expected, "__name__", str(expected))


@dataclasses.dataclass(frozen=True)
class Bound:
    """What a field may be; metadata of its ``Annotated`` type, see ``check_bounds``.

    Attributes:
      allows: whether a value is within the bound.
      expected: the bound as an error says it.
    """

    allows: Callable[[Any], bool]
    expected: str


def at_least(low: float, note: str = "") -> Bound:
    """A bound from below.

    Args:
      low: the least value that is allowed.
      note: added to what an error says.
    """
    return Bound(lambda value: value >= low, f"at least {low} {note}".rstrip())


def above(low: float, note: str = "") -> Bound:
    """A bound from below.

    Args:
      low: the greatest value that is refused.
      note: added to what an error says.
    """
    return Bound(lambda value: value > low, f"> {low} {note}".rstrip())


def one_of(options: tuple[Any, ...]) -> Bound:
    """A bound that allows a few values.

    Args:
      options: the values.
    """
    return Bound(lambda value: value in options, f"one of {options}")


def _ascend(lengths: tuple[int, ...]) -> bool:
    return bool(lengths) and list(lengths) == sorted(set(lengths)) and lengths[0] >= 1


PositiveInt = Annotated[int, at_least(1)]
NonNegativeInt = Annotated[int, at_least(0)]
PositiveFloat = Annotated[float, above(0)]
NonNegativeFloat = Annotated[float, at_least(0)]
Seconds = Annotated[float, above(0, "seconds")]
Buckets = Annotated[tuple[int, ...], Bound(_ascend, "ascending positive lengths")]


def require(ok: bool, field: str, expected: str, got: Any) -> None:
    """Refuses the value of a field unless ``ok``.

    Args:
      ok: whether the value can be used.
      field: its dotted name, without "config.".
      expected: in words, what could be used.
      got: the value.

    Raises:
      ConfigError: not ``ok``.
    """
    if not ok:
        raise ConfigError(f"config.{field}: expected {expected}, got {got!r}")


def check_bounds(values: Any, section: str) -> None:
    """Checks each field whose type is ``Annotated`` with a ``Bound``.

    Args:
      values: an instance of a section's dataclass.
      section: its dotted name, for the error.

    Raises:
      ConfigError: a value is out of bounds.
    """
    # The annotations are strings until they are looked up in the class's own module.
    hints = typing.get_type_hints(type(values), include_extras=True)
    for field, hint in hints.items():
        for bound in getattr(hint, "__metadata__", ()):
            value = getattr(values, field)
            require(bound.allows(value), f"{section}.{field}", bound.expected, value)
