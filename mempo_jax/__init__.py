"""mempo_jax: train language-model agents to manage their own memory."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["Agent", "TextTask"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: memory and environments must start without jax.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mempo_jax import agent

    return getattr(agent, name)
