"""Tasks of a game: its name and a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mempo_jax.envs.adapters.game import NO_MOVE, AdapterConfig, Game, GameEnv
from mempo_jax.envs.adapters.gymnasium_text import make_gymnasium
from mempo_jax.envs.adapters.textarena_games import make_textarena
from mempo_jax.envs.adapters.textworld import make_textworld
from mempo_jax.envs.own_environments import SeededSuite
from mempo_jax.envs.tools import HungToolError, ToolConfig
from mempo_jax.settings import ConfigError

# Each returns a function that makes games; ConfigError if there is no such game.
MAKERS: dict[str, Callable[[AdapterConfig], Callable[[str], Game]]] = {
    "gymnasium": make_gymnasium,
    "textarena": make_textarena,
    "textworld": make_textworld,
}
ADAPTERS = tuple(MAKERS)
WORDS_OF_MOVES = 16  # moves of a task whose answers give words to the vocabulary


class AdapterSuite(SeededSuite):
    """One game; a task is a seed.

    Args:
      name: one of ``ADAPTERS``.
      settings: which game.
      tools: time limit and retries of a move.
      seed: seed of the run.

    Raises:
      ConfigError: the package is not installed, or has no such game, or one that does
        not use texts.
    """

    def __init__(
        self, name: str, settings: AdapterConfig, tools: ToolConfig, seed: int
    ) -> None:
        if not settings.id:
            raise ConfigError(
                f"config.env.adapter.id: expected the name of a {name} game, got ''"
            )
        make_game = MAKERS[name](settings)

        def make(split: str) -> GameEnv:
            return GameEnv(make_game(split), settings, tools)

        super().__init__(name, make, seed, key=settings.id, moves=settings.moves)
        try:
            # A game that cannot start is found here, not in the first step of training.
            make("train").reset(0)
        except (RuntimeError, HungToolError) as error:
            raise ConfigError(
                f"config.env.adapter.id: {name} game {settings.id!r}: {error}"
            ) from error

    def _texts(self, env: GameEnv, seed: int) -> Iterator[str]:
        """Yields the game's first message, its moves, and answers to some of them."""
        yield env.reset(seed)
        yield env.goal
        yield NO_MOVE
        known = env.moves()
        yield from known
        for move in (*self._moves, *known)[:WORDS_OF_MOVES]:
            try:
                result = env.step(move)
            except RuntimeError:  # too many moves failed
                return
            yield result.observation
            if result.done:
                return
