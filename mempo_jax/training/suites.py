"""The tasks of a run, and the episodes that are run on them."""

from __future__ import annotations

from collections.abc import Callable

from mempo_jax.envs import Episode, Task, TaskSuite, check_repeatable
from mempo_jax.envs.babi import BabiSuite
from mempo_jax.envs.ledger import LedgerSuite
from mempo_jax.memory import Bank
from mempo_jax.settings import ConfigError
from mempo_jax.training import advisors
from mempo_jax.training.advisors import Advisors
from mempo_jax.training.run_settings import RunSettings


def make_suite(settings: RunSettings) -> TaskSuite:
    """The task suite of the config; the first tasks are checked to be repeatable."""
    env = settings.env
    if env.name == "ledger":
        suite: TaskSuite = LedgerSuite(env.ledger, settings.seed)
        most = env.ledger.max_turns
        if most + 1 > settings.sampling.max_turns:
            raise ConfigError(
                f"config.sampling.max_turns: expected at least {most + 1} (env.ledger."
                f"max_turns + 1), got {settings.sampling.max_turns}"
            )
    else:
        suite = BabiSuite(env.babi, env.data_dir, settings.seed)
    check_repeatable(suite, [suite.task("train", i) for i in range(2)])
    return suite


def make_episodes(
    suite: TaskSuite,
    settings: RunSettings,
    advised: Advisors | None = None,
) -> Callable[..., Episode]:
    """(task, trajectory id, variant = 0) -> an episode with an empty bank of its own.

    variant: of the instructions; see ``ContextSettings.variant``.
    advised: the policy as adviser of the banks; see ``advisors.without_policy``.
    """
    advised = advised or advisors.without_policy(settings)
    embedder = settings.memory.make_embedder()
    bank_config = settings.memory.bank()
    limits, weights = settings.episode(), settings.reward.weights()

    def make(task: Task, trajectory_id: str, variant: int = 0) -> Episode:
        context = settings.context.variant(variant)
        bank = Bank(bank_config, embedder, trajectory_id, **advised.callables)
        return Episode(suite.make(task), task, bank, limits, context, weights)

    return make
