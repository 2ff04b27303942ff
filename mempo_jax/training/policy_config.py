"""The config that a policy was made with, kept in its directory.

A policy is of use with the settings it learnt under: instructions, context rule,
bank. So the directory of an exported policy holds them as ``mempo_config.json``, and
whoever is given the directory alone can run it.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from mempo_jax.settings import ConfigError

FILE = "mempo_config.json"


def write_config(directory: pathlib.Path, config: Mapping[str, Any]) -> None:
    """Writes the config beside the weights in ``directory``, which must exist."""
    text = json.dumps(config, indent=1, sort_keys=True)
    (directory / FILE).write_text(text + "\n", encoding="utf-8")


def read_config(directory: str) -> dict[str, Any]:
    """The config of a policy: its own, else that of the run it lies in (RUN/policy).

    Raises:
      ConfigError: there is none, or it is damaged.
    """
    path = pathlib.Path(directory)
    for file in (path / FILE, path.parent / "config.json"):
        if file.is_file():
            return read_json(file)
    raise ConfigError(
        f"{directory}: expected {FILE} in it, or the config.json of its run beside it, "
        "found neither; give the config that it was trained with"
    )


def read_json(file: pathlib.Path) -> dict[str, Any]:
    """The config in ``file``; ConfigError where it cannot be read as one."""
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: expected a config as JSON: {error}") from error
    if not isinstance(config, dict) or "context" not in config:
        raise ConfigError(
            f"{file}: expected the config of a run, a JSON object of its sections; "
            "copy it again from the run, or give a config"
        )
    return config
