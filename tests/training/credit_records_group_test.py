"""One group looked at closely: the numbers are those that training uses."""

import dataclasses

import numpy as np
import pytest

from mempo_jax.config import from_config
from mempo_jax.core import group_normalise
from mempo_jax.envs import EpisodeStatus
from mempo_jax.settings import ConfigError
from mempo_jax.training import credit_records
from mempo_jax.training.credit_records import group_credit, sample_group
from tests.policy_case import config
from tests.rollout import tiny
from tests.rollout.assemble_test import trajectory

WRITE = "<mem_write> one two</mem_write>"
PLAIN = (WRITE, "<mem_recall> one</mem_recall>", "<answer> gold</answer>")


def settings_of(*modes):
    made = config()
    made.credit.modes = modes
    made.credit.other_weight = 0.25
    return from_config(made.to_dict())


@pytest.fixture(scope="module")
def group():
    """Two that write and answer, the second wrongly; a third that says nothing."""
    scripts = PLAIN, (*PLAIN[:2], "<answer> five</answer>"), ("",)
    made = []
    for sample, script in enumerate(scripts):
        collector = tiny.make_collector(tiny.ScriptedEngine(script), turns=3)
        made += collector.run([tiny.jobs(3)[sample]], tiny.decoding())
    return made


def assert_all(said, value):
    assert said
    np.testing.assert_allclose([number for _, number in said], value, rtol=1e-5)


def test_the_advantage_is_that_of_the_group(group):
    found = group_credit(group, tiny.TOKENIZER, settings_of("uniform"))
    rewards = np.array([[each.reward.total for each in group]])
    np.testing.assert_allclose(found.advantage, group_normalise(rewards)[0], atol=1e-3)
    for each, advantage, said in zip(group, found.advantage, found.said, strict=True):
        assert len(said) == len(each.actions)
        assert_all([piece for turn in said for piece in turn], advantage)


def test_the_pieces_are_what_was_said(group):
    found = group_credit(group, tiny.TOKENIZER, settings_of("uniform"))
    for each, said in zip(group, found.said, strict=True):
        assert ["".join(text for text, _ in turn) for turn in said] == each.actions


def test_a_character_whose_bytes_tokens_share_is_shown_once(group):
    class Shared:
        pad_id, decode = tiny.TOKENIZER.pad_id, tiny.TOKENIZER.decode

        def offsets(self, ids):  # each token begins within the last one's character
            return [(max(a - 1, 0), b) for a, b in tiny.TOKENIZER.offsets(ids)]

    found = group_credit(group, Shared(), settings_of("uniform"))
    for each, said in zip(group, found.said, strict=True):
        assert ["".join(text for text, _ in turn) for turn in said] == each.actions


def test_modes_lay_it_on_the_ops(group):
    plain = group_credit(group, tiny.TOKENIZER, settings_of("ops_only"))
    good = float(plain.advantage[0])
    write, recall, answer = plain.said[0]
    *tags, end = write
    assert_all(tags + recall, good)
    assert_all([end, *answer], 0.25 * good)
    more = group_credit(group, tiny.TOKENIZER, settings_of("ops_only", "attribution"))
    bonus = [
        (said[0][0][1] - base[0][0][1])
        for said, base in zip(more.said[:2], plain.said[:2], strict=True)
    ]
    assert bonus[0] > 0 > bonus[1], "one write was used for a right answer"
    assert more.said[0][1] == plain.said[0][1], "recalls earn no bonus"


def test_who_does_not_count_gets_nothing(group):
    silent = trajectory(segments=[], turns=2)
    found = group_credit([silent], tiny.TOKENIZER, settings_of("uniform"))
    assert found.said == [[[], []]]
    lost = dataclasses.replace(group[0], status=EpisodeStatus.FAILED)
    found = group_credit([lost, *group[1:]], tiny.TOKENIZER, settings_of("uniform"))
    assert {value for turn in found.said[0] for _, value in turn} == {0.0}


def test_modes_that_ask_the_policy_are_refused(group):
    with pytest.raises(ConfigError, match="need no probe of the policy"):
        group_credit(group, tiny.TOKENIZER, settings_of("answer_probability"))


def test_a_group_is_sampled_as_in_training(monkeypatch):
    asked = {}

    class Engine:
        def set_params(self, params):
            asked["params"] = params

    class Collector:
        def run(self, jobs, decoding):
            asked["jobs"], asked["decoding"] = jobs, decoding
            return jobs

    settings = settings_of("uniform")
    monkeypatch.setattr(
        credit_records, "make_collector", lambda *given: (Engine(), Collector())
    )
    policy = type("Policy", (), {"params": "weights"})()
    task = tiny.jobs(1)[0].task
    made = sample_group(policy, None, settings, None, task)
    assert asked["params"] == "weights"
    assert [job.sample for job in made] == list(range(settings.sampling.group_size))
    assert {(job.task, job.purpose) for job in made} == {(task, "trace")}
    assert asked["decoding"].temperature == settings.sampling.temperature
