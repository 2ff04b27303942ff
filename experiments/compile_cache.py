"""Keeps compiled programs beside the runs, so that a second start compiles nothing.

This is jax's persistent compilation cache. What a program computes does not change: an
entry is the program that would be compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import warnings
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from absl import flags

from mempo_jax.settings import local_path

from .launch import warn

FOLDER = ".jax_cache"
OFF = "off"
VARIABLE = "JAX_COMPILATION_CACHE_DIR"  # jax's own; if set, we change nothing
ZLIB = 0x78  # the first byte of an entry; jax writes another form if it finds zstandard


def define(options: flags.FlagValues) -> None:
    """Adds ``--compile_cache`` to the options of a launcher.

    Args:
      options: from ``flags.new_options``.
    """
    flags.DEFINE_string(
        "compile_cache",
        "",
        f"where compiled programs are kept, or {OFF}; {FOLDER} beside the run if left",
        flag_values=options,
    )


@contextlib.contextmanager
def kept(choice: str, run: str | os.PathLike) -> Iterator[None]:
    """Within it compiled programs are read from a folder, and written there.

    The folder has a part for each kind of processor and version of jax: programs of a
    CPU need not run on another one. A folder that cannot be written costs a warning.

    Args:
      choice: the value of ``--compile_cache``.
      run: the directory of the run, beside which the folder is made by default.
    """
    default = not choice
    if choice == OFF or (default and os.environ.get(VARIABLE)):
        yield
        return
    parent = local_path(run, "--workdir").absolute().parent
    folder = parent / FOLDER if default else local_path(choice, "--compile_cache")
    folder = folder.absolute() / _machine()
    problem = _not_writable(folder)
    if problem:
        warn(f"compiled programs are not kept: {problem}; see --compile_cache")
        yield
        return
    _drop_cut_off(folder)
    with warnings.catch_warnings():
        # An entry that another process is writing, or a disk that is full by now: jax
        # compiles then, so it costs time only.
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compil")
        with _jax_uses(folder):
            yield


@contextlib.contextmanager
def _jax_uses(folder: pathlib.Path) -> Iterator[None]:
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    ours = {
        "jax_compilation_cache_dir": str(folder),
        # Many small programs take as long as few large ones.
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in ours}

    def use(values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # or the first folder of a process stays

    use(ours)
    try:
        yield
    finally:
        use(before)


def _machine() -> str:
    """Names the kind of processor, with its features, and the version of jax."""
    about = [platform.system(), platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):  # no Linux
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = ("model name", "flags", "Features")
        about += sorted({line for line in lines if line.startswith(names)})
    digest = hashlib.sha256("\n".join(about).encode()).hexdigest()[:8]
    return f"jax{importlib.metadata.version('jax')}-{digest}"


def _not_writable(folder: pathlib.Path) -> str:
    """Why nothing can be written to the folder, "" if it can; makes no folder."""
    parent = folder  # or the nearest one that exists
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir():
        return f"{parent} is no directory"
    return "" if os.access(parent, os.W_OK | os.X_OK) else f"{parent} cannot be written"


def _drop_cut_off(folder: pathlib.Path) -> None:
    """Removes entries that a killed process left half written; jax would keep them."""
    for file in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # of another user, or gone by now
            content = file.read_bytes() if file.is_file() else b""
            if content[:1] == bytes([ZLIB]) and not _is_complete(content):
                file.unlink()


def _is_complete(content: bytes) -> bool:
    reader = zlib.decompressobj()
    try:
        reader.decompress(content)
    except zlib.error:
        return False
    return reader.eof
