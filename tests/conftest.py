"""Eight virtual CPU devices for every test, and which tests run by default.

``data`` tests run where MEMPO_DATA_DIR is set; that it names no folder fails the whole
run. ``parity`` tests run with ``-m parity`` only, likewise ``extras``, ``notebook``,
``gpu`` and ``browser``. What is left out is deselected and counted so, never skipped.
"""

import os
import pathlib

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
_FLAG = "--xla_force_host_platform_device_count=8"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()

DATA_DIR = "MEMPO_DATA_DIR"
ON_DEMAND = ("parity", "extras", "notebook", "gpu", "browser")


def pytest_collection_modifyitems(config, items):
    unwanted = set()
    if DATA_DIR not in os.environ:
        unwanted.add("data")
    elif not pathlib.Path(os.environ[DATA_DIR]).is_dir():
        raise pytest.UsageError(
            f"{DATA_DIR}={os.environ[DATA_DIR]}: there is no such folder; name the"
            " folder of public data files, or unset it to leave these tests out"
        )
    unwanted |= {mark for mark in ON_DEMAND if mark not in config.getoption("-m")}
    dropped = [
        item for item in items if any(map(item.get_closest_marker, sorted(unwanted)))
    ]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in set(dropped)]


@pytest.fixture(scope="session")
def data_dir() -> pathlib.Path:
    """The folder of public data files; a test that uses it bears the mark ``data``."""
    return pathlib.Path(os.environ[DATA_DIR])
