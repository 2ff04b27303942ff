"""A game of another package as an ``Environment``.

The policy sees only the game's last message; it has to remember what it needs of
earlier ones. The rules are the goal. A move is ``<act>text</act>``; a turn without one
(a write, for instance) does not change the game. A move that raises is repeated as
``config.env.tools`` says; then an observation reports the failure, and the game
continues from where it was. A move that hangs ends the trajectory as failed.
"""

from __future__ import annotations

import ast
import dataclasses
from typing import Any, Protocol

from mempo_jax.envs.base import Question, StepResult
from mempo_jax.envs.tools import Tool, ToolConfig

NO_MOVE = "no move was made"
MAX_FAILED = 3  # failed moves in a row after which the trajectory has failed


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
    """Which game, and how its return becomes a score.

    Attributes:
      id: the package's name of the game.
      options: ``name=value`` texts for making it.
      goal: shown in place of the game's own rules; "" for those.
      return_low: the return (sum of rewards) with score 0.
      return_high: the return with score 1.
      moves: texts that demonstrations choose from.
    """

    id: str
    options: tuple[str, ...]
    goal: str
    return_low: float
    return_high: float
    moves: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.return_low < self.return_high:
            raise ValueError(
                "config.env.adapter.return_high: expected more than return_low "
                f"({self.return_low}), got {self.return_high}"
            )
        if self.return_low > 0:
            raise ValueError(
                "config.env.adapter.return_low: expected at most 0, the return of no "
                f"move, got {self.return_low}"
            )
        # The command line reads ('1', '2') as numbers.
        object.__setattr__(self, "moves", tuple(map(str, self.moves)))
        self.keywords()

    def keywords(self) -> dict[str, Any]:
        """Returns ``options`` by name; values are Python literals, else texts.

        Raises:
          ValueError: an option is not of the form ``name=value``.
        """
        values = {}
        for option in self.options:
            name, equals, text = option.partition("=")
            if not equals or not name.strip().isidentifier():
                raise ValueError(
                    "config.env.adapter.options: expected texts 'name=value', got "
                    f"{option!r}"
                )
            try:
                values[name.strip()] = ast.literal_eval(text.strip())
            except (ValueError, SyntaxError):
                values[name.strip()] = text
        return values


@dataclasses.dataclass(frozen=True)
class GameMessage:
    """A message of a game.

    Attributes:
      text: what the policy sees.
      reward: the reward of this move.
      done: whether the game is over.
      rules: what holds for the whole game; read at the start only.
    """

    text: str
    reward: float = 0.0
    done: bool = False
    rules: str = ""


class Game(Protocol):
    """One game of another package."""

    def start(self, seed: int) -> GameMessage:
        """Starts a new game from ``seed`` and returns its first message."""
        ...

    def move(self, action: str) -> GameMessage:
        """Makes the move ``action`` and returns the game's message."""
        ...

    def moves(self) -> tuple[str, ...]:
        """Returns the moves possible now, if the game knows them; else none."""
        ...


class GameEnv:
    """A game as an environment; see the module docstring.

    The score is the return so far on the scale from ``return_low`` to ``return_high``,
    cut to [0, 1]. If return_low is below 0, only a finished game scores: otherwise not
    playing would earn something.

    Args:
      game: the game.
      settings: goal and scale of the score.
      tools: time limit and retries of a move.
    """

    def __init__(self, game: Game, settings: AdapterConfig, tools: ToolConfig) -> None:
        self._game, self._settings, self._tools = game, settings, tools
        self.goal = settings.goal

    def reset(self, seed: int) -> str:
        """Starts a game from ``seed``.

        Raises:
          RuntimeError: the game could not start.
          HungToolError: it did not start in time.
        """
        # Stateful: a move that hangs leaves the game in an unknown state.
        self._tool = Tool(self._tools, seed=seed, stateful=True)
        self._return, self._paid, self._failed = 0.0, 0.0, 0
        self._done = False
        result = self._tool(self._game.start, seed)
        if result.error:
            raise RuntimeError(f"the game could not start: {result.error}")
        self.goal = self._settings.goal or result.value.rules
        return result.value.text

    def step(self, action: str, *, final: bool = False) -> StepResult:
        """Makes the move ``action``, if there is one; ``final`` ends the task.

        Raises:
          RuntimeError: ``MAX_FAILED`` moves in a row failed.
          HungToolError: the move did not return in time.
        """
        text = NO_MOVE
        if action.strip():
            text = self._move(action.strip())
        # A step earns the increase of the score, so that rewards add up to it.
        earned, self._paid = self.score() - self._paid, self.score()
        return StepResult(text, earned, final or self._done)

    def _move(self, action: str) -> str:
        result = self._tool(self._game.move, action)
        if result.error:
            self._failed += 1
            if self._failed == MAX_FAILED:
                raise RuntimeError(
                    f"{MAX_FAILED} moves in a row failed: {result.error}"
                )
            return f"the move failed: {result.error}"
        self._failed = 0
        self._return += result.value.reward
        self._done = result.value.done
        return result.value.text

    def score(self) -> float:
        """Returns the score so far; see the class."""
        low, high = self._settings.return_low, self._settings.return_high
        if low < 0 and not self._done:
            return 0.0
        return min(max((self._return - low) / (high - low), 0.0), 1.0)

    def moves(self) -> tuple[str, ...]:
        """Returns the moves that are possible now, if the game knows them."""
        return self._game.moves()

    def useful(self) -> frozenset[int]:
        """Returns nothing: a game does not say what is worth remembering."""
        return frozenset()

    def questions(self) -> tuple[Question, ...]:
        """Returns nothing: a game asks no questions."""
        return ()
