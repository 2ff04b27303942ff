"""Environments of Gymnasium's interface whose observations and actions are texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mempo_jax.envs.adapters.game import AdapterConfig, GameMessage
from mempo_jax.settings import ConfigError

# Keys under which a dict holds the observation's text, and those that hold the rules.
TEXT_KEYS = ("text", "observation", "obs", "message")
RULES_KEYS = ("goal", "mission", "objective", "task", "instruction", "instructions")


class GymnasiumGame:
    """Any object with Gymnasium's ``reset(seed=...)`` and ``step(text)``.

    The first observation may be a text or a dict with one, alone or with an info dict;
    a step gives (observation, reward, terminated, truncated, info). The rules are the
    text under one of ``RULES_KEYS`` in either dict.

    Args:
      env: the environment.
    """

    def __init__(self, env: Any) -> None:
        self._env = env

    def start(self, seed: int) -> GameMessage:
        """Resets the environment with ``seed``.

        Raises:
          TypeError: the observation holds no text.
        """
        result = self._env.reset(seed=seed)
        is_pair = isinstance(result, tuple) and len(result) == 2
        observation, info = result if is_pair else (result, {})
        return GameMessage(text_of(observation), rules=_rules(observation, info))

    def move(self, action: str) -> GameMessage:
        """Steps the environment with ``action``.

        Raises:
          TypeError: step() returned something else than five values, or no text.
        """
        result = self._env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            raise TypeError(
                "expected step() to give (observation, reward, terminated, truncated, "
                f"info), got {_cut(result)}"
            )
        observation, reward, terminated, truncated, _ = result
        done = bool(terminated or truncated)
        return GameMessage(text_of(observation), float(reward), done)

    def moves(self) -> tuple[str, ...]:
        """Returns nothing: Gymnasium has no list of possible texts."""
        return ()


def make_gymnasium(settings: AdapterConfig) -> Callable[[str], GymnasiumGame]:
    """Returns a function that makes games by ``gymnasium.make``.

    Args:
      settings: which game; its id may be "module:Name-v0".

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
        # Gymnasium's checker warns of texts; what it would find is checked here, too.
        env = gymnasium.make(settings.id, disable_env_checker=True, **options)
        return GymnasiumGame(env)

    try:
        # One environment is made at once, so that a wrong id fails before training.
        make("train")
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise ConfigError(
            f"config.env.adapter.id: gymnasium cannot make {settings.id!r}: {error}; a "
            "package that registers it is named as 'module:Name-v0'"
        ) from error
    return make


def text_of(observation: Any) -> str:
    """Returns the text of an observation.

    Args:
      observation: a text, or a dict with one.

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
    """Returns the first text under one of ``RULES_KEYS``, "" if there is none."""
    rules = (
        part[key]
        for part in parts
        if isinstance(part, Mapping)
        for key in RULES_KEYS
        if isinstance(part.get(key), str)
    )
    return next(rules, "")


def _cut(value: Any) -> str:
    shown = f"{type(value).__name__} {value!r}"
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
