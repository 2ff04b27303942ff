"""Environments and the episode: the Markov decision process, on the host."""

from mempo_jax.envs.base import (
    Environment,
    Question,
    ScriptedPolicy,
    Situation,
    StepResult,
    Task,
    TaskSuite,
    check_repeatable,
    derived_seed,
)
from mempo_jax.envs.context import ContextConfig, View
from mempo_jax.envs.episode import (
    EnvironmentFault,
    Episode,
    EpisodeSettings,
    EpisodeStatus,
)
from mempo_jax.envs.reward import Reward, RewardConfig

__all__ = [
    "ContextConfig",
    "Environment",
    "EnvironmentFault",
    "Episode",
    "EpisodeSettings",
    "EpisodeStatus",
    "Question",
    "Reward",
    "RewardConfig",
    "ScriptedPolicy",
    "Situation",
    "StepResult",
    "Task",
    "TaskSuite",
    "View",
    "check_repeatable",
    "derived_seed",
]
