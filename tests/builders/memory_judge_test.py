"""The policy as adviser of its memory, wired into a run."""

import dataclasses

import jax
import numpy as np
import pytest

from mempo_jax.builders import memory_models
from mempo_jax.builders.engines import make_run_mesh
from mempo_jax.builders.policies import make_nano
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.memory import Verdict
from mempo_jax.rollout.sampler import Generation
from mempo_jax.settings import ConfigError
from mempo_jax.training.loop import Trainer
from mempo_jax.training.run import run
from tests.experiments import tiny
from tests.rollout.at_once import AtOnce

SCRIPT = (
    "<mem_write> ann phone 17</mem_write><mem_write> ann bus 5</mem_write>",
    "<mem_write> ben desk 23</mem_write><mem_write> ann phone 18</mem_write>",
    "<mem_write> ann desk 3</mem_write><mem_write> ben bus 9</mem_write>"
    '<mem_merge ids="0,1"/>',
    "<mem_write> ann room 4</mem_write><mem_write>never closed",
)


def config(**changes):
    c = tiny.get_config()
    c.memory.judge = c.memory.summarise = "policy"
    c.memory.merge_max_chars = 12
    c.memory.merge_threshold = 0.2
    c.memory.summarise_tokens = 8
    c.env.ledger.min_turns = c.env.ledger.max_turns = 6
    for name, value in changes.items():
        c.memory[name] = value
    return c.to_dict()


def settings_of(**changes):
    return from_config(config(**changes))


def world(**changes):
    settings = settings_of(**changes)
    suite = make_suite(settings)
    return settings, suite, make_nano(suite, settings)


def scripted(engine, tokenizer, monkeypatch):
    """The engine's turns are replaced by writes and merges, another for each slot."""
    turns = {}

    def generate(requests, **options):
        made = []
        for request in requests:
            turn = turns[request.slot] = turns.get(request.slot, request.slot) + 1
            text = SCRIPT[turn % len(SCRIPT)]
            ids = tokenizer.encode(text)
            zeros = np.zeros(len(ids), np.float32)
            made.append(Generation(ids, zeros, "length", tokenizer.decode(ids)))
        return made

    turns.clear()
    instead = AtOnce()
    instead.generate = generate
    monkeypatch.setattr(engine, "submit", instead.submit)
    monkeypatch.setattr(engine, "wait", instead.wait)


def test_by_default_the_policy_is_asked_nothing_and_learns_no_word():
    plain = from_config(tiny.get_config().to_dict())
    assert memory_models.vocabulary(plain) == ([], [])
    mesh = make_run_mesh(plain)
    assert (
        memory_models.make_memory_models(None, plain, mesh)
        == memory_models.MemoryModels()
    )
    assert memory_models.without_policy(plain) == memory_models.MemoryModels()


def test_what_comes_before_a_policy_is_judged_by_its_words():
    given = memory_models.without_policy(settings_of())
    assert given.callables["judge"]("ann phone 18", "ann phone 17") == Verdict.UPDATES
    assert given.callables["summarise"] is None
    assert given.prefetch_verdicts is None


def test_a_built_in_policy_knows_its_questions_and_answers():
    settings, _, policy = world(judge_yes="surely", judge_no="never")
    unknown = policy.tokenizer.encode("<unk>")[0]
    memory = settings.memory
    for text in (memory.judge_adds_prompt, memory.judge_changes_prompt, "surely"):
        ids = policy.tokenizer.encode(text.format(new=" bus", old=" bus"))
        assert unknown not in ids
    ids = policy.tokenizer.encode(memory.summarise_prompt.format(text="", max_chars=9))
    assert unknown not in ids


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"judge_yes": "no"}, "expected words that begin with different tokens"),
        ({"judge_adds_prompt": "{new}?"}, "judge_adds_prompt: expected a text with"),
        ({"judge_no": ""}, "judge_no: expected a word that the policy's tokenizer"),
        ({"summarise_prompt": "{old}"}, "summarise_prompt: expected a text with"),
        ({"summarise_tokens": 500}, "summarise_tokens: expected less than 76"),
    ],
)
def test_what_cannot_serve_is_refused_before_anything_is_done(
    changes, message, tmp_path
):
    given = config(**changes)
    with pytest.raises(ConfigError, match=message):
        run(from_config(given), given, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"judge": "polcy"}, "memory.judge: expected one of"),
        ({"summarise": "cut"}, "memory.summarise: expected one of"),
        ({"summarise_tokens": 0}, "memory.summarise_tokens: expected at least 1"),
        ({"embedder_model": "x"}, "memory.embedder_model: expected '' with 'hashing'"),
        ({"embedder": "sentence_transformers"}, "expected a model directory, got ''"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        settings_of(**changes)


def test_an_embedder_that_cannot_be_had_is_a_config_error():
    settings = settings_of(
        embedder="sentence_transformers", embedder_model="/nowhere/mini"
    )
    with pytest.raises(ConfigError, match=r"config\.memory\.embedder: embedder"):
        settings.memory.make_embedder()


def test_steps_with_the_policy_as_adviser_repeat_and_compile_nothing_new(monkeypatch):
    # The untrained policy happens to prefer "no"; turned round, it merges.
    settings, suite, policy = world(judge_yes="no", judge_no="yes")
    train = dataclasses.replace(settings.train, max_log_prob_gap=1e9)
    settings = dataclasses.replace(settings, train=train)
    mesh = make_run_mesh(settings)
    trainer = Trainer(policy, suite, settings, mesh)
    trainer.warm_up()
    trainer.step(0)
    saved = jax.device_get(trainer.state)
    placed = jax.tree.map(lambda x: x.sharding, trainer.state)
    seen = []
    for _ in range(2):
        trainer.state = jax.device_put(saved, placed)
        scripted(trainer.engine, policy.tokenizer, monkeypatch)
        figures, trajectories = trainer.step(1)
        logs = [t.log for t in trajectories]
        seen.append((logs, jax.device_get(trainer.state.params)))
        assert figures["compilations"] == 0
    assert seen[0][0] == seen[1][0]
    jax.tree.map(np.testing.assert_array_equal, seen[0][1], seen[1][1])
    judge, summarise = trainer.engine._subscribers
    assert judge._verdicts
    assert summarise._summaries
    outcomes = {r.outcome for log in seen[0][0] for r in log if r.kind == "write"}
    assert len(outcomes) > 1, "all were judged alike"
