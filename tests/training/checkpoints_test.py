"""Saving, restoring, falling back, and being killed in the middle."""

import asyncio
import gc
import os
import pathlib
import signal
import subprocess
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from mempo_jax.settings import ConfigError
from mempo_jax.training import checkpoints as checkpoints_module
from mempo_jax.training.checkpoints import CheckpointError, Checkpoints
from mempo_jax.types import TrainState

METADATA = {"config": {"a": (1,), 10: "ten", 9: "nine"}}
ROOT = pathlib.Path(__file__).parents[2]


def make_state(seed, width=16):
    key = jax.random.key(seed)
    params = {
        "dense": jax.random.normal(key, (8, width)),
        "half": jnp.asarray([1.5, -0.0, jnp.nan], jnp.bfloat16),
        "zeros": jnp.zeros((4,)),
    }
    return TrainState(params, optax.adam(1e-3).init(params), jnp.asarray(seed))


def as_target(state, sharding=None):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=sharding or x.sharding
        ),
        state,
    )


def assert_bits_equal(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def save_steps(directory, steps, keep=3):
    checkpoints = Checkpoints(directory, keep=keep)
    for step in steps:
        assert checkpoints.save(make_state(step), METADATA | {"step": step})
    checkpoints.close()


def largest_file(step_directory):
    files = [f for f in (step_directory / "state").rglob("*") if f.is_file()]
    return max(files, key=lambda f: f.stat().st_size)


def test_restores_bits_types_and_metadata(tmp_path):
    save_steps(tmp_path, [1])
    state, metadata = Checkpoints(tmp_path, keep=3).restore(as_target(make_state(0)))
    assert_bits_equal(state, make_state(1))
    assert isinstance(state, TrainState)
    config = {"a": [1], "10": "ten", "9": "nine"}
    assert metadata == {"step": 1, "config": config}


def test_nothing_saved_is_none(tmp_path):
    assert Checkpoints(tmp_path, keep=1).restore(as_target(make_state(0))) is None


def test_keeps_the_last_and_restores_the_newest(tmp_path):
    save_steps(tmp_path, [1, 2, 9, 10], keep=2)
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.steps() == [9, 10]
    assert checkpoints.restore(as_target(make_state(0))).metadata["step"] == 10


def test_restores_onto_the_target_sharding(tmp_path):
    save_steps(tmp_path, [1])
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
    target = as_target(make_state(1), NamedSharding(mesh, PartitionSpec()))
    split = NamedSharding(mesh, PartitionSpec("fsdp"))
    dense = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=split)
    target = target._replace(params=target.params | {"dense": dense})
    state = Checkpoints(tmp_path, keep=1).restore(target).state
    assert state.params["dense"].sharding == split
    assert len(state.params["half"].sharding.device_set) == 8
    assert_bits_equal(state, make_state(1))


def test_a_donated_state_is_saved_as_it_was(tmp_path):
    bump = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
    checkpoints = Checkpoints(tmp_path, keep=1)
    state = {"w": jnp.arange(4_000_000, dtype=jnp.float32)}
    checkpoints.save(state, {"step": 0})
    for _ in range(20):
        state = bump(state)
    jax.block_until_ready(state)
    checkpoints.wait()
    restored = checkpoints.restore(as_target(state)).state
    np.testing.assert_array_equal(restored["w"], np.arange(4_000_000))


def damage(directory, how):
    victim = largest_file(directory)
    content = bytearray(victim.read_bytes())
    if how == "truncate":
        victim.write_bytes(content[: len(content) // 2])
    elif how == "flip":
        content[len(content) // 2] ^= 0xFF
        victim.write_bytes(content)
    elif how == "remove":
        victim.unlink()
    elif how == "record":
        record = directory / "record" / "metadata"
        record.write_text(record.read_text().replace("config", "konfig"))
    else:
        for file in directory.rglob("*"):
            if file.is_file():
                file.unlink()


@pytest.mark.parametrize("how", ["truncate", "flip", "remove", "record", "empty"])
def test_damaged_newest_falls_back_with_one_warning(tmp_path, how):
    save_steps(tmp_path, [1, 2])
    damage(tmp_path / "2", how)
    checkpoints = Checkpoints(tmp_path, keep=3)
    with pytest.warns(UserWarning, match="step 2 is damaged") as caught:
        state, metadata = checkpoints.restore(as_target(make_state(0)))
    assert len([w for w in caught if w.category is UserWarning]) == 1
    assert metadata["step"] == 1
    assert_bits_equal(state, make_state(1))
    assert checkpoints.save(make_state(2), {"step": 2})
    checkpoints.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert checkpoints.restore(as_target(make_state(0))).metadata["step"] == 2
    checkpoints.close()
    assert Checkpoints(tmp_path, keep=3).steps() == [1, 2]


def test_a_damaged_checkpoint_is_warned_of_once_on_stderr(tmp_path):
    save_steps(tmp_path, [1, 2])
    for file in (tmp_path / "2" / "state" / "d").iterdir():
        file.write_bytes(b"?" + file.read_bytes()[1:])
    code = (
        "import sys\nsys.path.insert(0, 'tests/training')\n"
        "import checkpoints_test as t\n"
        "c = t.Checkpoints(sys.argv[1], keep=3)\n"
        "assert c.restore(t.as_target(t.make_state(0))).metadata['step'] == 1\n"
        "c.close()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("the checkpoint of step 2 is damaged") == 1


def test_tasks_left_by_a_failed_read_are_not_logged(caplog):
    async def leave_a_failed_task():
        task = asyncio.ensure_future(asyncio.wait_for(asyncio.Future(), 0))
        await asyncio.sleep(0.01)
        assert task.done()

    with checkpoints_module._quiet_asyncio():
        asyncio.run(leave_a_failed_task())
    assert caplog.text == ""
    asyncio.run(leave_a_failed_task())
    gc.collect()
    assert "never retrieved" in caplog.text


def test_all_damaged_stops_and_names_each(tmp_path):
    save_steps(tmp_path, [1, 2])
    for step in ("1", "2"):
        largest_file(tmp_path / step).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"step 2 .*step 1 is damaged"):
        Checkpoints(tmp_path, keep=3).restore(as_target(make_state(0)))


def test_another_config_is_refused_and_nothing_is_set_aside(tmp_path):
    save_steps(tmp_path, [1])
    checkpoints = Checkpoints(tmp_path, keep=3)
    with pytest.raises(ConfigError, match=r"dense is \[\[8, 16\], 'float32'\].*8, 32"):
        checkpoints.restore(as_target(make_state(1, width=32)))
    assert checkpoints.steps() == [1]


def test_the_same_step_is_saved_once_and_an_earlier_one_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    assert checkpoints.save(make_state(5), {"step": 5})
    assert not checkpoints.save(make_state(6), {"step": 5})
    with pytest.raises(ValueError, match="holds step 5"):
        checkpoints.save(make_state(4), {"step": 4})
    with pytest.raises(ValueError, match="expected an int, got None"):
        checkpoints.save(make_state(4), {})
    assert_bits_equal(
        checkpoints.restore(as_target(make_state(0))).state, make_state(5)
    )


def test_keep_below_one_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        Checkpoints(tmp_path, keep=0)


CHILD = """
import sys
import jax.numpy as jnp
from mempo_jax.training.checkpoints import Checkpoints

checkpoints = Checkpoints(sys.argv[1], keep=2)
for step in range(1, 10_000):
    state = {"w": jnp.full((2_000_000,), step, jnp.float32)}
    checkpoints.save(state, {"step": step})
"""


def is_saving(directory):
    return any("tmp" in path.name for path in directory.glob("*"))


def test_sigkill_while_saving_leaves_a_whole_checkpoint(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    try:
        deadline = time.monotonic() + 120
        finished = False
        while not (finished and is_saving(tmp_path)):
            assert child.poll() is None, "the saving process ended by itself"
            assert time.monotonic() < deadline, "no save was seen in progress"
            finished = finished or any(p.name.isdigit() for p in tmp_path.glob("*"))
            time.sleep(0.002)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    target = {"w": jax.ShapeDtypeStruct((2_000_000,), jnp.float32)}
    checkpoints = Checkpoints(tmp_path, keep=2)
    state, metadata = checkpoints.restore(target)
    assert set(np.unique(state["w"])) == {float(metadata["step"])}
    assert checkpoints.save(state, {"step": metadata["step"] + 9})
    checkpoints.close()
    assert not is_saving(tmp_path)


def test_the_best_is_kept_beside_the_last(tmp_path):
    scores = {1: 0.5, 2: 0.9, 3: None, 4: 0.9, 5: 0.1}
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step, score in scores.items():
        checkpoints.save(make_state(step), {"step": step, "score": score})
        if step == 3:  # scores outlive the process
            checkpoints.close()
            checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.wait()
    assert checkpoints.steps() == [2, 5]
    assert checkpoints.best() == 2
    assert_bits_equal(
        checkpoints.read(2, as_target(make_state(0))).state, make_state(2)
    )
    checkpoints.close()
