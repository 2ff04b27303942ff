"""One environment of eight does wrong: it costs its own trajectory alone."""

import json
import math
import threading
import time

import numpy as np
import pytest

from mempo_jax.core import group_normalise
from mempo_jax.envs import EpisodeStatus, StepResult
from mempo_jax.evaluation.stats import by_category, step_stats
from mempo_jax.rollout.assemble import BatchShapes, assemble_trajectories
from tests.envs.scripted_env import ScriptedEnv
from tests.rollout.tiny import (
    LINES,
    ScriptedEngine,
    decoding,
    jobs,
    make_collector,
    make_engine,
)

SCRIPT = ["<mem_write> one</mem_write> two", "<answer> gold</answer>"]
BAD = 3  # the sample whose environment does wrong


class BadEnv(ScriptedEnv):
    """Does wrong in the method and in the way that it is told."""

    def __init__(self, method, how):
        super().__init__(LINES)
        self.method, self.how = method, how

    def _wrong(self, method):
        if method != self.method:
            return False
        if self.how == "raises":
            raise RuntimeError("boom")
        if self.how == "sleeps":
            threading.Event().wait(30)
        return True

    def reset(self, seed):
        return None if self._wrong("reset") else super().reset(seed)

    def step(self, action, *, final=False):
        result = super().step(action, final=final)
        if self._wrong("step"):
            return StepResult(result.observation, math.nan, result.done)
        return result

    def score(self):
        return math.nan if self._wrong("score") else super().score()

    def useful(self):
        self._wrong("useful")
        return super().useful()


def run(engine, method=None, how=None, timeout_s=20.0, **options):
    def env(job):
        if job.sample == BAD and method:
            return BadEnv(method, how)
        return ScriptedEnv(LINES)

    collector = make_collector(engine, env=env, timeout_s=timeout_s, **options)
    return collector.run(jobs(8), decoding())


def segments(trajectory):
    return [(s.tokens, s.is_action, s.op_id) for s in trajectory.segments]


FAULTS = [
    *(("step", how, 0.4) for how in ("raises", "sleeps", "nan")),
    *(("reset", how, 0.4) for how in ("raises", "sleeps", "none")),
    *(("score", how, 0.4) for how in ("raises", "sleeps", "nan")),
]


@pytest.mark.parametrize(("method", "how", "limit"), FAULTS)
def test_the_other_seven_are_as_if_nothing_had_been(method, how, limit):
    fine = run(ScriptedEngine(SCRIPT))
    made = run(ScriptedEngine(SCRIPT), method, how, limit)
    assert [t.sample for t in made] == list(range(8))
    bad = made[BAD]
    assert (bad.status, bad.valid, bad.reward, bad.score) == (
        EpisodeStatus.FAILED,
        False,
        None,
        0.0,
    )
    came = {"raises": "boom", "sleeps": "HungCallError", "nan": "nan", "none": "None"}
    assert came[how] in bad.failure
    for before, after in zip(fine, made):
        if after is not bad:
            assert after.valid
            assert after.failure is None
            assert segments(after) == segments(before)
            assert after.reward.total == before.reward.total


@pytest.mark.parametrize("how", ["raises", "sleeps"])
def test_a_truth_that_cannot_be_told_is_no_truth(how):
    made = run(ScriptedEngine(SCRIPT), "useful", how, 0.4)
    assert [len(t.useful) for t in made] == [0 if i == BAD else 1 for i in range(8)]
    assert all(t.valid for t in made)


WRONG_TRUTHS = [
    *(("useful", value) for value in (None, 3, "01", {"a"}, [0.5], [True], {0: 1})),
    *(("questions", value) for value in (None, "what?", ["what?"], {1: 2}, 4)),
    *(("question_scores", value) for value in (None, "0.5", ["a"], [math.nan], [2.0])),
    *((name, None) for name in ("property", "missing")),
]


@pytest.mark.parametrize(("method", "value"), WRONG_TRUTHS)
def test_a_truth_of_a_wrong_kind_is_no_truth_and_costs_nothing_else(method, value):
    class Wrong(ScriptedEnv):
        if method == "property":

            @property
            def questions(self):
                raise RuntimeError("no licence")

        elif method == "missing":
            useful = None

    if value is not None or method not in ("property", "missing"):
        setattr(Wrong, method, lambda self: value)

    def env(job):
        return Wrong(LINES) if job.sample == BAD else ScriptedEnv(LINES)

    collector = make_collector(ScriptedEngine(SCRIPT), env=env)
    with pytest.warns(UserWarning, match="measured as if it were unknown"):
        made = collector.run(jobs(8), decoding())
    bad = made[BAD]
    assert all(t.valid and t.reward is not None for t in made)
    if method in ("useful", "missing"):
        assert bad.useful == frozenset()
    else:
        assert (bad.questions, bad.question_scores) == ((), ())
    json.dumps([t.to_json() for t in made], allow_nan=False)
    step_stats(made, 8)
    by_category(made)


@pytest.mark.parametrize("value", [{0}, [0], (0, 0), np.arange(1), range(1)])
def test_a_truth_in_another_form_is_taken(value, recwarn):
    class Env(ScriptedEnv):
        def useful(self):
            return value if not isinstance(value, np.ndarray) else list(value)

    collector = make_collector(ScriptedEngine(SCRIPT), env=lambda job: Env(LINES))
    [made] = collector.run(jobs(1), decoding())
    assert made.useful == frozenset({0})
    assert not recwarn.list


def test_a_score_above_1_by_rounding_is_cut():
    class Env(ScriptedEnv):
        def score(self):
            return sum([1 / 9] * 9) + 2e-16

        def question_scores(self):
            return [sum([1 / 9] * 9) + 2e-16, 0]

    collector = make_collector(ScriptedEngine(SCRIPT), env=lambda job: Env(LINES))
    [made] = collector.run(jobs(1), decoding())
    assert made.score == 1.0
    assert made.question_scores == (1.0, 0.0)


def test_a_failed_member_votes_in_neither_mean_nor_std():
    made = run(ScriptedEngine(SCRIPT), "step", "nan")
    for number, trajectory in enumerate(made):
        if trajectory.reward is not None:
            object.__setattr__(trajectory.reward, "total", float(number % 2))
    shapes = BatchShapes((160,), 1_280, 1, max_turns=6, max_ops=30)
    arrays = assemble_trajectories(made, 1, shapes)
    assert arrays.valid.tolist() == [[i != BAD for i in range(8)]]
    advantage = np.asarray(group_normalise(arrays.reward, arrays.valid))[0]
    others = np.delete(np.arange(8) % 2, BAD)
    expected = (others - others.mean()) / (others.std() + 1e-4)
    np.testing.assert_allclose(np.delete(advantage, BAD), expected, rtol=1e-5)
    assert advantage[BAD] == 0


def test_with_the_real_engine_the_others_sample_the_same():
    engine = make_engine()
    fine = run(engine)
    made = run(engine, "step", "raises")
    assert made[BAD].status is EpisodeStatus.FAILED
    for before, after in zip(fine, made):
        if after.sample != BAD:
            assert segments(after) == segments(before)


def test_what_a_hung_call_does_later_changes_nothing():
    wake, done = threading.Event(), threading.Event()

    class LateEnv(ScriptedEnv):
        def step(self, action, *, final=False):
            wake.wait(30)
            try:
                return super().step(action, final=final)
            finally:
                done.set()

    def env(job):
        return LateEnv(LINES) if job.sample == BAD else ScriptedEnv(LINES)

    collector = make_collector(ScriptedEngine(SCRIPT), env=env, timeout_s=0.3)
    made = collector.run(jobs(8), decoding())
    before = json.dumps(made[BAD].to_json())
    wake.set()
    assert done.wait(5)
    time.sleep(0.1)
    assert json.dumps(made[BAD].to_json()) == before
    assert made[BAD].status is EpisodeStatus.FAILED


def test_a_slot_is_free_again_after_a_failure():
    def env(job):
        return BadEnv("step" if job.sample % 2 else "reset", "raises")

    collector = make_collector(ScriptedEngine(SCRIPT, slots=2), env=env)
    made = collector.run(jobs(9), decoding())
    assert [t.sample for t in made if t.status is EpisodeStatus.FAILED] == list(
        range(9)
    )


def test_a_fault_of_the_program_is_no_fault_of_the_environment():
    class Engine(ScriptedEngine):
        def generate(self, requests, **options):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(Engine(SCRIPT))

    def env(job):
        raise LookupError("not made")

    with pytest.raises(LookupError):
        make_collector(ScriptedEngine(SCRIPT), env=env).run(jobs(1), decoding())
