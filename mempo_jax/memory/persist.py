"""A bank on disk: its initial entries and its log, in a directory replaced as one.

Loading applies the log, so a saved bank is also a check of itself.

``meta.json`` names the other files, with their checksums. A save writes files of fresh
names beside the old ones, then puts a new ``meta.json`` in place by one rename, then
takes the old files away: a reader sees the old bank or the new one. Readers take no
lock: a file that vanished before it could be opened means that ``meta.json`` was
replaced meanwhile, and they start again.

A bank remembers which version of a directory it was loaded from or saved as. So a save
finds out that another process, or another bank of this one, has saved there since, and
refuses to replace what it does not know.
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
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from mempo_jax.memory import retention
from mempo_jax.memory.bank_config import BankConfig
from mempo_jax.memory.entry import Entry
from mempo_jax.memory.ops import OpOutcome, OpRecord

try:
    import fcntl
except ImportError:  # no Unix: saves by several processes are then not kept apart
    fcntl = None


META = "meta.json"
FORMAT = "mempo_jax.bank"
# Version 1 had the same files under fixed names; 3 brought purged entries.
VERSION = 3
_READABLE = (1, 2, 3)
_SUFFIX = {"entries": "jsonl", "log": "jsonl", "embeddings": "npy"}
# Names that a save writes: it never removes a file of another name.
_BANK_FILE = re.compile(
    r"meta\.json|meta\.[0-9a-f]{16}\.tmp|"
    r"(entries|log)(\.[0-9a-f]{16})?\.jsonl|embeddings(\.[0-9a-f]{16})?\.npy"
)
_CONFIG = tuple(field.name for field in dataclasses.fields(BankConfig))
_LOCK_WAIT_S = 600.0  # for another process: as long as a task of an agent may take
_LOCK_PAUSE_S = 0.05
# Locked directories by (thread, path): one that holds a lock may save there.
_HELD: dict[tuple[int, str], int | None] = {}
_ROWS = 4096  # rows written at a time: saving needs no second copy of the vectors


class BankFileError(ValueError):
    """A saved bank that cannot be read; the message names the file."""


class BankConflictError(BankFileError):
    """Another process, or another bank, has saved to the directory in the meantime."""


class _OtherFormatError(BankFileError):
    """The file is sound, but no bank that this version reads."""


class SavedVersion(NamedTuple):
    """What a bank knows of a directory that it was loaded from or saved to.

    Attributes:
      checksum: of ``meta.json`` then; "" if nothing was there.
      records: length of the bank's log then.
    """

    checksum: str = ""
    records: int = 0


def save(bank, directory, replace: bool = False) -> None:
    """Writes a bank to a directory; cut off, it leaves the previous save complete.

    A load meanwhile, in any process, gets the old bank or the new one. Of two saves at
    the same time the second waits. If the bank that is there is one that this bank
    never was, a warning says that it is replaced.

    Args:
      bank: the bank.
      directory: a new directory, an empty one or a saved bank.
      replace: whether to replace what is there whatever it is, without a warning.

    Raises:
      BankConflictError: since this bank was loaded from there, or saved there, another
        one was saved; that one stays.
      BankFileError: something else than a saved bank is there; it is left alone.
      OSError: it could not be written (disk full, no permission, ...).
    """
    folder = _folder(directory)
    known = bank._saved.get(_key(folder))

    def check(there: str) -> None:
        if replace or not there or (known is not None and known.checksum == there):
            return
        if known is not None:
            raise BankConflictError(
                f"{folder}: another process or bank has saved there since this bank "
                "was loaded or saved; load it and write again, save to another "
                "directory, or give replace=True to lose what was saved"
            )
        warnings.warn(
            f"{folder}: the saved bank there, which this bank was not loaded from, is "
            "replaced; replace=True says that it is meant",
            stacklevel=4,
        )

    meta = {
        "embedder": bank.embedder.name,
        "dim": bank.embedder.dim,
        "trajectory_id": bank.trajectory_id,
        "config": {name: getattr(bank.config, name) for name in _CONFIG},
    }
    parts = {
        "entries": _json_lines(entry.facts() for entry in bank.initial_entries),
        "log": _json_lines(record.row() for record in bank.log),
        "embeddings": _array_chunks(bank.entries, bank.embedder.dim),
    }
    checksum = write(folder, meta, parts, check)
    bank._saved[_key(folder)] = SavedVersion(checksum, len(bank.log))


def save_again(bank) -> None:
    """Saves a bank in each directory where it is, so that no older save of it is left.

    Args:
      bank: the bank.

    Raises:
      BankConflictError, OSError: as ``save``; or older files could not be removed.
    """
    for path in list(bank._saved):
        folder = pathlib.Path(path)
        if not _checksum_of(folder):
            continue  # it was removed meanwhile
        save(bank, folder)
        left = _bank_files(folder) - {META} - _files_in_meta(folder)
        if left:
            raise OSError(
                errno.EBUSY,
                f"could not remove files of earlier saves: {', '.join(sorted(left))}",
                str(folder),
            )


def is_outdated(bank, directory) -> bool:
    """Whether a directory holds another version than the one that a bank knows.

    Args:
      bank: the bank.
      directory: where it may have been saved.
    """
    folder = _folder(directory)
    there = _checksum_of(folder)
    return there not in ("", bank._saved.get(_key(folder), SavedVersion()).checksum)


def is_unsaved(bank, directory) -> bool:
    """Whether a bank has changed since it was loaded from a directory or saved there.

    Args:
      bank: the bank.
      directory: the directory.
    """
    known = bank._saved.get(_key(_folder(directory)), SavedVersion())
    return len(bank.log) != known.records


def load(cls, directory, embedder, config: BankConfig | None = None, **callables):
    """Reads the bank that ``save`` wrote.

    Args:
      cls: ``Bank``.
      directory: where it was saved.
      embedder: of the name and width that the bank was saved with.
      config: settings to open it with, whatever it was saved with. If something
        differs, a warning says what: the bank then begins as in the next task, entries
        over the capacity are evicted, and texts are embedded anew by another embedder.
        None: those that it was saved with.
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
        same_model = model == (meta["embedder"], meta["dim"])
        if not same_model and config is None:
            raise ValueError(
                f"the bank in {folder} was made with embedder {meta['embedder']!r} of "
                f"dimension {meta['dim']}, got {model[0]!r} of {model[1]}: embeddings "
                "cannot be mixed; set memory.embedder to the former"
            )
        saved = _config(meta, folder)
        # Another embedder has no part in reading: the vectors are there.
        reader = (
            embedder
            if same_model
            else retention.SavedModel(meta["embedder"], meta["dim"])
        )
        bank = cls(saved, reader, meta["trajectory_id"], **callables)
        vectors = np.load(files["embeddings"], allow_pickle=False)
        vectors.setflags(write=False)  # entries are views of it, shared by forks
        rows = zip(_read_lines(files["entries"]), vectors)
        bank._start(bank._make_table(Entry.from_facts(*row) for row in rows))
        for row in _read_lines(files["log"]):
            record = OpRecord.from_row(row)
            adds = record.outcome in (OpOutcome.NEW, OpOutcome.MERGED)
            bank._change(record, vectors[record.entry_ids[0]] if adds else None)
    if config is not None:
        bank, changed = retention.with_settings(bank, config, embedder)
        if changed:
            warnings.warn(
                f"bank {folder}: opened with other settings than it was saved with: "
                f"{'; '.join(changed)}",
                stacklevel=3,
            )
    bank._saved[_key(folder)] = SavedVersion(_meta_checksum(meta), len(bank.log))
    return bank


def _folder(directory) -> pathlib.Path:
    return pathlib.Path(directory).expanduser()


def _key(folder: pathlib.Path) -> str:
    """The same for all spellings of a path."""
    return os.path.realpath(folder)


def _config(meta: dict, folder: pathlib.Path) -> BankConfig:
    try:
        return BankConfig(**meta["config"])
    except (TypeError, ValueError) as error:
        raise BankFileError(
            f"{folder / META}: expected settings of a bank, got "
            f"{meta['config']}: {error}"
        ) from error


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


def write(
    folder: pathlib.Path,
    meta: dict,
    parts: dict[str, Iterable[bytes]],
    check: Callable[[str], None] = lambda there: None,
) -> str:
    """Puts ``meta`` and the parts of a bank in place as one.

    If it is cut off at any moment, or fails, the bank saved before stays complete. It
    waits for a save by another process.

    Args:
      folder: a new directory, an empty one or a saved bank.
      meta: what ``meta.json`` is to say besides format, version and checksums.
      parts: ``entries``, ``log`` and ``embeddings``, each in chunks of bytes.
      check: gets the checksum of the bank that is there, "" for none, while the
        directory is locked; what it raises leaves that bank as it is.

    Returns:
      The checksum of what was written.

    Raises:
      BankFileError: something else than a saved bank is there; it is left alone.
      OSError: it could not be written (disk full, no permission, ...).
    """
    try:
        _check_replaceable(folder)
        _make_folder(folder)
        with _locked(folder) as (handle, alone):
            check(_checksum_of(folder))
            before = _files_in_meta(folder)
            written = _write_all(folder, handle, meta, parts)
            checksum = _checksum_of(folder)
            leftovers = _bank_files(folder) if alone else before
            for name in leftovers - written:
                with contextlib.suppress(OSError):  # the next save tries again
                    (folder / name).unlink()
        return checksum
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


def _checksum_of(folder: pathlib.Path) -> str:
    """The checksum of the bank in a directory; "" if no bank can be read there."""
    try:
        meta = _decode_meta((folder / META).read_bytes(), folder / META)
    except (OSError, BankFileError):
        return ""
    return _meta_checksum(meta)


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
def held(directory) -> Iterator[None]:
    """Keeps other threads and processes from saving to a directory; it is made.

    In the block this thread may save there as often as it likes.

    Args:
      directory: of a bank, there or not.

    Raises:
      BankFileError: it holds something else than a bank.
      OSError: it cannot be made, or others worked there for ten minutes.
    """
    folder = _folder(directory)
    _check_replaceable(folder)
    _make_folder(folder)
    with _locked(folder):
        yield


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[tuple[int | None, bool]]:
    """Locks the directory; gives its handle, and whether no other save runs meanwhile.

    The lock is the kernel's: it ends with the process, however that ends.
    """
    if fcntl is None:
        yield None, False
        return
    mine = threading.get_ident(), _key(folder)
    if mine in _HELD:
        yield _HELD[mine], True
        return
    handle, alone = os.open(folder, os.O_RDONLY), False
    try:
        alone = _lock(handle, folder)
        if alone:
            _HELD[mine] = handle
        yield handle, alone
    finally:
        _HELD.pop(mine, None)
        if alone:  # a forked child may hold the handle too
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _lock(handle: int, folder: pathlib.Path) -> bool:
    """Waits for the lock; False if the file system has none, as some of networks."""
    end = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                raise OSError(
                    errno.EBUSY,
                    f"another process has kept it locked for {_LOCK_WAIT_S:.0f} s",
                    str(folder),
                ) from None
        except OSError:
            return False
        time.sleep(_LOCK_PAUSE_S)


def _sync_folder(handle: int | None) -> None:
    """Puts the names of the files in a directory on the disk."""
    if handle is not None:
        os.fsync(handle)
