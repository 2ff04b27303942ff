"""Reads parameters from stored tensors, one at a time and slice by slice.

A ``Source`` knows names and shapes without reading data. ``fill`` first checks all of
them against the table of a decoder, then calls ``place`` for each parameter. Only what
``place`` asks for is read, so a process may hold nothing but its own shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from mempo_jax.models.families import TensorEntry, tensor_names
from mempo_jax.models.layers import DecoderConfig

Params = dict[str, Any]
Index = tuple[slice, ...]
Read = Callable[[Index], np.ndarray]
# (path such as "layers/mlp/up/kernel", shape, dtype, read) -> the parameter, put where
# it belongs. read(index) returns that part of it as a new numpy array of the dtype.
Place = Callable[[str, tuple[int, ...], np.dtype, Read], Any]


def fill(
    source: Source,
    table: Sequence[TensorEntry],
    config: DecoderConfig,
    dtype: Any,
    place: Place,
) -> Params:
    """Reads all parameters of a decoder: fills each once, uses each tensor once.

    Args:
      source: the stored tensors.
      table: all parameters, see ``families.tensor_table``.
      config: the decoder's shape.
      dtype: of the parameters.
      place: puts each parameter where it belongs.

    Raises:
      ValueError: missing, unused and misshapen tensors, all in one message and before
        any data is read; or all tensors with values that are not finite.
    """
    check(source, table, config)
    reader = _Reader(source, config, np.dtype(dtype))
    params: Params = {}
    for entry in table:
        shape = (config.layers, *entry.shape) if entry.stacked else entry.shape
        _set(params, entry.path, place(entry.path, shape, *reader.of(entry)))
    if reader.not_finite:
        raise _misfit(
            source, [f"{n} has values that are not finite" for n in reader.not_finite]
        )
    return params


def check(source: Source, table: Sequence[TensorEntry], config: DecoderConfig) -> None:
    """Refuses a source whose headers do not fit; reads no data.

    Args:
      source: the stored tensors.
      table: all parameters, see ``families.tensor_table``.
      config: the decoder's shape.

    Raises:
      ValueError: lists every tensor that is missing, unused or of a wrong shape or
        dtype.
    """
    expected: dict[str, tuple[int, ...]] = {}
    for entry in table:
        shape = entry.shape[::-1] if entry.turned else entry.shape
        expected.update(dict.fromkeys(tensor_names(entry, config), shape))
    problems = list(source.faults)
    problems += [f"missing {name}" for name in expected if name not in source.tensors]
    problems += [f"unused {name}" for name in source.tensors if name not in expected]
    for name, shape in expected.items():
        stored = source.tensors.get(name)
        if stored and stored.shape != shape:
            problems.append(
                f"{name} has shape {list(stored.shape)}, expected {list(shape)}"
            )
        if stored and stored.dtype not in source.usable:
            problems.append(
                f"{name} has dtype {stored.dtype}, expected one of "
                f"{', '.join(source.usable)}"
            )
    if problems:
        raise _misfit(source, problems)


def as_numpy(
    path: str, shape: tuple[int, ...], dtype: np.dtype, read: Read
) -> np.ndarray:
    """Is the simplest ``Place``: returns the whole parameter as one numpy array.

    Args:
      path: of the parameter (unused).
      shape: of the parameter; its rank is used.
      dtype: of the parameter (unused, ``read`` knows it).
      read: returns a part of the parameter.
    """
    return read(tuple(slice(None) for _ in shape))


class Stored(NamedTuple):
    """A tensor in a file: its shape there, and the file's own name of its dtype."""

    shape: tuple[int, ...]
    dtype: str


class Source(Protocol):
    """A file or a directory of stored tensors.

    Attributes:
      where: its path, for messages.
      tensors: all of them by name, from the headers.
      usable: the dtypes that ``read`` can return as floats.
      faults: errors that the headers show already, such as a name that occurs twice.
    """

    where: str
    tensors: dict[str, Stored]
    usable: Sequence[str]
    faults: list[str]

    def read(self, name: str, index: Index) -> np.ndarray:
        """Reads part of a tensor.

        Args:
          name: of the tensor.
          index: the part, in the stored layout.

        Returns:
          Floats of any width.
        """


class _Reader:
    """Reads parameters in our layout: layers stacked, matrices transposed."""

    def __init__(self, source: Source, config: DecoderConfig, dtype: np.dtype):
        self._source, self._config, self._dtype = source, config, dtype
        # A dict for a set in order. Checked while reading, and raised after the last
        # parameter so that one message names all of them.
        self.not_finite: dict[str, None] = {}

    def of(self, entry: TensorEntry) -> tuple[np.dtype, Read]:
        """Returns the dtype and the ``read`` function of a parameter."""
        names = tensor_names(entry, self._config)

        def stacked(index: Index) -> np.ndarray:
            chosen = names[index[0]]
            first = self._part(chosen[0], entry, index[1:])
            parts = np.empty((len(chosen), *first.shape), self._dtype)
            parts[0] = first
            for number, name in enumerate(chosen[1:], start=1):
                parts[number] = self._part(name, entry, index[1:])
            return parts

        def single(index: Index) -> np.ndarray:
            part = self._part(names[0], entry, index)
            return np.ascontiguousarray(part, self._dtype)

        return self._dtype, stacked if entry.stacked else single

    def _part(self, name: str, entry: TensorEntry, index: Index) -> np.ndarray:
        value = self._source.read(name, index[::-1] if entry.turned else index)
        if not np.isfinite(value).all():
            self.not_finite[name] = None
        return value.T if entry.turned else value


def _misfit(source: Source, problems: list[str]) -> ValueError:
    return ValueError(
        f"the weights in {source.where} do not fit its config: "
        f"{'; '.join(sorted(problems))}"
    )


def _set(tree: Params, path: str, value: Any) -> None:
    *outer, last = path.split("/")
    for name in outer:
        tree = tree.setdefault(name, {})
    tree[last] = value
