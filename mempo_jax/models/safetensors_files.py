"""Safetensors weights of a directory, single or sharded, as a ``Source``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from mempo_jax.models.families import read_json
from mempo_jax.models.stream import Index, Stored

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_ROWS = 4_096  # of a matrix compared at one time


class SafetensorsFiles:
    """All tensors of the files; see ``stream.Source``."""

    usable = ("F64", "F32", "F16", "BF16")

    def __init__(self, where: Path, files: dict[Path, Any]):
        self.where = str(where)
        self.tensors: dict[str, Stored] = {}
        self.faults: list[str] = []
        self._slices: dict[str, tuple[Path, Any]] = {}
        for path, file in files.items():
            for name in file.keys():  # noqa: SIM118  not a mapping
                if name in self._slices:
                    other = self._slices[name][0].name
                    self.faults.append(f"{name} is in {other} and in {path.name}")
                stored = file.get_slice(name)
                self._slices[name] = path, stored
                shape, dtype = tuple(stored.get_shape()), stored.get_dtype()
                self.tensors[name] = Stored(shape, dtype)

    def read(self, name: str, index: Index) -> np.ndarray:
        path, stored = self._slices[name]
        with _readable(path):
            return stored[index]

    def drop_derived(self, tied: bool) -> None:
        """Forgets what is no parameter: rotary tables, a copy of tied embeddings."""
        for name in [n for n in self.tensors if n.endswith("rotary_emb.inv_freq")]:
            del self.tensors[name]
        if not (tied and HEAD in self.tensors and EMBEDDING in self.tensors):
            return
        shape = self.tensors[EMBEDDING].shape
        ends = [*range(_ROWS, shape[0], _ROWS), shape[0]]
        parts = [slice(max(end - _ROWS, 0), end) for end in ends]
        same = self.tensors[HEAD].shape == shape and all(
            np.array_equal(self.read(HEAD, (part,)), self.read(EMBEDDING, (part,)))
            for part in parts
        )
        if same:
            del self.tensors[HEAD]
        else:
            self.faults.append(
                f"the config says tie_word_embeddings, but {HEAD} and "
                f"{EMBEDDING} differ"
            )


@contextlib.contextmanager
def open_directory(directory: Path) -> Iterator[SafetensorsFiles]:
    """The weights of a directory, mapped into memory while the context is open.

    Raises:
      ValueError: files that are missing, cut off or damaged; it names each of them.
    """
    paths = _files(directory)
    with contextlib.ExitStack() as stack:
        files, problems = {}, []
        for path in paths:
            try:
                with _readable(path):
                    opened = safe_open(str(path), framework="np")
                    files[path] = stack.enter_context(opened)
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("; ".join(problems))
        yield SafetensorsFiles(directory, files)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a readable safetensors file ({error}): it is missing, cut "
            "off or damaged; copy it again"
        ) from error


def _files(directory: Path) -> list[Path]:
    index = directory / INDEX
    if not index.is_file():
        return [directory / WEIGHTS]
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(
        isinstance(name, str) for name in names.values()
    ):
        raise ValueError(
            f"{index}: expected an object weight_map, from tensor to file name"
        )
    return [directory / name for name in sorted(set(names.values()))]
