"""Where and with what a measurement was made."""

from __future__ import annotations

import ctypes
import gc
import importlib.metadata
import os
import pathlib
import platform

import psutil

_PACKAGES = ("numpy", "scann", "hnswlib", "faiss-cpu", "wordllama", "tokenizers")


def facts() -> dict:
    """CPU, memory, threads and versions; a missing package is None."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "threads": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.endswith("_NUM_THREADS")
        },
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def resident() -> int:
    """Bytes of this process in memory; what was freed is given back first."""
    gc.collect()
    if hasattr(library := ctypes.CDLL(None), "malloc_trim"):  # glibc keeps it else
        library.malloc_trim(0)
    return psutil.Process().memory_info().rss


def _cpu() -> str:
    info = pathlib.Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
