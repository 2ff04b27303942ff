"""The policy as judge within a collector: asked ahead, and never the environment's."""

import threading

import jax
import pytest

from mempo_jax.memory import Bank, BankConfig, Verdict
from mempo_jax.rollout.collect import Collector
from mempo_jax.rollout.engine import Engine
from mempo_jax.rollout.policy_judge import PolicyJudge, Questions
from tests.envs.scripted_env import EMBEDDER, ScriptedEnv, context, limits, make_episode
from tests.rollout.policy_judge_test import make_params as varied_params
from tests.rollout.tiny import LINES, MODEL, TOKENIZER, ScriptedEngine, decoding, jobs

SCRIPT = (
    "<mem_write> one two</mem_write><mem_write> one two three</mem_write>",
    '<mem_write title="four"> gold</mem_write><mem_write> one</mem_write>',
    "<mem_write> four five</mem_write><mem_write>never closed",
    "<mem_write> one two</mem_write><answer> gold</answer>",
)


def new_judge():
    questions = Questions(
        "use {old} find {new} one", "use {old} find {new} two", "gold", "memory"
    )
    return PolicyJudge(MODEL, TOKENIZER, questions, longest=96, rows=8)


def collector_with(judge, engine, *, ahead=True, timeout_s=20.0):
    def make(job):
        bank = Bank(BankConfig(judge="policy"), EMBEDDER, f"{job.sample}", judge=judge)
        rules, settings = context(max_context_tokens=120), limits(max_turns=6)
        env = ScriptedEnv(LINES)
        return make_episode(env, bank=bank, rules=rules, settings=settings)

    prefetch = judge.prefetch_verdicts if ahead else None
    return Collector(engine, TOKENIZER, make, timeout_s, prefetch)


def run(engine, ahead, monkeypatch, seed=0):
    judge, passes = new_judge(), []
    judge.set_params(varied_params(seed))
    plain = judge._yes

    def counted(contexts):
        if contexts:
            passes.append(len(contexts))
        return plain(contexts)

    monkeypatch.setattr(judge, "_yes", counted)
    made = collector_with(judge, engine, ahead=ahead).run(jobs(8), decoding())
    return [(t.log, t.actions, t.segments, t.reward.total) for t in made], passes


class EachItsOwn(ScriptedEngine):
    """Each slot begins at another place of the script."""

    def _one(self, request):
        self._turns.setdefault(request.slot, request.slot)
        return super()._one(request)


def test_asking_ahead_changes_no_trajectory(monkeypatch):
    ahead, few = run(EachItsOwn(SCRIPT), True, monkeypatch)
    alone, many = run(EachItsOwn(SCRIPT), False, monkeypatch)
    assert ahead == alone
    writes = [r for log, *_ in ahead for r in log if r.kind == "write"]
    assert len({(r.outcome, r.supersedes) for r in writes}) > 1, "all judged alike"
    assert len(few) < len(many)
    assert max(few) > max(many), "several trajectories in one pass"


def test_the_engine_gives_the_judge_its_parameters_and_its_warm_up():
    engine = Engine(
        *(MODEL, TOKENIZER),
        slots=2,
        max_length=16,
        prefill_buckets=(16,),
        decode_chunk=1,
        row_buckets=(2,),
        span_buckets=(16,),
        closing_tags=(),
    )
    judge = new_judge()
    engine.subscribe(judge)
    with pytest.raises(ValueError, match="no parameters"):
        judge("one", "two")
    for seed in (0, 1):
        params = jax.device_put(varied_params(seed))
        engine.set_params(params)
        assert jax.tree.all(jax.tree.map(lambda a, b: a is b, judge._params, params))
    warmed = []
    judge.warm_up = lambda: warmed.append(True)
    engine.warm_up()
    assert warmed == [True]


class OwnJudge:
    """A judge that does what the test says."""

    def __init__(self, say):
        self.say, self.threads = say, set()

    def __call__(self, new, old):
        return self.many([(new, old)])[0]

    def many(self, pairs):
        self.threads.add(threading.current_thread())
        return [self.say() for _ in pairs]

    def prefetch_verdicts(self, pairs):
        self.threads.add(threading.current_thread())


def test_a_fault_of_the_judge_is_no_fault_of_the_environment():
    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        collector_with(OwnJudge(fail), ScriptedEngine(SCRIPT)).run(jobs(2), decoding())


def test_a_judge_that_takes_its_time_costs_no_trajectory():
    waits = iter([1.2])

    def slowly():
        threading.Event().wait(next(waits, 0))
        return Verdict.ADDS

    judge = OwnJudge(slowly)
    made = collector_with(judge, ScriptedEngine(SCRIPT), timeout_s=0.8)
    made = made.run(jobs(1), decoding())
    assert [t.failure for t in made] == [None]
    assert judge.threads == {threading.current_thread()}
