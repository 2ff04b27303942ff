"""Every config of the folder gives settings, and does what its docstring says."""

import importlib
import pathlib

import pytest

from mempo_jax.config import from_config
from mempo_jax.envs.ledger import LedgerSuite

FOLDER = pathlib.Path(__file__).parents[2] / "configs"
NAMES = sorted(p.stem for p in FOLDER.glob("*.py") if p.stem != "__init__")


def settings_of(name):
    config = importlib.import_module(f"configs.{name}").get_config()
    return from_config(config.to_dict())


@pytest.mark.parametrize("name", NAMES)
def test_it_gives_settings_and_says_how_to_run_it(name):
    module = importlib.import_module(f"configs.{name}")
    assert f"--config=configs/{name}.py" in module.__doc__
    assert settings_of(name).train.steps > 0


def test_the_long_ledger_asks_for_an_early_fact_at_the_end():
    settings = settings_of("ledger_long")
    suite = LedgerSuite(settings.env.ledger, settings.seed)
    for index in range(20):
        env = suite.make(suite.task("train", index))
        env.reset(suite.task("train", index).seed)
        [question] = env.questions()
        assert question.observation == 40
        assert max(question.support) <= 3


def test_the_named_ledger_names_its_topics_in_the_goal():
    settings = settings_of("ledger_named")
    suite = LedgerSuite(settings.env.ledger, settings.seed)
    goals = set()
    for index in range(20):
        env = suite.make(suite.task("train", index))
        env.reset(suite.task("train", index).seed)
        goals.add(env.goal)
    assert len(goals) > 5
