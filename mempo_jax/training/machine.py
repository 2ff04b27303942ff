"""On what a run is computed: versions and devices, for comparing runs later.

A run repeats itself to the bit only where these are the same.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import jax

import mempo_jax

PACKAGES = ("jax", "jaxlib", "numpy", "flax", "optax", "scann", "wordllama")


def describe() -> dict[str, Any]:
    """Versions of what computes, and the devices of all processes, as JSON has them."""
    device = jax.devices()[0]
    return {
        "mempo_jax": mempo_jax.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "backend": device.platform,
        "device": device.device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
    }


def with_this(known: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The machines that a run was computed on so far, and this one where it is new."""
    this = describe()
    return [*known, *([] if known and known[-1] == this else [this])]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """Programs are compiled for it, and another may add in another order; or ""."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = (line.partition(":")[2] for line in file if "model name" in line)
            return next(names, "").strip()
    except OSError:  # no Linux
        return platform.processor()
