import subprocess
import sys

import pytest

from mempo_jax.training import allocation

FAULTS = """
import resource
import numpy as np
from mempo_jax.training.allocation import keep_freed_memory
print(keep_freed_memory({environment}))
def touch():
    np.ones(64 << 20, np.uint8)
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults_of(environment):
    """What the call said, and the page faults of three pieces of memory."""
    made = subprocess.run(
        [sys.executable, "-c", FAULTS.format(environment=environment)],
        capture_output=True,
        check=True,
        text=True,
    )
    said, faults = made.stdout.split()
    return said == "True", int(faults)


@pytest.mark.skipif(allocation._mallopt() is None, reason="needs glibc")
def test_freed_memory_is_kept_and_not_mapped_again():
    kept, few = faults_of({"JAX_PLATFORMS": "cpu"})
    assert kept
    left, many = faults_of({"JAX_PLATFORMS": "cuda"})
    assert not left
    assert few * 10 < many


@pytest.mark.parametrize(
    "environment",
    [
        {"JAX_PLATFORMS": "tpu,cpu"},
        {"JAX_PLATFORMS": "cpu", "MALLOC_ARENA_MAX": "4"},
    ],
)
def test_nothing_is_asked_with_accelerators_or_where_the_user_asks(
    environment, monkeypatch
):
    monkeypatch.setattr(allocation, "_mallopt", lambda: pytest.fail("asked"))
    assert not allocation.keep_freed_memory(environment)


def test_a_plugin_is_an_accelerator(monkeypatch):
    monkeypatch.setattr(allocation, "_mallopt", lambda: lambda *_: 1)
    monkeypatch.setattr(allocation.importlib.util, "find_spec", lambda name: None)
    found = allocation.importlib.metadata
    monkeypatch.setattr(found, "entry_points", lambda group: ())
    assert allocation.keep_freed_memory({})
    monkeypatch.setattr(found, "entry_points", lambda group: (group,))
    assert not allocation.keep_freed_memory({})
