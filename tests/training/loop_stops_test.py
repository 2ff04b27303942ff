"""Where a step can be left, and what a run that was left there goes on with."""

import jax
import numpy as np
import pytest

from mempo_jax.builders.policies import make_nano
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.distributed.hosts import RunStopped, Stop, Stopped
from mempo_jax.distributed.placement import make_mesh
from mempo_jax.training.loop import Trainer
from tests.experiments import tiny

TIMES = ("seconds", "per_s", "ms_p", "device_bytes", "compilations")


def reward(trajectories):
    """A reward function of the user's: the second of each two tasks teaches."""
    return [float(t.task.index % 2 and t.sample < 2) for t in trajectories]


class StopAt(Stop):
    """Stops at the so manyth check; 0 never does."""

    def __init__(self):
        super().__init__()
        self.at = self.count = 0

    def check(self):
        self.count += 1
        if self.count == self.at:
            raise Stopped

    check_alone = check


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


class Case:
    """One trainer, set back to its beginning for each test."""

    def __init__(self):
        config = tiny.get_config()
        config.env.ledger.max_turns = 2
        config.sampling.max_resample_rounds = 1
        config.sampling.decode_chunk = 4
        config.reward.malformed = 0.0
        config.train.minibatches = 2
        config.train.micro_batch_tokens = 160  # two micro-batches an update
        config.train.max_skipped_updates = 2
        config.reward.function = f"{__name__}:reward"
        settings = from_config(config.to_dict())
        suite, mesh = make_suite(settings), make_mesh(1, 1, 1)
        self.stop, self.dumped = StopAt(), []
        self.trainer = Trainer(
            *(make_nano(suite, settings), suite, settings, mesh),
            stop=self.stop,
            dump=lambda step, update, arrays: self.dumped.append((step, update)),
        )
        self.start = jax.tree.map(np.array, self.trainer.state)

    def set_back(self):
        state = self.trainer.state
        self.trainer.state = jax.tree.map(
            lambda x, old: jax.device_put(x, old.sharding), self.start, state
        )
        self.stop.at = self.stop.count = 0
        self.trainer.in_a_row = {"skipped": 0, "empty": 0}
        self.dumped.clear()


@pytest.fixture(scope="module")
def made():
    return Case()


@pytest.fixture
def case(made):
    made.set_back()
    return made


def seen(figures, trajectories):
    """All that a step shows but times."""
    figures = {k: v for k, v in figures.items() if not any(t in k for t in TIMES)}
    actions = [(t.task.id, t.sample, tuple(t.actions)) for t in trajectories]
    return jax.tree.map(float, figures), actions


def test_a_step_that_is_left_anywhere_is_done_over_to_the_same_bits(case):
    case.trainer.step(0)
    case.set_back()
    straight = seen(*case.trainer.step(0))
    checks, after = case.stop.count, bits(case.trainer.state)
    assert straight[0]["updates"] == 2
    assert straight[0]["resample_rounds"] == 1
    tried = 0
    for at in [*range(1, checks, checks // 6), checks]:
        case.set_back()
        before = bits(case.trainer.state)
        case.stop.at = at
        with pytest.raises(Stopped):
            case.trainer.step(0)
        assert bits(case.trainer.state) == before, f"changed before check {at}"
        tried += 1
    assert tried >= 6
    assert seen(*case.trainer.step(0)) == straight
    assert bits(case.trainer.state) == after


def test_sampling_can_be_left_between_two_chunks(case, monkeypatch):
    asked = []
    engine = case.trainer.engine
    monkeypatch.setattr(engine, "between", lambda: asked.append(0))
    engine.set_params(case.trainer.local_params)
    case.trainer.groups.sample(0)
    sampling = case.trainer.settings.sampling
    chunks = sampling.max_new_tokens // sampling.decode_chunk
    assert len(asked) >= 2 * chunks > 2  # of the turns of two rounds


def break_reference(case, monkeypatch, *calls):
    """NaN in what the reference says of the micro-batches with these numbers."""
    programs, asked = case.trainer.programs, []

    class Broken:
        @staticmethod
        def score(*given):
            log_probs, entropy = programs.score(*given)
            asked.append(log_probs)
            broken = len(asked) in calls or not calls
            return (log_probs * np.nan if broken else log_probs), entropy

    monkeypatch.setattr(case.trainer, "_reference_programs", Broken)
    monkeypatch.setattr(case.trainer, "_reference_is_initial", False)


def test_nan_in_one_micro_batch_costs_its_update_alone(case, monkeypatch):
    break_reference(case, monkeypatch, 1)
    figures, _ = case.trainer.step(0)
    assert (figures["skipped_updates"], figures["updates"]) == (1, 2)
    assert case.dumped == [(0, 0)]
    assert case.trainer.in_a_row["skipped"] == 0
    assert bits(case.trainer.state.params) != bits(case.start.params)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(case.trainer.state))


def test_too_many_skipped_updates_stop_a_run_behind_a_step(case, monkeypatch):
    break_reference(case, monkeypatch)
    steps = []
    with pytest.raises(RunStopped, match="4 updates in a row"):
        steps += case.trainer.run(0, 9)
    assert case.dumped == [(step, update) for step in (0, 1) for update in (0, 1)]
    assert bits(case.trainer.state.params) == bits(case.start.params)
