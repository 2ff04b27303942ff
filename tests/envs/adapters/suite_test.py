import threading

import pytest

from mempo_jax.envs.adapters import AdapterSuite, game_suite
from mempo_jax.envs.adapters.gymnasium_text import GymnasiumGame
from mempo_jax.envs.tools import ToolConfig
from mempo_jax.settings import ConfigError
from tests.envs.adapters.games import TOOLS, Corridor, settings


def made(monkeypatch, make, tools=TOOLS, **changes):
    monkeypatch.setitem(game_suite.MAKERS, "gymnasium", lambda chosen: make)
    return AdapterSuite("gymnasium", settings(**changes), tools, 0)


def test_tasks_of_a_game_know_its_words_and_the_moves(monkeypatch):
    game = made(monkeypatch, lambda split: GymnasiumGame(Corridor()), moves=("open 1",))
    assert {"door", "through", "walk", "open", "no", "move"} <= set(game.vocabulary())
    seeds = [game.task(split, n).seed for split in ("train", "test") for n in range(5)]
    assert len(set(seeds)) == 10


class Hanging(GymnasiumGame):
    def __init__(self, wake):
        self.wake = wake

    def start(self, seed):
        self.wake.wait(20)


def test_a_game_that_cannot_start_is_refused_by_its_name(monkeypatch):
    with pytest.raises(ConfigError, match=r"id: gymnasium game 'game': .*'int'"):
        made(monkeypatch, lambda split: GymnasiumGame(3))
    wake = threading.Event()
    tools = ToolConfig(0.05, 0, True)
    with pytest.raises(ConfigError, match=r"game 'game': no answer within 0\.05 s"):
        made(monkeypatch, lambda split: Hanging(wake), tools)
    wake.set()
