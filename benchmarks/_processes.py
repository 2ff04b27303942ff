"""Starts several local processes that run one job together, on virtual CPU devices."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).parents[1]


def free_port() -> int:
    """A port that nobody listens at, for process 0 of a run."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def environment(cache: str | os.PathLike, devices: int) -> dict[str, str]:
    """This process's own, with ``devices`` CPU devices a process.

    cache: keeps compiled programs from one process to the next.
    """
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def start(
    module: str, words: Sequence[str], count: int, env: Mapping[str, str]
) -> list[subprocess.Popen]:
    """``python -m MODULE WORDS`` in ``count`` processes, with --coordinator,
    --processes and --process beside it where there are several."""
    address = f"--coordinator=localhost:{free_port()}"
    started = []
    for number in range(count):
        launch = (address, f"--processes={count}", f"--process={number}")
        command = [sys.executable, "-m", module, *words]
        started.append(
            subprocess.Popen(
                [*command, *(launch if count > 1 else ())],
                cwd=ROOT,
                env=dict(env),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return started


def finish(
    started: Sequence[subprocess.Popen], timeout_s: float = 1_200
) -> list[tuple[int, str, str]]:
    """Exit code, output and error output of each; all are ended after ``timeout_s``."""

    def end(process: subprocess.Popen) -> tuple[int, str, str]:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        return process.returncode, out, err

    with ThreadPoolExecutor(len(started)) as pool:
        return list(pool.map(end, started))
