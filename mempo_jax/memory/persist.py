"""A bank on disk: its initial entries and its log; loading applies the log.

So a saved bank is also a check of itself. How the files come to be replaced as one is
told in ``snapshot``.

A directory of files that is replaced as one: whoever reads sees old or new.

``meta.json`` names the other files, with their checksums. A save writes files of fresh
names beside the old ones, then puts a new ``meta.json`` in place by one rename, then
takes the old files away. Readers take no lock: a file that vanished before it could be
opened means that ``meta.json`` was replaced meanwhile, and they start again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import io
import json
import os
import pathlib
import re
import secrets
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import numpy as np

from mempo_jax.memory.bank_config import BankConfig
from mempo_jax.memory.entry import Entry, Reason, Status
from mempo_jax.memory.ops import OpOutcome, OpRecord

try:
    import fcntl
except ImportError:  # no Unix: saves by several processes are then not kept apart
    fcntl = None


META = "meta.json"
FORMAT = "mempo_jax.bank"
VERSION = 2
_READABLE = (1, 2)  # version 1 had the same files under fixed names
_SUFFIX = {"entries": "jsonl", "log": "jsonl", "embeddings": "npy"}
_OURS = re.compile(
    r"meta\.json|meta\.[0-9a-f]{16}\.tmp|"
    r"(entries|log)(\.[0-9a-f]{16})?\.jsonl|embeddings(\.[0-9a-f]{16})?\.npy"
)


class BankFileError(ValueError):
    """A saved bank that cannot be read; the message names the file."""


class _OtherFormatError(BankFileError):
    """Nothing is wrong with it, but it is no bank that this version reads."""


def write(folder: pathlib.Path, meta: dict, parts: dict[str, Iterable[bytes]]) -> None:
    """Puts ``meta`` and the ``parts`` (entries, log, embeddings) in place as one.

    Cut off at any moment, or failed, it leaves what was saved before whole. A save by
    another process is waited for.

    Raises:
      BankFileError: something else than a saved bank is there; it is left alone.
      OSError: it could not be written (disk full, no permission, ...).
    """
    try:
        _check_replaceable(folder)
        _make(folder)
        with _locked(folder) as (handle, alone):
            before = _named(folder)
            written = _write_all(folder, handle, meta, parts)
            leftovers = _ours(folder) if alone else before
            for name in leftovers - written:
                with contextlib.suppress(OSError):  # the next save tries again
                    (folder / name).unlink()
    except OSError as error:
        raise OSError(
            error.errno or errno.EIO,
            "the bank was not saved, a save from before is whole: "
            f"{error.strerror or error}",
            str(folder),
        ) from error


@contextlib.contextmanager
def opened(folder: pathlib.Path) -> Iterator[tuple[dict, dict[str, BinaryIO]]]:
    """``meta`` and the open, verified parts of what was saved last.

    Raises:
      FileNotFoundError: no bank there, or its first save was cut off.
      BankFileError: a file is missing, cut off or altered, or of another version.
    """
    with contextlib.ExitStack() as stack:
        meta, files = _open_all(folder, stack)
        for name, file in files.items():
            if hashlib.file_digest(file, "sha256").hexdigest() != meta["sha256"][name]:
                raise BankFileError(_damaged(folder / name))
            file.seek(0)
        yield meta, {name.split(".")[0]: file for name, file in files.items()}


def _write_all(folder: pathlib.Path, handle, meta: dict, parts) -> set[str]:
    """Writes the files; their names."""
    token = secrets.token_hex(8)
    draft = folder / f"meta.{token}.tmp"
    names = {kind: f"{kind}.{token}.{_SUFFIX[kind]}" for kind in parts}
    try:
        # The draft comes first: alone it says that a first save was cut off.
        with draft.open("xb") as file:
            _sync(handle)
            sums = {
                name: _write_part(folder / name, parts[kind])
                for kind, name in names.items()
            }
            head = {"format": FORMAT, "version": VERSION}
            file.write(_sealed({**head, **meta, "sha256": sums}))
            file.flush()
            os.fsync(file.fileno())
        _sync(handle)
        os.replace(draft, folder / META)
    except BaseException:
        if draft.exists():  # so it has not become meta.json
            for name in (*names.values(), draft.name):
                with contextlib.suppress(OSError):
                    (folder / name).unlink(missing_ok=True)
        raise
    _sync(handle)
    return {META, *names.values()}


def _write_part(path: pathlib.Path, chunks: Iterable[bytes]) -> str:
    """Writes one file to the disk itself; its SHA-256."""
    digest = hashlib.sha256()
    with path.open("xb") as file:
        for chunk in chunks:
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _open_all(folder: pathlib.Path, stack) -> tuple[dict, dict[str, BinaryIO]]:
    while True:
        text = _meta_text(folder)
        meta = _unsealed(text, folder / META)
        try:
            return meta, {
                name: stack.enter_context((folder / name).open("rb"))
                for name in meta["sha256"]
            }
        except FileNotFoundError as error:
            if _meta_text(folder) == text:  # no save has come in between
                raise BankFileError(_damaged(error.filename)) from error


def _meta_text(folder: pathlib.Path) -> bytes:
    try:
        return (folder / META).read_bytes()
    except NotADirectoryError:
        pass
    except FileNotFoundError as error:
        left = _ours(folder) if folder.is_dir() else set()
        if META in left and (folder / META).exists():
            return _meta_text(folder)  # the first save ended just now
        if left and not any(name.endswith(".tmp") for name in left):
            raise BankFileError(_damaged(folder / META)) from error
    raise FileNotFoundError(f"expected a saved bank in {folder}, found none")


def _sealed(meta: dict) -> bytes:
    return json.dumps({**meta, "checksum": _meta_sum(meta)}, indent=1).encode()


def _unsealed(text: bytes, path: pathlib.Path) -> dict:
    try:
        meta = json.loads(text)
        kind, version = meta.get("format"), meta.get("version")
        if kind != FORMAT or version not in _READABLE:
            raise _OtherFormatError(
                f"{path}: expected a {FORMAT} of version {VERSION}, got {kind!r} "
                f"version {version!r}: use the version of mempo_jax that wrote it"
            )
        whole = json.dumps(meta, indent=1).encode() == text
        if meta.pop("checksum") == _meta_sum(meta) and whole:
            return meta
    except _OtherFormatError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BankFileError(_damaged(path)) from error
    raise BankFileError(_damaged(path))


def _meta_sum(meta: dict) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _damaged(path) -> str:
    return (
        f"{path} is missing, cut off or altered: its checksum is not the one saved; "
        "restore the directory from another save"
    )


def _named(folder: pathlib.Path) -> set[str]:
    """The files that ``meta.json`` names; none if it cannot be read."""
    try:
        return set(_unsealed((folder / META).read_bytes(), folder / META)["sha256"])
    except (OSError, BankFileError):
        return set()


def _ours(folder: pathlib.Path) -> set[str]:
    return {name for name in os.listdir(folder) if _OURS.fullmatch(name)}


def _check_replaceable(folder: pathlib.Path) -> None:
    """A bank, even a damaged one, is replaced; what may be something else is not."""
    if not folder.exists():
        return
    other = not folder.is_dir()
    if not other and (folder / META).exists():
        try:
            _unsealed((folder / META).read_bytes(), folder / META)
            return
        except _OtherFormatError:
            other = True
        except BankFileError:
            pass
    if other or not all(map(_OURS.fullmatch, os.listdir(folder))):
        raise BankFileError(
            f"{folder}: expected a new directory, an empty one or a saved bank; a bank "
            "is not mixed with other files: save to another place"
        )


def _make(folder: pathlib.Path) -> None:
    """The directory, with its name on the disk."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is not None:
        handle = os.open(folder.parent, os.O_RDONLY)
        _sync(handle)
        os.close(handle)


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[tuple[int | None, bool]]:
    """A handle of the directory, and whether no other save runs meanwhile.

    The lock is the kernel's: it ends with the process, however that ends.
    """
    if fcntl is None:
        yield None, False
        return
    handle, alone = os.open(folder, os.O_RDONLY), False
    try:
        with contextlib.suppress(OSError):  # some network file systems cannot lock it
            fcntl.flock(handle, fcntl.LOCK_EX)
            alone = True
        yield handle, alone
    finally:
        if alone:  # a forked child may hold the handle too
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _sync(handle: int | None) -> None:
    """Puts the names in a directory on the disk."""
    if handle is not None:
        os.fsync(handle)


_CONFIG = tuple(field.name for field in dataclasses.fields(BankConfig))
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
        "config": {name: getattr(bank.config, name) for name in _CONFIG},
    }
    parts = {
        "entries": _lines(map(_entry_row, bank.initial_entries)),
        "log": _lines(map(_record_row, bank.log)),
        "embeddings": _array(bank.entries, bank.embedder.dim),
    }
    write(_folder(directory), meta, parts)


def load(cls, directory, embedder, **callables):
    """The bank that ``save`` wrote.

    Raises:
      FileNotFoundError: no bank there. BankFileError: a file is missing, cut off or
      altered (named), or the version is another. ValueError: another embedder.
    """
    folder = _folder(directory)
    with opened(folder) as (meta, files):
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
        bank._start(bank._make_table(_entry(row, vector) for row, vector in rows))
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
        raise BankFileError(
            f"{folder / META}: expected settings of a bank, got "
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
