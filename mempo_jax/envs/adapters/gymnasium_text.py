"""Environments of Gymnasium's interface whose observations and actions are texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mempo_jax.envs.adapters.game import AdapterConfig, GameMessage
from mempo_jax.settings import ConfigError

TEXT_KEYS = ("text", "observation", "obs", "message")  # of an observation's dict
RULES_KEYS = ("goal", "mission", "objective", "task", "instruction", "instructions")


class GymnasiumGame:
    """Any object with ``reset(seed=...)`` and ``step(text)`` as Gymnasium has them.

    The first observation may be a text or a dict with one, alone or with an info dict;
    a step gives (observation, reward, terminated, truncated, info). Rules are what
    either dict has under ``RULES_KEYS``.
    """

    def __init__(self, env: Any) -> None:
        self._env = env

    def start(self, seed: int) -> GameMessage:
        made = self._env.reset(seed=seed)
        is_pair = isinstance(made, tuple) and len(made) == 2
        observation, info = made if is_pair else (made, {})
        return GameMessage(text_of(observation), rules=_rules(observation, info))

    def move(self, action: str) -> GameMessage:
        made = self._env.step(action)
        if not isinstance(made, tuple) or len(made) != 5:
            raise TypeError(
                "expected step() to give (observation, reward, terminated, truncated, "
                f"info), got {_cut(made)}"
            )
        observation, reward, terminated, truncated, _ = made
        done = bool(terminated or truncated)
        return GameMessage(text_of(observation), float(reward), done)

    def moves(self) -> tuple[str, ...]:
        return ()


def make_gymnasium(settings: AdapterConfig) -> Callable[[str], GymnasiumGame]:
    """Makes games by ``gymnasium.make``; an id may be "module:Name-v0".

    Raises:
      ConfigError: gymnasium is not installed, or cannot make the environment.
    """
    try:
        import gymnasium
    except ImportError as error:
        raise ConfigError(
            "config.env.name: 'gymnasium' needs the package gymnasium; "
            "pip install 'mempo_jax[gymnasium]'"
        ) from error

    def make(split: str) -> GymnasiumGame:
        options = settings.keywords()
        # Its checker warns of texts; what it would find is checked here as well.
        env = gymnasium.make(settings.id, disable_env_checker=True, **options)
        return GymnasiumGame(env)

    try:
        make("train")
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise ConfigError(
            f"config.env.adapter.id: gymnasium cannot make {settings.id!r}: {error}; a "
            "package that registers it is named as 'module:Name-v0'"
        ) from error
    return make


def text_of(observation: Any) -> str:
    """The text of an observation.

    Raises:
      TypeError: there is none, or more than one and none has a name of ``TEXT_KEYS``.
    """
    if isinstance(observation, str):
        return str(observation)
    if isinstance(observation, Mapping):
        texts = {k: v for k, v in observation.items() if isinstance(v, str)}
        named = [texts[key] for key in TEXT_KEYS if key in texts]
        if named or len(texts) == 1:
            return str(named[0] if named else next(iter(texts.values())))
    raise TypeError(
        f"expected a text observation, or a dict with one ({' or '.join(TEXT_KEYS)}), "
        f"got {_cut(observation)}"
    )


def _rules(*parts: Any) -> str:
    found = (
        part[key]
        for part in parts
        if isinstance(part, Mapping)
        for key in RULES_KEYS
        if isinstance(part.get(key), str)
    )
    return next(found, "")


def _cut(value: Any) -> str:
    shown = f"{type(value).__name__} {value!r}"
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
