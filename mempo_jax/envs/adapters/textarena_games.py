"""Games of textarena: for one player, or for two against a scripted opponent.

The game's first prompt is the goal; after that the policy sees only what the game said
since its last move. Games are refused if they fetch data or ask a model over the
network, at import or at the start.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

from mempo_jax.envs.adapters.game import AdapterConfig, GameMessage
from mempo_jax.settings import ConfigError

GOOD = "Mastermind-v0, GuessTheNumber-v0, FrozenLake-v0 or MemoryGame-v0"
BEGIN = "the game begins"


class TextArenaGame:
    """One game without textarena's own wrappers, which show the whole history.

    Args:
      env: the game, unwrapped.
      opponent: returns the second player's move from the board; None for one player.
    """

    def __init__(self, env: Any, opponent: Callable[[str], str] | None) -> None:
        self._env, self._opponent = env, opponent
        self._board = ""

    def start(self, seed: int) -> GameMessage:
        """Starts a game from ``seed``.

        Raises:
          TypeError: the game has no rules.
        """
        self._env.reset(num_players=2 if self._opponent else 1, seed=seed)
        rules, text = self._read()
        if not rules:
            raise TypeError("expected a game that tells its rules, got none")
        return GameMessage(text or BEGIN, rules=rules)

    def move(self, action: str) -> GameMessage:
        """Makes the move ``action``, then the opponent's until it is our turn."""
        done, texts = self._act(action), []
        while not done and self._env.state.current_player_id != 0:
            self._read_for_opponent()
            done = self._act(self._opponent(self._board))
        _, text = self._read()
        texts.append(text)
        if not done:
            return GameMessage("\n".join(filter(None, texts)))
        rewards, info = self._env.close()
        reason = (info or {}).get(0, {}).get("reason", "")
        texts.append(str(reason or ""))
        reward = float((rewards or {}).get(0, 0.0))
        return GameMessage("\n".join(filter(None, texts)), reward, True)

    def moves(self) -> tuple[str, ...]:
        """Returns nothing: textarena does not list possible moves."""
        return ()

    def _act(self, action: str) -> bool:
        action = action if "[" in action else f"[{action}]"  # as its wrappers do
        done, _ = self._env.step(action)
        return bool(done)

    def _read(self) -> tuple[str, str]:
        """Returns (prompt, other new messages); the policy's moves are left out."""
        import textarena

        kinds = textarena.ObservationType
        messages = self._env.state.observations[0]
        self._env.state.observations[0] = []
        prompts = [m for _, m, kind in messages if kind == kinds.PROMPT]
        others = [
            message.strip()
            for who, message, kind in messages
            if kind != kinds.PROMPT and not (who == 0 and kind == kinds.PLAYER_ACTION)
        ]
        boards = [m for _, m, kind in messages if kind == kinds.GAME_BOARD]
        self._board = boards[-1] if boards else self._board
        return "\n".join(prompts).strip(), "\n".join(others)

    def _read_for_opponent(self) -> None:
        """Reads the board as the opponent sees it."""
        import textarena

        board = textarena.ObservationType.GAME_BOARD
        messages = self._env.state.observations[1]
        self._env.state.observations[1] = []
        boards = [m for _, m, kind in messages if kind == board]
        self._board = boards[-1] if boards else self._board


def flip_two(board: str) -> str:
    """Returns a move in MemoryGame: two random cards face down on ``board``."""
    cards = [
        (row.split()[0], str(column))
        for row in board.splitlines()
        if re.match(r"\d+ [.A-Z]", row)
        for column, card in enumerate(row.split()[1:])
        if card == "."
    ]
    (a, b), (c, d) = random.sample(cards, 2)
    return f"[{a} {b} {c} {d}]"


# By the game's name before "-v".
OPPONENTS = {"MemoryGame": flip_two}


def make_textarena(settings: AdapterConfig) -> Callable[[str], TextArenaGame]:
    """Returns a function that makes games by ``textarena.make``.

    Args:
      settings: which game.

    Raises:
      ConfigError: textarena is not installed, has no such game, or one that cannot be
        used here: it needs the network, or more players.
    """
    try:
        import textarena
    except ImportError as error:
        raise ConfigError(
            "config.env.name: 'textarena' needs the package textarena; "
            "pip install 'mempo_jax[textarena]'"
        ) from error
    opponent = OPPONENTS.get(settings.id.partition("-v")[0])

    def make(split: str) -> TextArenaGame:
        env = textarena.make(settings.id, **settings.keywords())
        while isinstance(env, textarena.Wrapper):
            env = env.env
        return TextArenaGame(env, opponent)

    tried: list[str] = []  # addresses that the game wanted
    # The trial draws from the global random numbers, which the run must not notice.
    state = random.getstate()
    try:
        with _no_network(tried):
            make("train").start(0)
    except Exception as error:  # a game of another package may raise anything
        why = "it needs the network" if tried else "it does not start for one player"
        raise ConfigError(
            f"config.env.adapter.id: textarena game {settings.id!r} cannot be used: "
            f"{why} ({type(error).__name__}: {' '.join(str(error).split())[:120]}); "
            f"try {GOOD}"
        ) from error
    finally:
        random.setstate(state)
    if tried:
        raise ConfigError(
            f"config.env.adapter.id: textarena game {settings.id!r} cannot be used: it "
            f"asks the network for {tried[0]}; try {GOOD}"
        )
    return make


@contextlib.contextmanager
def _no_network(tried: list[str]) -> Iterator[None]:
    """Refuses connections, and appends what was wanted to ``tried``."""

    def refuse(*args: Any, **options: Any) -> None:
        tried.append(" ".join(str(a) for a in args if isinstance(a, str | tuple)))
        raise OSError("no network here")

    originals = socket.getaddrinfo, socket.socket.connect
    socket.getaddrinfo = refuse
    socket.socket.connect = refuse
    try:
        yield
    finally:
        socket.getaddrinfo, socket.socket.connect = originals
