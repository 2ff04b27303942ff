"""Writes safetensors weights one tensor at a time, into one file or several.

A file begins with a header that says where each tensor lies, so shapes and dtype are
all that must be known before the first tensor is there (https://github.com/huggingface/
safetensors, "Format").
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from mempo_jax.models.safetensors_files import INDEX, WEIGHTS

SHARD_BYTES = 5_000_000_000  # of tensors in one file
UNFINISHED = ".unfinished"
_CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_ALIGNED = 8  # bytes: the header is filled up with blanks to a multiple


class Planned(NamedTuple):
    """A tensor that is to be written."""

    name: str
    shape: tuple[int, ...]


class TensorFiles:
    """The files of a model's weights; see ``open_files``.

    order: the tensors as ``write`` must get them.
    """

    def __init__(
        self,
        directory: Path | None,
        tensors: Sequence[Planned],
        dtype: np.dtype,
        shard_bytes: int,
    ) -> None:
        self.order = sorted(tensors)
        self._directory, self._dtype = directory, dtype
        self._files = _shards(self.order, dtype.itemsize, shard_bytes)
        self._ends = {part[-1].name for part in self._files}
        self._open: BinaryIO | None = None
        self._done = 0  # files
        self._error: OSError | None = None

    def write(self, value: np.ndarray) -> None:
        """The next tensor. What the disk refuses is raised by ``close``, for other
        processes may be waiting for this one to read on."""
        planned = self.order.pop(0)
        if self._directory is not None and self._error is None:
            try:
                self._write(planned, np.ascontiguousarray(value, self._dtype))
            except OSError as error:
                self._error = error

    def close(self) -> None:
        """Puts the files in their place, where all tensors are written.

        Raises OSError where one could not be.
        """
        if self._open is not None:
            self._open.close()
        if self._error is not None:
            raise self._error
        if self._directory is None or self.order:
            return
        names = [path.name for path in self._paths()]
        # Read by name, an index without its files would be worse than none.
        for path in self._paths():
            path.with_name(path.name + UNFINISHED).replace(path)
        if len(names) > 1:
            parts = zip(names, self._files)
            index = {each.name: name for name, part in parts for each in part}
            total = sum(
                _bytes(each, self._dtype.itemsize)
                for part in self._files
                for each in part
            )
            whole = {"metadata": {"total_size": total}, "weight_map": index}
            (self._directory / INDEX).write_text(json.dumps(whole, indent=2) + "\n")

    def _write(self, planned: Planned, value: np.ndarray) -> None:
        if value.shape != planned.shape:
            raise ValueError(f"{planned}: got a tensor of shape {value.shape}")
        if self._open is None:
            path = self._paths()[self._done]
            self._open = path.with_name(path.name + UNFINISHED).open("wb")
            self._open.write(_header(self._files[self._done], self._dtype))
        self._open.write(value.reshape(-1).view(np.uint8).data)
        if planned.name in self._ends:
            self._open.close()
            self._open = None
            self._done += 1

    def _paths(self) -> list[Path]:
        count = len(self._files)
        if count == 1:
            return [self._directory / WEIGHTS]
        stem, suffix = WEIGHTS.rsplit(".", 1)
        return [
            self._directory / f"{stem}-{number:05d}-of-{count:05d}.{suffix}"
            for number in range(1, count + 1)
        ]


@contextlib.contextmanager
def open_files(
    directory: Path | None,
    tensors: Sequence[Planned],
    dtype: np.dtype,
    shard_bytes: int = SHARD_BYTES,
) -> Iterator[TensorFiles]:
    """Files for these tensors, all of one dtype; none is in its place before all are.

    Args:
      directory: None: nothing is written, though everything is asked for.
      shard_bytes: above so much in all there are several files and an index.

    Raises:
      OSError: a file could not be written; those before it were not put in place.
    """
    files = TensorFiles(directory, tensors, dtype, shard_bytes)
    try:
        yield files
    finally:
        files.close()


def _shards(tensors: Sequence[Planned], width: int, most: int) -> list[list[Planned]]:
    parts: list[list[Planned]] = [[]]
    size = 0
    for each in tensors:
        own = _bytes(each, width)
        if parts[-1] and size + own > most:
            parts.append([])
            size = 0
        parts[-1].append(each)
        size += own
    return parts


def _bytes(tensor: Planned, width: int) -> int:
    return math.prod(tensor.shape) * width


def _header(tensors: Sequence[Planned], dtype: np.dtype) -> bytes:
    said: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for each in tensors:
        end = begin + _bytes(each, dtype.itemsize)
        said[each.name] = {
            "dtype": _CODES[dtype.name],
            "shape": list(each.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text
