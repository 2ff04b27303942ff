"""Tasks that are a seed each, for environments that draw all they show from it.

Among them environments of one's own: ``config.env.name = "package.module:Name"`` names
a class, or a function without arguments, that gives an ``Environment``. It may have an
attribute ``moves``: texts that demonstrations choose from at random.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mempo_jax.envs.base import (
    Environment,
    ScriptedPolicy,
    Situation,
    Task,
    derived_seed,
)
from mempo_jax.settings import ConfigError

SPLITS = ("train", "test")
WORDS_OF_TASKS = 16  # whose texts give the vocabulary
MAX_TURNS = 64  # of each of them, without a move
WRITE_RATE = 0.5  # of demonstrations
MAX_NOTE_WORDS = 24


class SeededSuite:
    """Tasks of one environment; the splits differ in their seeds.

    make: an environment for a split. key: of what this suite plays, beside its name.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[str], Environment],
        seed: int,
        *,
        key: str = "",
        moves: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self._make, self._seed, self._key, self._moves = make, seed, key, moves

    def task(self, split: str, index: int) -> Task:
        if split not in SPLITS or index < 0:
            raise ValueError(
                f"{self.name} task: expected split train or test and index >= 0, got "
                f"{split!r} and {index}"
            )
        seed = derived_seed(self.name, self._key, split, index, self._seed)
        return Task(self.name, split, index, seed)

    def size(self, split: str) -> int | None:
        return None

    def make(self, task: Task) -> Environment:
        return self._make(task.split)

    def vocabulary(self) -> list[str]:
        """Words that the first tasks show to somebody who makes no move."""
        texts = [*self._moves]
        for index in range(WORDS_OF_TASKS):
            task = self.task("train", index)
            texts += self._texts(self.make(task), task.seed)
        return sorted({word for text in texts for word in re.findall(r"\w+", text)})

    def expert(self) -> ScriptedPolicy:
        return FormExpert(self._moves)

    def _texts(self, env: Environment, seed: int) -> Iterator[str]:
        yield env.reset(seed)
        yield env.goal
        for _ in range(MAX_TURNS):
            result = env.step("")
            yield result.observation
            if result.done:
                return


class FormExpert:
    """Notes what it sees with one probability, then makes one of ``moves`` at random.

    It knows nothing of the task, and shows the form of acting only.
    """

    def __init__(self, moves: tuple[str, ...]) -> None:
        self._moves = moves

    def __call__(self, situation: Situation, rng: np.random.Generator) -> str:
        said = ""
        if rng.random() < WRITE_RATE:
            words = re.sub(r"[<>]", " ", situation.observation).split()
            said = f"<mem_write> {' '.join(words[:MAX_NOTE_WORDS])}</mem_write>"
        if not self._moves:
            return said
        return f"{said}<act> {self._moves[rng.integers(len(self._moves))]}</act>"


def own_suite(path: str, seed: int) -> SeededSuite:
    """The suite of ``package.module:Name``.

    Raises:
      ConfigError: there is no such thing, or what it gives is no Environment.
    """
    module, _, name = path.partition(":")
    field = f"config.env.name = {path!r}"
    try:
        made: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{field}: {error}") from error
    if not callable(made):
        raise ConfigError(
            f"{field}: expected a class or a function that gives an Environment, got "
            f"{made!r}"
        )
    try:
        env = made()
    except Exception as error:  # code of somebody else may raise anything
        raise ConfigError(
            f"{field}: expected to make an Environment by calling it without "
            f"arguments, got {type(error).__name__}: {error}"
        ) from error
    wanted = ("goal", "reset", "step", "score", "useful")
    missing = [each for each in wanted if not hasattr(env, each)]
    if missing:
        raise ConfigError(
            f"{field}: expected an Environment (mempo_jax.envs.Environment), "
            f"{type(env).__name__} lacks {', '.join(missing)}"
        )
    moves = getattr(env, "moves", ())
    if isinstance(moves, str):  # its letters would be the moves
        raise ConfigError(f"{field}: expected moves as a tuple of texts, got {moves!r}")
    moves = tuple(moves)
    return SeededSuite(name, lambda split: made(), seed, key=path, moves=moves)
