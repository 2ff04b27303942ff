import importlib
import random
import shutil
import sys

import pytest

from mempo_jax.envs import check_repeatable
from mempo_jax.envs.adapters import AdapterSuite
from mempo_jax.settings import ConfigError
from tests.envs.adapters.games import TOOLS, settings


@pytest.fixture(scope="module")
def suite():
    importlib.import_module("textworld_express")
    if shutil.which("java") is None:
        pytest.skip("there is no Java runtime")
    made = settings(id="coin", options=("numLocations=2", "numDistractorItems=0"))
    return AdapterSuite("textworld", made, TOOLS, 0)


def test_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "textworld_express", None)
    with pytest.raises(ConfigError, match=r"pip install 'mempo_jax\[textworld\]'"):
        AdapterSuite("textworld", settings(), TOOLS, 0)


@pytest.mark.extras
def test_no_java(monkeypatch):
    importlib.import_module("textworld_express")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="needs a Java runtime"):
        AdapterSuite("textworld", settings(id="coin"), TOOLS, 0)


@pytest.mark.extras
def test_games_share_a_process_and_nothing_else(suite):
    tasks = [suite.task("train", 0), suite.task("train", 1)]
    check_repeatable(suite, tasks)
    one, other = suite.make(tasks[0]), suite.make(tasks[1])
    one.reset(tasks[0].seed)
    shown = one.step("look around").observation
    other.reset(tasks[1].seed)
    for action in other._game.moves():
        other.step(action)
    assert one.step("look around").observation == shown
    assert "coin" in one.goal


@pytest.mark.extras
def test_a_game_is_won_by_searching(suite):
    """Wanders by the game's own list of moves until it sees the coin."""
    scores, rng = [], random.Random(0)
    for index in range(3):
        task = suite.task("test", index)
        env, turn = suite.make(task), 0
        env.reset(task.seed)
        earned, done = 0.0, False
        while not done and turn < 200:
            moves = sorted(env._game.moves())
            takes = [move for move in moves if move.startswith("take")]
            result = env.step(takes[0] if takes else rng.choice(moves))
            earned, done, turn = earned + result.reward, result.done, turn + 1
        assert earned == pytest.approx(env.score())
        scores.append(env.score())
    assert max(scores) == 1.0
    assert {"coin", "move", "door"} <= set(suite.vocabulary())


@pytest.mark.extras
def test_a_game_that_there_is_not(suite):
    with pytest.raises(ConfigError, match=r"expected a TextWorldExpress game.*'coin'"):
        AdapterSuite("textworld", settings(id="nope"), TOOLS, 0)
