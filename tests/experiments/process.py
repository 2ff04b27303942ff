"""Launchers as a user starts them: in a process of their own."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
TINY = "--config=tests/experiments/tiny.py"


def environment(cache, devices):
    """This process's environment for one with ``devices`` virtual CPU devices.

    ``cache`` keeps compiled programs from one process to the next.
    """
    flags = os.environ.get("XLA_FLAGS", "").split()
    kept = [flag for flag in flags if "device_count" not in flag]
    kept.append(f"--xla_force_host_platform_device_count={devices}")
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join(kept),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def start(cache, module, *words, **kwargs):
    """Starts ``python -m experiments.MODULE`` on one device."""
    env = environment(cache, devices=1)
    command = [sys.executable, "-m", f"experiments.{module}", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=env, **(pipes | kwargs))


def finish(process, timeout=240):
    """Waits; returns exit code, output and error output."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def python_m(cache, module, *words):
    return finish(start(cache, module, *words))
