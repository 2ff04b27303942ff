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
from mempo_jax.envs.context import ContextSettings, View
from mempo_jax.envs.episode import (
    EnvironmentFault,
    Episode,
    EpisodeSettings,
    Status,
)
from mempo_jax.envs.reward import Reward, RewardSettings

__all__ = [
    "ContextSettings",
    "Environment",
    "EnvironmentFault",
    "Episode",
    "EpisodeSettings",
    "Question",
    "Reward",
    "RewardSettings",
    "ScriptedPolicy",
    "Situation",
    "Status",
    "StepResult",
    "Task",
    "TaskSuite",
    "View",
    "check_repeatable",
    "derived_seed",
]
