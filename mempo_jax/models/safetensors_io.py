"""Reads and writes the safetensors weights of a directory, in one file or several.

Reading gives a ``stream.Source``. Writing takes one tensor at a time: a file begins
with a header that says where each tensor is, so only shapes and dtype must be known
before the first tensor is there (https://github.com/huggingface/safetensors, "Format").
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from mempo_jax.models.families import read_json
from mempo_jax.models.stream import Index, Stored

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_ROWS = 4_096  # of a matrix compared at one time, so that neither is in memory whole
SHARD_BYTES = 5_000_000_000  # of tensors in one file, as huggingface_hub splits
UNFINISHED = ".unfinished"  # suffix of a file until all files are written
_CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_ALIGNED = 8  # bytes: the header is filled up with blanks to a multiple


class SafetensorsFiles:
    """All tensors of some open files; see ``stream.Source``.

    Args:
      where: file or directory, for messages.
      files: path -> open file.
    """

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
        """Reads part of a tensor, see ``stream.Source``.

        Args:
          name: of the tensor.
          index: the part.
        """
        path, stored = self._slices[name]
        with _readable(path):
            return stored[index]

    def drop_derived(self, tied: bool) -> None:
        """Drops tensors that are no parameters: rotary tables, a copy of the embedding.

        Args:
          tied: whether the output matrix is the embedding; a file's own one must then
            be equal to it, else that is added to ``faults``.
        """
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
    """Opens the weights of a directory, mapped into memory until the context closes.

    Args:
      directory: has model.safetensors, or an index and the files that it names.

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


class Planned(NamedTuple):
    """The name and shape of a tensor that is to be written."""

    name: str
    shape: tuple[int, ...]


class TensorFiles:
    """The files of a model's weights while they are written; see ``open_files``.

    Attributes:
      order: the tensors that are still missing, in the order that ``write`` expects.
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
        """Writes the next tensor of ``order``.

        An error of the disk is raised only by ``close``, because other processes may
        take part in fetching the tensors that follow and would wait for this one.

        Args:
          value: the tensor.

        Raises:
          ValueError: another shape than planned.
        """
        planned = self.order.pop(0)
        if self._directory is not None and self._error is None:
            try:
                self._write(planned, np.ascontiguousarray(value, self._dtype))
            except OSError as error:
                self._error = error

    def close(self) -> None:
        """Renames the files into place if all tensors are written.

        Raises:
          OSError: a file could not be written.
        """
        if self._open is not None:
            self._open.close()
        if self._error is not None:
            raise self._error
        if self._directory is None or self.order:
            return
        names = [path.name for path in self._paths()]
        # The index comes last: one without its files would be worse than none.
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
            content = {"metadata": {"total_size": total}, "weight_map": index}
            (self._directory / INDEX).write_text(json.dumps(content, indent=2) + "\n")

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
    """Opens files for tensors of one dtype; they get their names when all are complete.

    Args:
      directory: of the model; None writes nothing, for processes that only take part in
        fetching.
      tensors: all that will be written, in any order.
      dtype: of all tensors.
      shard_bytes: more bytes than this make several files and an index.

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
    # "pt" is what transformers expects; it says that matrices are as torch has them.
    fields: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for each in tensors:
        end = begin + _bytes(each, dtype.itemsize)
        fields[each.name] = {
            "dtype": _CODES[dtype.name],
            "shape": list(each.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text
