"""A bank on disk: one directory, versioned, checksummed, replaced in one rename.

The directory holds the initial entries and the log; loading applies the log. So a saved
bank is also a check of itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil

import numpy as np

from mempo_jax.memory.config import BankConfig
from mempo_jax.memory.entry import Entry, Reason, Status
from mempo_jax.memory.ops import OpOutcome, OpRecord

_VERSION = 1
_META, _ENTRIES, _LOG, _VECTORS = (
    "meta.json",
    "entries.jsonl",
    "log.jsonl",
    "embeddings.npy",
)


class BankFileError(ValueError):
    """A saved bank that cannot be read; the message names the file."""


def save(bank, directory) -> None:
    """Writes ``bank`` to ``directory``; cut off, it leaves the previous save whole.

    Raises:
      BankFileError: something else than a saved bank is there; it is left alone.
    """
    target = pathlib.Path(directory)
    _check_replaceable(target)
    fresh = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    if fresh.exists():
        shutil.rmtree(fresh)
    fresh.mkdir(parents=True)
    entries = bank.entries
    vectors = np.zeros((len(entries), bank.embedder.dim), np.float32)
    for entry in entries:
        vectors[entry.id] = entry.embedding
    with (fresh / _VECTORS).open("wb") as file:
        np.save(file, vectors)
    _write_lines(fresh / _ENTRIES, map(_entry_row, bank.initial_entries))
    _write_lines(fresh / _LOG, map(_record_row, bank.log))
    sums = {name: _digest(fresh / name) for name in (_ENTRIES, _LOG, _VECTORS)}
    meta = {
        "format": "mempo_jax.bank",
        "version": _VERSION,
        "embedder": bank.embedder.name,
        "dim": bank.embedder.dim,
        "trajectory_id": bank.trajectory_id,
        "config": dataclasses.asdict(bank.config),
        "sha256": sums,
    }
    meta["checksum"] = _meta_sum(meta)
    (fresh / _META).write_text(json.dumps(meta, indent=1), encoding="utf-8")
    for name in (_META, _ENTRIES, _LOG, _VECTORS):
        with (fresh / name).open("rb+") as file:
            os.fsync(file.fileno())
    _swap(fresh, target)


def load(cls, directory, embedder, **callables):
    """The bank that ``save`` wrote.

    Raises:
      FileNotFoundError: no bank there. BankFileError: a file is missing, cut off or
      altered (named), or the version is another. ValueError: another embedder.
    """
    folder = pathlib.Path(directory)
    if not folder.exists() and _previous(folder).exists():
        folder = _previous(folder)  # a save was cut off between its two renames
    if not folder.is_dir():
        raise FileNotFoundError(f"expected a saved bank in {folder}, found none")
    meta = _read_meta(folder / _META)
    for name, digest in meta["sha256"].items():
        if not (folder / name).is_file() or _digest(folder / name) != digest:
            raise BankFileError(_damaged(folder / name))
    given = (embedder.name, embedder.dim)
    if given != (meta["embedder"], meta["dim"]):
        raise ValueError(
            f"the bank in {folder} was made with embedder {meta['embedder']!r} of "
            f"dimension {meta['dim']}, got {given[0]!r} of {given[1]}: embeddings "
            "cannot be mixed; set memory.embedder to the former"
        )
    vectors = np.load(folder / _VECTORS, allow_pickle=False)
    config = BankConfig(**meta["config"])
    bank = cls(config, embedder, meta["trajectory_id"], **callables)
    rows = _read_lines(folder / _ENTRIES)
    bank._reset(_entry(row, vectors[place]) for place, row in enumerate(rows))
    for row in _read_lines(folder / _LOG):
        record = _record(row)
        made = record.outcome in (OpOutcome.NEW, OpOutcome.MERGED)
        bank.apply(record, vectors[record.entry_ids[0]] if made else None)
    return bank


def _read_meta(path: pathlib.Path) -> dict:
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        whole = meta.pop("checksum") == _meta_sum(meta)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BankFileError(_damaged(path)) from error
    if meta.get("format") != "mempo_jax.bank" or meta.get("version") != _VERSION:
        raise BankFileError(
            f"{path}: expected a bank of version {_VERSION}, got "
            f"{meta.get('format')!r} version {meta.get('version')!r}"
        )
    if not whole:
        raise BankFileError(_damaged(path))
    return meta


def _damaged(path: pathlib.Path) -> str:
    return (
        f"{path} is missing, cut off or altered: its checksum is not the one saved; "
        "restore the directory from another save"
    )


def _check_replaceable(target: pathlib.Path) -> None:
    known = {_META, _ENTRIES, _LOG, _VECTORS}
    if not target.exists():
        return
    if target.is_dir() and {each.name for each in target.iterdir()} <= known:
        return
    raise BankFileError(
        f"{target}: expected a new directory, an empty one or a saved bank; what is "
        "there would be lost: save to another place"
    )


def _swap(fresh: pathlib.Path, target: pathlib.Path) -> None:
    """Puts ``fresh`` in the place of ``target``: at any moment one of them is whole."""
    old = _previous(target)
    if target.exists():
        if old.exists():
            shutil.rmtree(old)
        target.rename(old)
    fresh.rename(target)
    if old.exists():
        shutil.rmtree(old)


def _previous(target: pathlib.Path) -> pathlib.Path:
    return target.with_name(f"{target.name}.previous")


def _digest(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _meta_sum(meta: dict) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _write_lines(path: pathlib.Path, rows) -> None:
    # ASCII escapes keep lone surrogates, which UTF-8 cannot hold.
    with path.open("w", encoding="ascii", newline="\n") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _read_lines(path: pathlib.Path):
    with path.open(encoding="ascii") as file:
        yield from map(json.loads, file)


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
    return dataclasses.asdict(record)


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
