"""The record beside a checkpoint's arrays: metadata, names, shapes and a checksum."""

from __future__ import annotations

import json
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any

import jax

from mempo_jax.settings import ConfigError


def make_record(state: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a state that is saved with this metadata."""
    # as JSON gives it back: tuples are lists, and the keys are strings
    metadata = json.loads(json.dumps(dict(metadata)))
    record = {"metadata": metadata, "arrays": _arrays(state)}
    return record | {"checksum": checksum(record)}


def checksum(record: Mapping[str, Any]) -> int:
    """CRC-32 of the record, whatever order and spacing it was written in."""
    content = {"metadata": record["metadata"], "arrays": record["arrays"]}
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _arrays(tree: Any) -> dict[str, list[Any]]:
    """[shape, dtype] of each array by its path, as in ``params/layers/mlp``."""
    flat, _ = jax.tree.flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): [
            list(leaf.shape),
            str(leaf.dtype),
        ]
        for path, leaf in flat
    }


def check_same_arrays(found: Any, target: Any, where: pathlib.Path) -> None:
    """Raises ConfigError where a record's ``arrays`` are not those of ``target``."""
    wanted = _arrays(target)
    if found == wanted:
        return
    name = min(name for name in found | wanted if found.get(name) != wanted.get(name))
    raise ConfigError(
        f"{where}: {name} is {found.get(name, 'absent')} in the checkpoint, and the"
        f" config makes it {wanted.get(name, 'absent')}; continue a run with the"
        " config that it began with, or choose another workdir"
    )
