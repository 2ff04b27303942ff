"""The main job in two processes: one dies, what is left is continued elsewhere."""

import signal
import time

import jax
import numpy as np
import pytest

from benchmarks import _processes
from mempo_jax.models import hf
from mempo_jax.runs.metrics_writer import read_metric_rows
from tests.experiments.process import TINY, environment

STEPS = 3
TRAIN = "experiments.train"


def words(workdir, *more):
    small = {
        "train.cold_start_steps": 4,
        "train.demonstrations": 8,
        "train.eval_tasks": 3,
        "train.steps": STEPS,
        "log.tensorboard": "false",
    }
    fields = [f"--config.{name}={value}" for name, value in small.items()]
    return (TINY, f"--workdir={workdir}", *fields, *more)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, compiled):
    """The directory of a run of one process on one device."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    env = environment(compiled, devices=1)
    [(code, _, err)] = _processes.finish(
        _processes.start(TRAIN, words(workdir), 1, env)
    )
    assert code == 0, err
    return workdir


@pytest.fixture(scope="module")
def killed(tmp_path_factory, compiled):
    """The directory of a run of two, one of which was killed amid the steps, and how
    the other one ended."""
    workdir = tmp_path_factory.mktemp("pair") / "run"
    env = environment(compiled, devices=1)
    both = _processes.start(TRAIN, words(workdir, "--config.train.steps=2"), 2, env)
    record, limit = workdir / "metrics.jsonl", time.monotonic() + 1_200
    while not record.is_file() or not record.read_text():
        assert all(each.poll() is None for each in both), _processes.finish(both)
        assert time.monotonic() < limit
        time.sleep(0.01)
    both[1].send_signal(signal.SIGKILL)
    left, dead = _processes.finish(both)
    assert dead[0] == -signal.SIGKILL
    return workdir, left


def test_the_death_of_one_process_ends_the_others(killed):
    workdir, (code, _, err) = killed
    assert code not in (0, None)
    ours = "the same command continues from what is saved"
    jax_s = "another task died"  # where its heartbeat noticed first
    assert ours in err or jax_s in err
    assert not (workdir / "summary.json").exists()


def test_what_a_killed_run_saved_is_continued_to_the_same_end(alone, killed, compiled):
    workdir, _ = killed
    # On another mesh, by another number of processes; benchmarks.processes --faults
    # lets the same number continue.
    env = environment(compiled, devices=4)
    more = words(workdir, "--config.mesh.fsdp=2")
    [(code, out, err)] = _processes.finish(_processes.start(TRAIN, more, 1, env))
    assert code == 0, err
    assert str(workdir) in out
    ours, theirs = (
        read_metric_rows(each / "metrics.jsonl") for each in (workdir, alone)
    )
    assert [row["step"] for row in ours] == list(range(STEPS))
    for row, other in zip(ours, theirs, strict=True):
        for name in ("loss", "reward", "grad_norm", "trained_tokens", "kl"):
            expected = pytest.approx(other.get(name), abs=1e-5)
            assert row.get(name) == expected, name
    ours, theirs = (hf.load(str(each / "policy"))[1] for each in (workdir, alone))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, theirs)
