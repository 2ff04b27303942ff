"""A game of another package as an ``Environment``.

The policy sees the game's last message alone; what it needs of earlier ones it has to
remember. The rules are the goal. A move is ``<act>text</act>``; a turn without one (a
write, say) leaves the game where it is. A move that raises is repeated as
``config.env.tools`` says, then told to the policy, and the game stands where it stood;
a move that hangs costs the trajectory.
"""

from __future__ import annotations

import ast
import dataclasses
from typing import Any, Protocol

from mempo_jax.envs.base import Question, StepResult
from mempo_jax.envs.tools import Tool, ToolConfig

NO_MOVE = "no move was made"
MAX_FAILED = 3  # moves in a row; then the environment has failed


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
    """Which game, and how its return becomes a score.

    id: the package's name of the game. options: ``name=value`` texts for making it.
    goal: shown in place of the game's own rules, "" for those. return_low, return_high:
    returns (sums of rewards) worth scores 0 and 1. moves: texts that demonstrations
    choose from.
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
        # On the command line ('1', '2') are numbers.
        object.__setattr__(self, "moves", tuple(map(str, self.moves)))
        self.keywords()

    def keywords(self) -> dict[str, Any]:
        """``options`` by name; values are Python literals, else texts."""
        found = {}
        for option in self.options:
            name, equals, text = option.partition("=")
            if not equals or not name.strip().isidentifier():
                raise ValueError(
                    "config.env.adapter.options: expected texts 'name=value', got "
                    f"{option!r}"
                )
            try:
                found[name.strip()] = ast.literal_eval(text.strip())
            except (ValueError, SyntaxError):
                found[name.strip()] = text
        return found


@dataclasses.dataclass(frozen=True)
class GameMessage:
    """What a game says: its message, the reward of this move, the end.

    rules: what holds for the whole game; read at the start alone.
    """

    text: str
    reward: float = 0.0
    done: bool = False
    rules: str = ""


class Game(Protocol):
    """One game of another package."""

    def start(self, seed: int) -> GameMessage: ...

    def move(self, action: str) -> GameMessage: ...

    def moves(self) -> tuple[str, ...]:
        """Moves that are possible now, where the game can tell; else none."""
        ...


class GameEnv:
    """See the module docstring.

    The score is the return so far, from ``return_low`` to ``return_high``, cut to
    [0, 1]. Where return_low is below 0, only a finished game scores: else not to play
    would be worth something.
    """

    def __init__(self, game: Game, settings: AdapterConfig, tools: ToolConfig) -> None:
        self._game, self._settings, self._tools = game, settings, tools
        self.goal = settings.goal

    def reset(self, seed: int) -> str:
        self._tool = Tool(self._tools, seed=seed, stateful=True)
        self._return, self._paid, self._failed = 0.0, 0.0, 0
        self._done = False
        made = self._tool(self._game.start, seed)
        if made.error:
            raise RuntimeError(f"the game could not start: {made.error}")
        self.goal = self._settings.goal or made.value.rules
        return made.value.text

    def step(self, action: str, *, final: bool = False) -> StepResult:
        text = NO_MOVE
        if action.strip():
            text = self._move(action.strip())
        earned, self._paid = self.score() - self._paid, self.score()
        return StepResult(text, earned, final or self._done)

    def _move(self, action: str) -> str:
        made = self._tool(self._game.move, action)
        if made.error:
            self._failed += 1
            if self._failed == MAX_FAILED:
                raise RuntimeError(f"{MAX_FAILED} moves in a row failed: {made.error}")
            return f"the move failed: {made.error}"
        self._failed = 0
        self._return += made.value.reward
        self._done = made.value.done
        return made.value.text

    def score(self) -> float:
        low, high = self._settings.return_low, self._settings.return_high
        if low < 0 and not self._done:
            return 0.0
        return min(max((self._return - low) / (high - low), 0.0), 1.0)

    def moves(self) -> tuple[str, ...]:
        """Moves that are possible now, where the game can tell."""
        return self._game.moves()

    def useful(self) -> frozenset[int]:
        return frozenset()  # nobody knows

    def questions(self) -> tuple[Question, ...]:
        return ()
