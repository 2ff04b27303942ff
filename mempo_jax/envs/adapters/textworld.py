"""Games of TextWorldExpress (Jansen and Côté 2022), which run in one Java process.

The package starts a Java process for each of its environments, and a training step has
dozens of them. Here one process serves a suite, and each game has an interface object
in it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

from mempo_jax.envs.adapters.game import AdapterConfig, GameMessage
from mempo_jax.settings import ConfigError

FOLDS = {"train": "train", "test": "test"}
NO_PARAMETERS = ""


class TextWorldGame:
    """One game of a kind.

    Args:
      interface: the game's object in the Java process.
      kind: name of the kind of game.
      parameters: its options, "name=value" separated by commas.
      fold: "train" or "test".
      seeds: the fold's own seeds, one of which makes each game.

    Raises:
      ValueError: the kind or its parameters do not exist.
    """

    def __init__(
        self, interface: Any, kind: str, parameters: str, fold: str, seeds: list[int]
    ) -> None:
        self._server, self._fold, self._seeds = interface, fold, seeds
        problem = self._server.load(kind, parameters)
        if problem:
            raise ValueError(str(problem))
        self._score, self._moves = 0.0, ()

    def start(self, seed: int) -> GameMessage:
        """Starts a game; ``seed`` chooses one of the fold's own seeds."""
        # The package makes the games of a fold from that fold's seeds only.
        fold_seed = self._seeds[seed % len(self._seeds)]
        message = self._read(
            self._server.generateNewGameJSON(fold_seed, self._fold, False)
        )
        self._score = 0.0
        rules = str(self._server.getTaskDescription())
        return GameMessage(message.text, rules=rules)

    def move(self, action: str) -> GameMessage:
        """Makes the move ``action`` and returns the game's message."""
        return self._read(self._server.stepJSON(action))

    def moves(self) -> tuple[str, ...]:
        """Returns the moves that are valid now."""
        return self._moves

    def _read(self, answer: str) -> GameMessage:
        """Reads an answer of the Java process; rewards are increases of its score."""
        state = json.loads(answer)
        reward, self._score = state["score"] - self._score, float(state["score"])
        self._moves = tuple(state.get("validActions", ()))
        done = bool(state["tasksuccess"] or state["taskfailure"]) or self._score >= 1.0
        return GameMessage(str(state["observation"]).strip(), reward, done)


def make_textworld(settings: AdapterConfig) -> Callable[[str], TextWorldGame]:
    """Returns a function that makes games of the kind ``settings.id``.

    Args:
      settings: the kind ("coin", "simonsays-memory" ...) and its parameters as options.

    Raises:
      ConfigError: there is no Java, no textworld-express, or no such game.
    """
    try:
        import textworld_express
    except ImportError as error:
        raise ConfigError(
            "config.env.name: 'textworld' needs the package textworld-express; "
            "pip install 'mempo_jax[textworld]'"
        ) from error
    if shutil.which("java") is None:
        raise ConfigError(
            "config.env.name: 'textworld' needs a Java runtime, and there is no 'java' "
            "on PATH; install one (default-jre-headless)"
        )
    owner = textworld_express.TextWorldExpressEnv()
    known = list(owner.getGameNames())
    if settings.id not in known:
        raise ConfigError(
            f"config.env.adapter.id: expected a TextWorldExpress game ({known}), got "
            f"{settings.id!r}"
        )
    parameters = ",".join(f"{k}={v}" for k, v in settings.keywords().items())
    owner.load(settings.id, parameters)
    seeds = {
        "train": list(owner.getValidSeedsTrain()),
        "test": list(owner.getValidSeedsTest()),
    }

    def make(split: str) -> TextWorldGame:
        # The package's own gateway: an object for this game in the one Java process.
        interface = owner._gateway.jvm.textworldexpress.runtime.PythonInterface()
        fold = FOLDS[split]
        game = TextWorldGame(interface, settings.id, parameters, fold, seeds[split])
        game.process = owner  # keeps the Java process alive as long as its games
        return game

    return make
