"""Games of TextWorldExpress (Jansen and Côté 2022): they run in Java, all in one.

The package starts a Java process for each of its environments; a step of training has
dozens. Here one process serves a suite, and each game has an interface object in it.
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
    """One game of a kind, made from one of the fold's own seeds."""

    def __init__(
        self, interface: Any, kind: str, parameters: str, fold: str, seeds: list[int]
    ) -> None:
        self._server, self._fold, self._seeds = interface, fold, seeds
        problem = self._server.load(kind, parameters)
        if problem:
            raise ValueError(str(problem))
        self._score, self._moves = 0.0, ()

    def start(self, seed: int) -> GameMessage:
        own = self._seeds[seed % len(self._seeds)]
        shown = self._read(self._server.generateNewGameJSON(own, self._fold, False))
        self._score = 0.0
        rules = str(self._server.getTaskDescription())
        return GameMessage(shown.text, rules=rules)

    def move(self, action: str) -> GameMessage:
        return self._read(self._server.stepJSON(action))

    def moves(self) -> tuple[str, ...]:
        return self._moves

    def _read(self, answer: str) -> GameMessage:
        told = json.loads(answer)
        reward, self._score = told["score"] - self._score, float(told["score"])
        self._moves = tuple(told.get("validActions", ()))
        done = bool(told["tasksuccess"] or told["taskfailure"]) or self._score >= 1.0
        return GameMessage(str(told["observation"]).strip(), reward, done)


def make_textworld(settings: AdapterConfig) -> Callable[[str], TextWorldGame]:
    """Makes games of the kind ``settings.id`` ("coin", "simonsays-memory" ...).

    Options are the kind's own parameters.

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
        interface = owner._gateway.jvm.textworldexpress.runtime.PythonInterface()
        fold = FOLDS[split]
        game = TextWorldGame(interface, settings.id, parameters, fold, seeds[split])
        game.process = owner  # keeps the Java process alive as long as its games
        return game

    return make
