"""``examples/agent.py``: it asks what the trained world values, and checks itself.

With the policy of a whole ``make train`` it prints "right"; that takes minutes and is
left to those who run the example.
"""

import importlib.util
import pathlib

import pytest

from configs import base
from mempo_jax.config import from_config
from mempo_jax.envs.ledger import TOPICS, LedgerSuite
from tests.policy_case import save_policy

FILE = pathlib.Path(__file__).parents[1] / "examples" / "agent.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("example_agent", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_asks_about_a_topic_that_the_world_of_make_train_values(example):
    settings = from_config(base.get_config().to_dict())
    suite = LedgerSuite(settings.env.ledger, settings.seed)
    who, topic = example.QUESTION.split()[2:]
    assert topic in suite.world_topics
    assert f"{who} {topic} is {example.ANSWER}" in example.FACTS
    topics = {fact.split()[1] for fact in example.FACTS}
    assert topics <= set(TOPICS)
    assert topics - set(suite.world_topics), "one fact should be passed by"
    task = suite.make(suite.task("test", 0))
    task.reset(0)
    assert task.goal == example.GOAL
    assert all(each in example.__doc__ for each in suite.world_topics)


def test_a_policy_that_was_not_trained_does_not_pass(example, tmp_path, capsys):
    assert example.main(str(save_policy(tmp_path / "policy"))) == 1
    out = capsys.readouterr().out
    assert "task TextTask/run/3, goal: answer the question" in out
    assert "entries active" in out
    assert out.splitlines()[-1] == "expected the answer 23: WRONG"
