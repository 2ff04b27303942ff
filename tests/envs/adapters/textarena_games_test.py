import importlib
import random
import re
import sys

import pytest

from mempo_jax.envs import check_repeatable
from mempo_jax.envs.adapters import AdapterSuite
from mempo_jax.envs.adapters.textarena_games import BEGIN, flip_two
from mempo_jax.settings import ConfigError
from tests.envs.adapters.games import TOOLS, settings

BOARD = "Current board:\n  0 1 2\n0 A . B\n1 . A B\n2 C . D\n"


def make_suite(name, **changes):
    importlib.import_module("textarena")
    return AdapterSuite("textarena", settings(id=name, **changes), TOOLS, 0)


def started(suite, index=0):
    task = suite.task("train", index)
    env = suite.make(task)
    return env, env.reset(task.seed)


def test_the_opponent_flips_two_cards_that_lie_face_down():
    random.seed(0)
    down = {("0", "1"), ("1", "0"), ("2", "1")}
    for _ in range(20):
        a, b, c, d = re.findall(r"\d", flip_two(BOARD))
        assert {(a, b), (c, d)} <= down
        assert (a, b) != (c, d)


def test_textarena_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(ConfigError, match=r"pip install 'mempo_jax\[textarena\]'"):
        AdapterSuite("textarena", settings(), TOOLS, 0)


@pytest.mark.extras
def test_only_the_last_message_is_shown():
    suite = make_suite("Mastermind-v0")
    check_repeatable(suite, [suite.task("train", n) for n in range(3)])
    env, shown = started(suite)
    assert shown == BEGIN
    assert env.goal.startswith("You are playing Mastermind.")
    assert "[1 2 3 4]" in env.step("1 2 3 4").observation
    second = env.step("[4 3 2 1]").observation
    assert "Submitted [4 3 2 1]" in second
    assert "1 2 3 4" not in second


@pytest.mark.extras
def test_a_game_is_played_to_its_end():
    suite = make_suite("Mastermind-v0")
    env, _ = started(suite)
    secret = env._game._env.state.game_state["secret_code"]
    result = env.step(" ".join(map(str, secret)))
    assert (result.reward, result.done) == (1.0, True)
    assert "cracked the code" in result.observation
    assert env.score() == 1.0


@pytest.mark.extras
def test_bad_moves_lose_the_game_and_keep_its_partial_credit():
    env, _ = started(make_suite("Mastermind-v0"))
    env.step("6 5 4 3")
    assert "invalid move" in env.step("hello").observation
    result = env.step("hello")
    assert result.done
    assert 0 <= env.score() < 1


@pytest.mark.extras
def test_the_memory_game_is_played_against_an_opponent():
    suite = make_suite("MemoryGame-v0", return_low=-1.0)
    check_repeatable(suite, [suite.task("train", n) for n in range(3)])
    env, shown = started(suite)
    assert ". . . ." in shown
    board = env._game._env.state.game_state["board"]
    cards = {}
    for row, line in enumerate(board):
        for column, card in enumerate(line):
            cards.setdefault(card, []).append((row, column))
    done = False
    for _, ((a, b), (c, d)) in sorted(cards.items()):
        if (a, b) in env._game._env.state.game_state["matched_positions"]:
            continue
        assert env.score() == 0.0  # not at the end yet
        result = env.step(f"[{a} {b} {c} {d}]")
        done = result.done
    assert done
    assert env.score() == 1.0


@pytest.mark.extras
def test_both_players_moves_are_seen_after_a_miss():
    env, _ = started(make_suite("MemoryGame-v0", return_low=-1.0))
    board = env._game._env.state.game_state["board"]
    other = next((0, c) for c in range(1, 4) if board[0][c] != board[0][0])
    shown = env.step(f"[0 0 {other[0]} {other[1]}]").observation
    assert "selected by Player 0 do not match" in shown
    assert "selected by Player 1" in shown


@pytest.mark.extras
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Wordle-v0", "it needs the network"),
        ("Hangman-v0", "it needs the network"),
        ("TicTacToe-v0", r"it does not start for one player.*number of players"),
        ("TwentyQuestions-v0", r"it does not start for one player.*API key"),
        ("NoSuchGame-v0", r"not found in registry"),
    ],
)
def test_games_that_cannot_be_used_are_refused_with_the_reason(name, expected):
    state = random.getstate()
    with pytest.raises(ConfigError, match=expected) as caught:
        make_suite(name)
    assert "try Mastermind-v0" in str(caught.value)
    assert random.getstate() == state
