"""How a process on a CPU keeps the memory that its programs have freed.

All temporary memory of a compiled program is one piece. glibc gives so large a piece
back to the system when it is freed and maps it afresh at the next call, and each fresh
page costs time: over 100,000 of them for a training step of 5 million parameters.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping

# Numbers of mallopt(3), from malloc.h of glibc.
_ARENA_MAX, _MMAP_MAX, _TRIM_THRESHOLD = -8, -4, -1
_NEVER = 2_000_000_000  # bytes: freed memory at the end of the heap is kept up to here
_OWN = "MALLOC_"  # variables with which a user sets the same


def keep_freed_memory(environment: Mapping[str, str]) -> bool:
    """Asks glibc to keep what is freed, in one heap for all threads.

    To be called before JAX starts its threads. Nothing is asked where JAX has more than
    a CPU (their hosts have other uses for memory), without glibc, or where the
    environment sets a variable MALLOC_... itself.

    Args:
      environment: that of the process, as ``os.environ``.

    Returns:
      Whether it was asked for and granted.
    """
    if any(name.startswith(_OWN) for name in environment) or not _cpu_alone(
        environment
    ):
        return False
    mallopt = _mallopt()
    if mallopt is None:
        return False
    wanted = (_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER)
    granted = [mallopt(number, value) == 1 for number, value in wanted]
    return all(granted)


def _cpu_alone(environment: Mapping[str, str]) -> bool:
    """Whether JAX will compute on a CPU, told without starting it."""
    named = environment.get("JAX_PLATFORMS", "")
    if named:
        return named == "cpu"
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return not plugins and importlib.util.find_spec("libtpu") is None


def _mallopt():
    """glibc's function; None elsewhere, where others of this name differ or do less."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library.mallopt if hasattr(library, "gnu_get_libc_version") else None
