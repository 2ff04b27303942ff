"""A bank on disk: its initial entries and its log; loading applies the log.

So a saved bank is also a check of itself. How the files come to be replaced as one is
told in ``snapshot``.
"""

from __future__ import annotations

import dataclasses
import io
import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import numpy as np

from mempo_jax.memory import snapshot
from mempo_jax.memory.config import BankConfig
from mempo_jax.memory.entry import Entry, Reason, Status
from mempo_jax.memory.ops import OpOutcome, OpRecord

_RECORD = tuple(field.name for field in dataclasses.fields(OpRecord))
_ROWS = 4096  # rows written at a time: saving needs no second copy of the vectors


def save(bank, directory) -> None:
    """Writes ``bank`` to ``directory``; cut off, it leaves the previous save whole.

    Whoever loads meanwhile, in any process, gets the old bank or the new one. Of two
    saves at the same time the second waits.

    Raises:
      BankFileError: something else than a saved bank is there; it is left alone.
      OSError: it could not be written (disk full, no permission, ...).
    """
    meta = {
        "embedder": bank.embedder.name,
        "dim": bank.embedder.dim,
        "trajectory_id": bank.trajectory_id,
        "config": dataclasses.asdict(bank.config),
    }
    parts = {
        "entries": _lines(map(_entry_row, bank.initial_entries)),
        "log": _lines(map(_record_row, bank.log)),
        "embeddings": _array(bank.entries, bank.embedder.dim),
    }
    snapshot.write(_folder(directory), meta, parts)


def load(cls, directory, embedder, **callables):
    """The bank that ``save`` wrote.

    Raises:
      FileNotFoundError: no bank there. BankFileError: a file is missing, cut off or
      altered (named), or the version is another. ValueError: another embedder.
    """
    folder = _folder(directory)
    with snapshot.opened(folder) as (meta, files):
        given = (embedder.name, embedder.dim)
        if given != (meta["embedder"], meta["dim"]):
            raise ValueError(
                f"the bank in {folder} was made with embedder {meta['embedder']!r} of "
                f"dimension {meta['dim']}, got {given[0]!r} of {given[1]}: embeddings "
                "cannot be mixed; set memory.embedder to the former"
            )
        bank = cls(_config(meta, folder), embedder, meta["trajectory_id"], **callables)
        vectors = np.load(files["embeddings"], allow_pickle=False)
        vectors.setflags(write=False)
        rows = zip(_read_lines(files["entries"]), vectors)
        bank._start(bank._table_of(_entry(row, vector) for row, vector in rows))
        for row in _read_lines(files["log"]):
            record = _record(row)
            made = record.outcome in (OpOutcome.NEW, OpOutcome.MERGED)
            bank._change(record, vectors[record.entry_ids[0]] if made else None)
    return bank


def _folder(directory) -> pathlib.Path:
    return pathlib.Path(directory).expanduser()


def _config(meta: dict, folder: pathlib.Path) -> BankConfig:
    try:
        return BankConfig(**meta["config"])
    except (TypeError, ValueError) as error:
        raise snapshot.BankFileError(
            f"{folder / snapshot.META}: expected settings of a bank, got "
            f"{meta['config']}: {error}"
        ) from error


def _lines(rows: Iterable) -> Iterator[bytes]:
    # ASCII escapes keep lone surrogates, which UTF-8 cannot hold.
    for row in rows:
        yield json.dumps(row).encode("ascii") + b"\n"


def _read_lines(file: BinaryIO) -> Iterator:
    yield from map(json.loads, file)


def _array(entries: list[Entry], dim: int) -> Iterator[bytes]:
    """A .npy file of float32 [entries, dim], some rows at a time."""
    head = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": (len(entries), dim)}
    np.lib.format.write_array_header_1_0(head, fields)
    yield head.getvalue()
    for start in range(0, len(entries), _ROWS):
        rows = [entry.embedding for entry in entries[start : start + _ROWS]]
        yield np.stack(rows).astype("<f4", copy=False).tobytes()


def _entry_row(entry: Entry) -> list:
    return list(entry.facts())


def _entry(row: list, vector: np.ndarray) -> Entry:
    number, title, text, made, accessed, count, source, status, reason, into, up = row
    return Entry(
        id=number,
        title=title,
        text=text,
        embedding=vector,
        step_created=made,
        step_accessed=accessed,
        access_count=count,
        source=source,
        status=Status(status),
        reason=Reason(reason),
        merged_into=into,
        parents=tuple(up),
    )


def _record_row(record: OpRecord) -> dict:
    return {name: getattr(record, name) for name in _RECORD}  # asdict copies deeply


def _record(row: dict) -> OpRecord:
    span = row["token_span"]
    return OpRecord(
        **{
            **row,
            "entry_ids": tuple(row["entry_ids"]),
            "evicted": tuple(row["evicted"]),
            "token_span": None if span is None else tuple(span),
        }
    )
