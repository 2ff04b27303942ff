import itertools

import numpy as np
import pytest

from mempo_jax.envs import Task, check_repeatable, derived_seed
from mempo_jax.envs.base import UnrepeatableTaskError
from mempo_jax.envs.ledger import LedgerSuite
from tests.envs.ledger_test import settings
from tests.envs.scripted_env import ScriptedEnv


class Suite:
    """Makes what ``make`` says, whatever the task."""

    def __init__(self, make):
        self.make = lambda task: make()


TASK = Task("suite", "train", 3, 11)


def test_repeatable_tasks_pass():
    check_repeatable(Suite(ScriptedEnv), [TASK])
    suite = LedgerSuite(settings(), 0)
    check_repeatable(suite, [suite.task("train", i) for i in range(20)])


def test_another_first_observation_is_refused():
    count = itertools.count()
    suite = Suite(lambda: ScriptedEnv([f"line {next(count)}"]))
    with pytest.raises(UnrepeatableTaskError, match=r"suite/train/3.*seed 11"):
        check_repeatable(suite, [TASK])


def test_another_goal_is_refused():
    count = itertools.count()

    class Env(ScriptedEnv):
        def reset(self, seed):
            self.goal = f"goal {next(count)}"
            return super().reset(seed)

    with pytest.raises(UnrepeatableTaskError, match=r"goal 0.*goal 1"):
        check_repeatable(Suite(Env), [TASK])


def test_seeds_depend_on_every_part():
    calls = [("train", 0, 1), ("test", 0, 1), ("train", 1, 1), ("train", 0, 2)]
    seeds = {derived_seed("ledger", *parts) for parts in calls}
    assert len(seeds) == 4
    assert derived_seed("ledger", "train", 0, 1) in seeds
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_seeds_of_many_tasks_hardly_ever_meet():
    seeds = [derived_seed("ledger", "train", index, 0) for index in range(2_000)]
    assert len(np.unique(seeds)) >= 1_999
