"""Parameters out of stored tensors, one at a time and slice by slice.

A ``Source`` knows names and shapes without reading data. ``fill`` first checks all of
them against the table of a decoder, then asks ``place`` for each parameter; what is
read is what ``place`` asks for, so a process may hold only its own shards.
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
# (path such as "layers/mlp/up/kernel", shape, dtype, read) -> the parameter.
# read(index) gives that part of it as a numpy array of the dtype; nothing is kept.
Place = Callable[[str, tuple[int, ...], np.dtype, Read], Any]


class Stored(NamedTuple):
    """A tensor as it lies in a file. dtype: the file's own word for it."""

    shape: tuple[int, ...]
    dtype: str


class Source(Protocol):
    """Where stored tensors come from.

    where: file or directory, for messages. tensors: all of them by name, from the
    headers. usable: the dtypes that ``read`` can give as floats. faults: what is wrong
    already by the headers, such as a name that stands twice.
    """

    where: str
    tensors: dict[str, Stored]
    usable: Sequence[str]
    faults: list[str]

    def read(self, name: str, index: Index) -> np.ndarray:
        """Part of a tensor, in the stored layout, as floats of any width."""


def whole(path: str, shape: tuple[int, ...], dtype: np.dtype, read: Read) -> np.ndarray:
    """The plainest ``Place``: the parameter as one numpy array."""
    return read(tuple(slice(None) for _ in shape))


def fill(
    source: Source,
    table: Sequence[TensorEntry],
    config: DecoderConfig,
    dtype: Any,
    place: Place,
) -> Params:
    """All parameters of a decoder, each filled once and each tensor used once.

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
    """Refuses a source whose headers do not fit; reads no data."""
    expected: dict[str, tuple[int, ...]] = {}
    for entry in table:
        shape = entry.shape[::-1] if entry.turned else entry.shape
        expected.update(dict.fromkeys(tensor_names(entry, config), shape))
    problems = list(source.faults)
    problems += [f"missing {name}" for name in expected if name not in source.tensors]
    problems += [f"unused {name}" for name in source.tensors if name not in expected]
    for name, shape in expected.items():
        found = source.tensors.get(name)
        if found and found.shape != shape:
            problems.append(
                f"{name} has shape {list(found.shape)}, expected {list(shape)}"
            )
        if found and found.dtype not in source.usable:
            problems.append(
                f"{name} has dtype {found.dtype}, expected one of "
                f"{', '.join(source.usable)}"
            )
    if problems:
        raise _misfit(source, problems)


class _Reader:
    """Reads parameters in our layout: layers stacked, matrices turned."""

    def __init__(self, source: Source, config: DecoderConfig, dtype: np.dtype):
        self._source, self._config, self._dtype = source, config, dtype
        self.not_finite: dict[str, None] = {}  # in order, each once

    def of(self, entry: TensorEntry) -> tuple[np.dtype, Read]:
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
