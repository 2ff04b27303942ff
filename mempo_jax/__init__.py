"""mempo_jax: train language-model agents to manage their own memory."""

__version__ = "0.1.0"
