import importlib
import sys

import numpy as np
import pytest

from mempo_jax.envs import Situation, Task, check_repeatable
from mempo_jax.envs.adapters import AdapterSuite, GameEnv
from mempo_jax.envs.adapters.gymnasium_text import GymnasiumGame, text_of
from mempo_jax.settings import ConfigError
from tests.envs.adapters.games import TOOLS, Corridor, settings
from tests.envs.scripted_env import make_episode


def played(env):
    game = GameEnv(GymnasiumGame(env), settings(), TOOLS)
    return game, game.reset(4)


@pytest.mark.parametrize("as_dict", [False, True])
def test_any_object_with_the_interface_is_played(as_dict):
    env, shown = played(Corridor(as_dict=as_dict))
    assert (shown, env.goal) == ("the door is 1", "open the door")
    assert env.step("open 0").observation == "you walk on"
    result = env.step("open 1")
    assert (result.observation, result.reward, result.done) == ("you are through", 1, 1)


def test_a_game_cut_off_is_at_its_end():
    env, _ = played(Corridor())
    assert [env.step("wait").done for _ in range(9)] == [False] * 8 + [True]


def test_an_observation_alone_is_a_start():
    class Bare(Corridor):
        def reset(self, *, seed=None):
            return super().reset(seed=seed)[0]

    env, shown = played(Bare())
    assert (shown, env.goal) == ("the door is 1", "")


def test_a_step_of_another_form_is_told():
    class Old(Corridor):
        def step(self, action):
            return super().step(action)[:4]

    env, _ = played(Old())
    assert "expected step() to give (observation" in env.step("x").observation


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ("plain", "plain"),
        (np.str_("numpy"), "numpy"),
        ({"text": "a", "other": "b"}, "a"),
        ({"message": "a", "board": [1]}, "a"),
        ({"anything": "a", "turn": 3}, "a"),
    ],
)
def test_texts_are_found(observation, text):
    assert text_of(observation) == text


@pytest.mark.parametrize(
    "observation", [3, None, {"a": 1}, {"a": "x", "b": "y"}, ["x"]]
)
def test_where_no_text_is(observation):
    with pytest.raises(TypeError, match="expected a text observation"):
        text_of(observation)


def test_gymnasium_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ConfigError, match=r"pip install 'mempo_jax\[gymnasium\]'"):
        AdapterSuite("gymnasium", settings(), TOOLS, 0)


def test_no_name():
    with pytest.raises(ConfigError, match=r"config\.env\.adapter\.id: expected"):
        AdapterSuite("gymnasium", settings(id=""), TOOLS, 0)


@pytest.fixture
def registered():
    """Corridor as a real Gymnasium environment, under the name that is returned."""
    gymnasium = importlib.import_module("gymnasium")

    class Registered(Corridor, gymnasium.Env):
        observation_space = gymnasium.spaces.Text(100)
        action_space = gymnasium.spaces.Text(100)

    name = "MempoCorridor-v0"
    gymnasium.register(name, entry_point=Registered)
    yield name
    del gymnasium.registry[name]


@pytest.mark.extras
def test_a_registered_environment_is_a_suite(registered):
    made = settings(id=registered, options=("doors=5",), moves=("open 0",))
    suite = AdapterSuite("gymnasium", made, TOOLS, 0)
    tasks = [suite.task("train", n) for n in range(4)]
    check_repeatable(suite, tasks)
    assert suite.task("test", 0).seed != tasks[0].seed
    starts = {suite.make(task).reset(task.seed) for task in tasks}
    assert len(starts) > 1
    assert {"door", "open", "walk", "through"} <= set(suite.vocabulary())
    said = suite.expert()(Situation("the door is 1", (), ()), np.random.default_rng(0))
    assert said.endswith("<act> open 0</act>")
    episode = make_episode(suite.make(tasks[0]))
    episode.task = Task("gymnasium", "train", 0, tasks[0].seed)
    number = episode.observe().user.split()[-1]
    episode.act(f"<mem_write>door {number}</mem_write><act>wait</act>")
    episode.act("<mem_recall>door</mem_recall>")
    episode.act(f"<act>open {number}</act>")
    assert episode.done
    assert episode.reward().raw["task"] == 1.0


@pytest.mark.extras
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NoSuchGame-v0", r"cannot make 'NoSuchGame-v0'"),
        ("no_such_module:Game-v0", "no_such_module"),
        ("FrozenLake-v1", r"expected a text observation.*got int"),
    ],
)
def test_what_gymnasium_cannot_give(name, expected):
    importlib.import_module("gymnasium")
    with pytest.raises(ConfigError, match=expected):
        AdapterSuite("gymnasium", settings(id=name), TOOLS, 0)
