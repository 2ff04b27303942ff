import random
import threading

import pytest

from mempo_jax.envs.adapters import GameEnv, GameMessage
from mempo_jax.envs.adapters.game import NO_MOVE
from mempo_jax.envs.tools import HungToolError, ToolConfig
from tests.envs.adapters.games import TOOLS, settings
from tests.envs.scripted_env import make_episode


class Dice:
    """Each move throws a die from the global random numbers; it scores as it says."""

    def __init__(self, rewards=(0.25, 0.5), wake=None):
        self.rewards, self.wake, self.thrown = rewards, wake, []

    def start(self, seed):
        self.at = 0
        return GameMessage("throw", rules="throw the die")

    def move(self, action):
        if action == "break":
            raise ValueError("the die broke")
        if action == "hang":
            self.wake.wait(20)
            return GameMessage("too late")  # and draws nothing within a later test
        self.thrown.append(random.randrange(10**6))
        reward = self.rewards[self.at]
        self.at += 1
        return GameMessage(f"thrown {action}", reward, self.at == len(self.rewards))

    def moves(self):
        return ("throw",)


def started(game=None, tools=TOOLS, seed=7, **changes):
    env = GameEnv(game or Dice(), settings(**changes), tools)
    return env, env.reset(seed)


def test_the_rules_are_the_goal_and_rewards_add_up_to_the_score():
    env, shown = started()
    assert (shown, env.goal) == ("throw", "throw the die")
    first, second = env.step("a"), env.step("b")
    assert (first.observation, first.done) == ("thrown a", False)
    assert (first.reward, second.reward, second.done) == (0.25, 0.5, True)
    assert env.score() == 0.75
    assert env.useful() == frozenset()
    assert env.questions() == ()


def test_a_goal_of_ones_own():
    env, _ = started(goal="win")
    assert env.goal == "win"


def test_a_turn_without_a_move_leaves_the_game_where_it_is():
    env, _ = started()
    result = env.step("  ")
    assert (result.observation, result.reward, result.done) == (NO_MOVE, 0.0, False)
    assert env.step("a").reward == 0.25


def test_an_answer_is_a_last_move():
    env, _ = started()
    assert env.step("a", final=True).done
    assert env.score() == 0.25


@pytest.mark.parametrize(
    ("rewards", "low", "high", "score"),
    [
        ((2.0, 2.0), 0.0, 8.0, 0.5),
        ((2.0, 9.0), 0.0, 8.0, 1.0),
        ((-3.0, 0.0), 0.0, 1.0, 0.0),
        ((0.0, -1.0), -1.0, 1.0, 0.0),
        ((0.0, 0.0), -1.0, 1.0, 0.5),
        ((0.0, 1.0), -1.0, 1.0, 1.0),
    ],
)
def test_returns_become_scores(rewards, low, high, score):
    env, _ = started(Dice(rewards), return_low=low, return_high=high)
    earned = [env.step("a").reward, env.step("a").reward]
    assert env.score() == pytest.approx(score)
    assert sum(earned) == pytest.approx(score)


def test_not_to_play_is_worth_nothing_where_a_loss_is_below_zero():
    env, _ = started(Dice((0.0, 0.0)), return_low=-1.0)
    env.step("a")
    assert env.score() == 0.0
    env.step("a")
    assert env.score() == 0.5


def test_a_move_that_fails_is_told_and_the_game_goes_on():
    env, _ = started()
    result = env.step("break")
    assert result.observation == "the move failed: ValueError: the die broke"
    assert (result.reward, result.done) == (0.0, False)
    assert env.step("a").reward == 0.25


def test_a_game_that_only_fails_is_an_environment_that_failed():
    env, _ = started()
    env.step("break")
    env.step("break")
    with pytest.raises(RuntimeError, match="3 moves in a row failed"):
        env.step("break")


def test_a_game_that_hangs_is_an_environment_that_failed():
    wake = threading.Event()
    env, _ = started(Dice(wake=wake), ToolConfig(0.05, 1, True))
    with pytest.raises(HungToolError):
        env.step("hang")
    wake.set()


def test_games_that_start_alike_throw_alike_whatever_is_thrown_between():
    one, other = Dice(), Dice()
    (left, _), (right, _) = started(one), started(other)
    left.step("a")
    random.random()
    right.step("a")
    left.step("b")
    right.step("b")
    assert one.thrown == other.thrown
    apart = Dice()
    env, _ = started(apart, seed=8)
    env.step("a")
    assert apart.thrown[0] != one.thrown[0]


def test_in_an_episode_a_write_does_not_cost_a_move():
    game = Dice()
    episode = make_episode(GameEnv(game, settings(), TOOLS))
    episode.act("<mem_write>throw</mem_write>")
    assert game.at == 0
    episode.act("<mem_write>throw it</mem_write><act>a</act>")
    assert game.at == 1
    assert episode.situation().observation == "thrown a"


def test_moves_are_texts_though_they_look_like_numbers():
    assert settings(moves=(1, "two")).moves == ("1", "two")


def test_options_are_literals_or_texts():
    made = settings(options=("size=4", "name=coin", "wide=True", "of=(1, 2)"))
    assert made.keywords() == {"size": 4, "name": "coin", "wide": True, "of": (1, 2)}


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("options", ("size",), "options"),
        ("options", ("=4",), "options"),
        ("options", ("a b=4",), "options"),
        ("return_high", 0.0, "return_high"),
        ("return_low", 0.5, "return_low"),
    ],
)
def test_impossible_settings(field, value, named):
    with pytest.raises(ValueError, match=rf"config\.env\.adapter\.{named}: expected"):
        settings(**{field: value})
