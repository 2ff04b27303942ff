"""A cold start that ends early goes on to the bits of one that did not."""

import jax
import numpy as np
import pytest

from mempo_jax.builders.engines import make_run_mesh
from mempo_jax.builders.policies import make_nano
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.distributed.hosts import Preempted, Stop
from mempo_jax.settings import ConfigError
from mempo_jax.training import cold_start as cold_starts
from mempo_jax.training.checkpoints import CheckpointError
from tests.experiments import tiny

STEPS, EVERY = 7, 3
CHECKS = 4  # micro-batches of a step


class Counting:
    """In the place of compiled programs: what it makes of the weights depends on every
    row that was drawn before, in their order."""

    def __init__(self, *given, **named):
        pass

    def trained(self, state):
        return state.params

    def supervised_zeros(self):
        return 0.0

    def supervised_accumulate(self, params, sums, rows):
        return 0.75 * sums + float(np.sum(rows.tokens)) / 1e4

    def apply(self, state, sums):
        moved = jax.tree.map(lambda x: 0.5 * x + sums, state.params)
        state = state._replace(params=moved, step=state.step + 1)
        return state, {"loss": np.float32(sums)}


class StopAt(Stop):
    def __init__(self, at):
        super().__init__()
        self.left = at

    def check(self):
        self.left -= 1
        if self.left == 0:
            raise Preempted


class Killed(Exception):
    pass


def config(**changes):
    c = tiny.get_config()
    c.mesh.data = 1
    c.train.update({"cold_start_steps": STEPS, "demonstrations": 8} | changes)
    c.train.cold_start_checkpoint_every = EVERY
    c.train.micro_batch_tokens = 320
    return from_config(c.to_dict())


@pytest.fixture
def start(monkeypatch, tmp_path):
    monkeypatch.setattr(cold_starts, "TrainPrograms", Counting)
    settings = config()
    suite, mesh = make_suite(settings), make_run_mesh(settings)
    policy = make_nano(suite, settings)

    def run(kept=tmp_path / "kept", at=0, settings=settings, progress=None):
        begun = []

        def show(stage, done, total, figures):
            if stage == "cold start":
                begun.append(done)
            if progress is not None:
                progress(stage, done)

        made = cold_starts.cold_start(
            *(policy, suite, settings, mesh, show), kept=kept, stop=StopAt(at)
        )
        return begun[0], [np.asarray(x).tobytes() for x in jax.tree.leaves(made)]

    return run


@pytest.mark.parametrize("at", [2, 4 * CHECKS + 1, STEPS * CHECKS])
def test_it_goes_on_from_where_it_was_stopped(start, at):
    _, whole = start(kept=None)
    with pytest.raises(Preempted):
        start(at=at)
    assert start() == ((at - 1) // CHECKS, whole)
    assert start() == (STEPS, whole), "what has ended is not done over"


def test_it_goes_on_from_what_was_saved_before_it_was_killed(start, monkeypatch):
    _, whole = start(kept=None)
    apply, done = Counting.apply, []

    def die(self, state, sums):
        done.append(0)
        if len(done) == 6:
            raise Killed
        return apply(self, state, sums)

    with monkeypatch.context() as patch:
        patch.setattr(Counting, "apply", die)
        with pytest.raises(Killed):
            start()
    assert start() == (EVERY, whole)


def test_other_demonstrations_are_refused(start):
    with pytest.raises(Preempted):
        start(at=3 * CHECKS + 1)
    with pytest.raises(ConfigError, match=r"\(demonstrations\)"):
        start(settings=config(demonstrations=9))
    assert start()[0] == 3


def test_what_is_damaged_is_not_gone_on_with(start, tmp_path):
    with pytest.raises(Preempted):
        start(at=3 * CHECKS)
    for file in (tmp_path / "kept").rglob("d/*"):
        file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        start()
