"""How the tests run: on which devices, how well compiled, and which of them.

Every test sees eight virtual CPU devices. XLA compiles with little optimisation, since
the tests compile far more than they compute. With MEMPO_FULL_COMPILE=1 it compiles as
in training.

``data`` tests run if MEMPO_DATA_DIR is set; if it names no folder, the whole run fails.
``parity`` tests run with ``-m parity`` only, likewise ``extras``, ``notebook``, ``gpu``
and ``browser``. What is left out is deselected and counted so, never skipped.
"""

import collections
import os
import pathlib

import pytest

DATA_DIR = "MEMPO_DATA_DIR"
FULL_COMPILE = "MEMPO_FULL_COMPILE"
ON_DEMAND = ("parity", "extras", "notebook", "gpu", "browser")
DEVICES = ("--xla_force_host_platform_device_count=8",)
# How XLA turns its own program into machine code: the quick way, in one piece, hardly
# optimised. Its passes before that stay, and so do the shapes and the use of memory.
COMPILE_FAST = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
LEFT_OUT = pytest.StashKey()  # how many tests of each mark


def _add_xla_flags(flags):
    """Adds to XLA_FLAGS what is not set there yet."""
    present = os.environ.get("XLA_FLAGS", "").split()
    names = {flag.partition("=")[0] for flag in present}
    new = [flag for flag in flags if flag.partition("=")[0] not in names]
    os.environ["XLA_FLAGS"] = " ".join([*present, *new])


# XLA reads its flags once, when jax starts.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
_add_xla_flags(DEVICES)
if FULL_COMPILE not in os.environ and os.environ["JAX_PLATFORMS"] == "cpu":
    _add_xla_flags(COMPILE_FAST)  # on a GPU two of them would act too


def pytest_collection_modifyitems(config, items):
    kept, dropped = [], []
    left_out = config.stash[LEFT_OUT] = collections.Counter()
    unwanted = _unwanted_marks(config)
    for item in items:
        mark = next(filter(item.get_closest_marker, unwanted), None)
        (dropped if mark else kept).append(item)
        left_out.update([mark] if mark else [])
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def _unwanted_marks(config):
    """The marks whose tests are left out of this run."""
    asked_for = config.getoption("-m")
    unwanted = [mark for mark in ON_DEMAND if mark not in asked_for]
    if DATA_DIR not in os.environ:
        unwanted.append("data")
    elif not pathlib.Path(os.environ[DATA_DIR]).is_dir():
        raise pytest.UsageError(
            f"{DATA_DIR}={os.environ[DATA_DIR]}: there is no such folder; name the"
            " folder of public data files, or unset it to leave these tests out"
        )
    return unwanted


def pytest_sessionfinish(session):
    """A worker of pytest-xdist sends what it left out, which is not sent otherwise."""
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = dict(config.stash.get(LEFT_OUT, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    if sent := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[LEFT_OUT] = sent  # the same from every worker


def pytest_terminal_summary(terminalreporter, config):
    if left_out := config.stash.get(LEFT_OUT, {}):
        counts = ", ".join(f"{left_out[mark]} {mark}" for mark in sorted(left_out))
        terminalreporter.write_line(f"left out, by their marks: {counts}")


@pytest.fixture(scope="session")
def data_dir() -> pathlib.Path:
    """The folder of public data files; a test that uses it has the mark ``data``."""
    return pathlib.Path(os.environ[DATA_DIR])


@pytest.fixture(scope="session")
def compiled(tmp_path_factory) -> pathlib.Path:
    """A folder in which the processes that tests start find each other's programs.

    One for each worker: jax does not write its files atomically, so a worker could
    otherwise read what another one has only half written.
    """
    return tmp_path_factory.mktemp("compiled")
