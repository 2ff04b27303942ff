"""A bank on disk: its initial entries and its log, in a directory replaced as one.

Loading applies the log, so a saved bank is also a check of itself.

``meta.json`` names the other files, with their checksums. A save writes files of fresh
names beside the old ones, then puts a new ``meta.json`` in place by one rename, then
takes the old files away: a reader sees the old bank or the new one. Readers take no
lock: a file that vanished before it could be opened means that ``meta.json`` was
replaced meanwhile, and they start again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
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
# Names that a save writes: it never removes a file of another name.
_BANK_FILE = re.compile(
    r"meta\.json|meta\.[0-9a-f]{16}\.tmp|"
    r"(entries|log)(\.[0-9a-f]{16})?\.jsonl|embeddings(\.[0-9a-f]{16})?\.npy"
)
_CONFIG = tuple(field.name for field in dataclasses.fields(BankConfig))
_RECORD = tuple(field.name for field in dataclasses.fields(OpRecord))
_ROWS = 4096  # rows written at a time: saving needs no second copy of the vectors


class BankFileError(ValueError):
    """A saved bank that cannot be read; the message names the file."""


class _OtherFormatError(BankFileError):
    """The file is sound, but no bank that this version reads."""


def save(bank, directory) -> None:
    """Writes a bank to a directory; cut off, it leaves the previous save complete.

    A load meanwhile, in any process, gets the old bank or the new one. Of two saves at
    the same time the second waits.

    Args:
      bank: the bank.
      directory: a new directory, an empty one or a saved bank.

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
        "entries": _json_lines(map(_entry_row, bank.initial_entries)),
        "log": _json_lines(map(_record_row, bank.log)),
        "embeddings": _array_chunks(bank.entries, bank.embedder.dim),
    }
    write(_folder(directory), meta, parts)


def load(cls, directory, embedder, **callables):
    """Reads the bank that ``save`` wrote.

    Args:
      cls: ``Bank``.
      directory: where it was saved.
      embedder: of the name and width that the bank was saved with.
      **callables: ``judge`` and ``summarise`` for the constructor.

    Raises:
      FileNotFoundError: no bank is there.
      BankFileError: a file is missing, cut off or altered (named), or of another
        version.
      ValueError: the bank was made with another embedder.
    """
    folder = _folder(directory)
    with opened(folder) as (meta, files):
        model = (embedder.name, embedder.dim)
        if model != (meta["embedder"], meta["dim"]):
            raise ValueError(
                f"the bank in {folder} was made with embedder {meta['embedder']!r} of "
                f"dimension {meta['dim']}, got {model[0]!r} of {model[1]}: embeddings "
                "cannot be mixed; set memory.embedder to the former"
            )
        bank = cls(_config(meta, folder), embedder, meta["trajectory_id"], **callables)
        vectors = np.load(files["embeddings"], allow_pickle=False)
        vectors.setflags(write=False)  # entries are views of it, shared by forks
        rows = zip(_read_lines(files["entries"]), vectors)
        bank._start(bank._make_table(_entry(row, vector) for row, vector in rows))
        for row in _read_lines(files["log"]):
            record = _record(row)
            adds = record.outcome in (OpOutcome.NEW, OpOutcome.MERGED)
            bank._change(record, vectors[record.entry_ids[0]] if adds else None)
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


def _entry_row(entry: Entry) -> list:
    return list(entry.facts())


def _entry(row: list, vector: np.ndarray) -> Entry:
    number, title, text, start, accessed, count, source, status, reason, into, up = row
    return Entry(
        id=number,
        title=title,
        text=text,
        embedding=vector,
        step_created=start,
        step_accessed=accessed,
        access_count=count,
        source=source,
        status=Status(status),
        reason=Reason(reason),
        merged_into=into,
        parents=tuple(up),
    )


def _record_row(record: OpRecord) -> dict:
    return {
        name: getattr(record, name) for name in _RECORD
    }  # asdict copies deeply: slow


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


def _json_lines(rows: Iterable) -> Iterator[bytes]:
    # ASCII escapes keep lone surrogates, which UTF-8 cannot hold.
    for row in rows:
        yield json.dumps(row).encode("ascii") + b"\n"


def _read_lines(file: BinaryIO) -> Iterator:
    yield from map(json.loads, file)


def _array_chunks(entries: list[Entry], dim: int) -> Iterator[bytes]:
    """Yields a .npy file of float32 [entries, dim], some rows at a time."""
    header = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": (len(entries), dim)}
    np.lib.format.write_array_header_1_0(header, fields)
    yield header.getvalue()
    for start in range(0, len(entries), _ROWS):
        rows = [entry.embedding for entry in entries[start : start + _ROWS]]
        yield np.stack(rows).astype("<f4", copy=False).tobytes()


def write(folder: pathlib.Path, meta: dict, parts: dict[str, Iterable[bytes]]) -> None:
    """Puts ``meta`` and the parts of a bank in place as one.

    If it is cut off at any moment, or fails, the bank saved before stays complete. It
    waits for a save by another process.

    Args:
      folder: a new directory, an empty one or a saved bank.
      meta: what ``meta.json`` is to say besides format, version and checksums.
      parts: ``entries``, ``log`` and ``embeddings``, each in chunks of bytes.

    Raises:
      BankFileError: something else than a saved bank is there; it is left alone.
      OSError: it could not be written (disk full, no permission, ...).
    """
    try:
        _check_replaceable(folder)
        _make_folder(folder)
        with _locked(folder) as (handle, alone):
            before = _files_in_meta(folder)
            written = _write_all(folder, handle, meta, parts)
            leftovers = _bank_files(folder) if alone else before
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
    """Opens what was saved last: ``meta`` and the verified parts by name.

    Args:
      folder: where it was saved.

    Raises:
      FileNotFoundError: no bank is there, or its first save was cut off.
      BankFileError: a file is missing, cut off or altered, or of another version.
    """
    with contextlib.ExitStack() as stack:
        meta, files = _open_all(folder, stack)
        for name, file in files.items():
            if hashlib.file_digest(file, "sha256").hexdigest() != meta["sha256"][name]:
                raise BankFileError(_damage_message(folder / name))
            file.seek(0)
        yield meta, {name.split(".")[0]: file for name, file in files.items()}


def _write_all(folder: pathlib.Path, handle, meta: dict, parts) -> set[str]:
    """Writes the files and returns their names."""
    token = secrets.token_hex(8)
    draft = folder / f"meta.{token}.tmp"
    names = {kind: f"{kind}.{token}.{_SUFFIX[kind]}" for kind in parts}
    try:
        # The draft comes first: alone it says that a first save was cut off.
        with draft.open("xb") as file:
            _sync_folder(
                handle
            )  # its name must be on the disk before the other files are
            sums = {
                name: _write_part(folder / name, parts[kind])
                for kind, name in names.items()
            }
            head = {"format": FORMAT, "version": VERSION}
            file.write(_encode_meta({**head, **meta, "sha256": sums}))
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(
            handle
        )  # all files are on the disk before ``meta.json`` names them
        os.replace(draft, folder / META)
    except BaseException:
        if draft.exists():  # so it has not become meta.json
            for name in (*names.values(), draft.name):
                with contextlib.suppress(OSError):
                    (folder / name).unlink(missing_ok=True)
        raise
    _sync_folder(handle)
    return {META, *names.values()}


def _write_part(path: pathlib.Path, chunks: Iterable[bytes]) -> str:
    """Writes one file through to the disk and returns its SHA-256."""
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
        meta = _decode_meta(text, folder / META)
        try:
            return meta, {
                name: stack.enter_context((folder / name).open("rb"))
                for name in meta["sha256"]
            }
        except FileNotFoundError as error:
            if _meta_text(folder) == text:  # no save came in between: a file is lost
                raise BankFileError(_damage_message(error.filename)) from error


def _meta_text(folder: pathlib.Path) -> bytes:
    try:
        return (folder / META).read_bytes()
    except NotADirectoryError:  # the error at the end says it better
        pass
    except FileNotFoundError as error:
        left = _bank_files(folder) if folder.is_dir() else set()
        if META in left and (folder / META).exists():
            return _meta_text(folder)  # the first save ended just now
        if left and not any(name.endswith(".tmp") for name in left):
            raise BankFileError(_damage_message(folder / META)) from error
    raise FileNotFoundError(f"expected a saved bank in {folder}, found none")


def _encode_meta(meta: dict) -> bytes:
    return json.dumps({**meta, "checksum": _meta_checksum(meta)}, indent=1).encode()


def _decode_meta(text: bytes, path: pathlib.Path) -> dict:
    try:
        meta = json.loads(text)
        kind, version = meta.get("format"), meta.get("version")
        if kind != FORMAT or version not in _READABLE:
            raise _OtherFormatError(
                f"{path}: expected a {FORMAT} of version {VERSION}, got {kind!r} "
                f"version {version!r}: use the version of mempo_jax that wrote it"
            )
        # Written anew it must be the same text: JSON allows others of equal content.
        unaltered = json.dumps(meta, indent=1).encode() == text
        if meta.pop("checksum") == _meta_checksum(meta) and unaltered:
            return meta
    except _OtherFormatError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BankFileError(_damage_message(path)) from error
    raise BankFileError(_damage_message(path))


def _meta_checksum(meta: dict) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _damage_message(path) -> str:
    return (
        f"{path} is missing, cut off or altered: its checksum is not the one saved; "
        "restore the directory from another save"
    )


def _files_in_meta(folder: pathlib.Path) -> set[str]:
    """The files that ``meta.json`` names; none if it cannot be read."""
    try:
        return set(_decode_meta((folder / META).read_bytes(), folder / META)["sha256"])
    except (OSError, BankFileError):
        return set()


def _bank_files(folder: pathlib.Path) -> set[str]:
    """The files in a directory that a save may have written."""
    return {name for name in os.listdir(folder) if _BANK_FILE.fullmatch(name)}


def _check_replaceable(folder: pathlib.Path) -> None:
    """Raises unless a bank, even a damaged one, may be written here."""
    if not folder.exists():
        return
    foreign = not folder.is_dir()
    if not foreign and (folder / META).exists():
        try:
            _decode_meta((folder / META).read_bytes(), folder / META)
            return
        except _OtherFormatError:
            foreign = True
        except BankFileError:
            pass
    if foreign or not all(map(_BANK_FILE.fullmatch, os.listdir(folder))):
        raise BankFileError(
            f"{folder}: expected a new directory, an empty one or a saved bank; a bank "
            "is not mixed with other files: save to another place"
        )


def _make_folder(folder: pathlib.Path) -> None:
    """Makes the directory and puts its name on the disk."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is not None:
        handle = os.open(folder.parent, os.O_RDONLY)
        _sync_folder(handle)
        os.close(handle)


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[tuple[int | None, bool]]:
    """Locks the directory; gives its handle, and whether no other save runs meanwhile.

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


def _sync_folder(handle: int | None) -> None:
    """Puts the names of the files in a directory on the disk."""
    if handle is not None:
        os.fsync(handle)
