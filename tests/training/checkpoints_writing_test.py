"""A disk that is full and a directory that cannot be written: nothing saved is lost."""

import contextlib
import errno
import os
import resource

import jax
import pytest

from mempo_jax.training.checkpoints import CheckpointError, Checkpoints
from tests.training.checkpoints_test import as_target, assert_bits_equal, make_state


@contextlib.contextmanager
def full_disk(size):
    """No file may grow beyond ``size`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_costs_nothing_that_was_saved(tmp_path):
    noise = [jax.random.normal(jax.random.key(n), 100_000) for n in range(4)]
    states = [{"w": x} for x in noise]  # which no compression makes small
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(states[1], {"step": 1})
    checkpoints.wait()
    failed = pytest.raises(CheckpointError, match=r"step 2 could not .* 1 is kept")
    with full_disk(100_000), failed:
        save_and_wait(checkpoints, states[2], 2)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    save_and_wait(checkpoints, states[2], 2)  # there is room again
    assert checkpoints.steps() == [2]
    restored = checkpoints.restore(states[3])
    assert restored.metadata["step"] == 2
    assert_bits_equal(restored.state, states[2])
    checkpoints.close()


def save_and_wait(checkpoints, state, step):
    checkpoints.save(state, {"step": step})
    checkpoints.wait()


def test_a_directory_that_cannot_be_written(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, keep=1)
    save_and_wait(checkpoints, make_state(1), 1)
    mkdir = os.mkdir

    def refuse(path, *given, **named):
        if str(path).startswith(str(tmp_path)):
            raise PermissionError(errno.EROFS, "Read-only file system", str(path))
        mkdir(path, *given, **named)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(CheckpointError, match=r"step 2 could not .*Read-only"):
        save_and_wait(checkpoints, make_state(2), 2)
    monkeypatch.undo()
    assert checkpoints.restore(as_target(make_state(0))).metadata["step"] == 1
