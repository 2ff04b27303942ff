"""An environment that fails now and then before the training costs those tasks only."""

import time

import pytest

from configs import base
from mempo_jax.builders.policies import make_nano
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.envs import StepResult
from mempo_jax.settings import ConfigError
from mempo_jax.training.cold_start import demonstration_segments

COUNT = 24
SHARE = 6  # of so many seeds one fails


class Fine:
    goal = "say where it is"

    def reset(self, seed):
        self.turn, self.fails = 0, seed % SHARE == 0
        return "the parcel is north"

    def step(self, action, *, final=False):
        self.turn += 1
        done = final or self.turn == 2
        return StepResult("where is it ?", float(action == "north"), done)

    def score(self):
        return 1.0

    def useful(self):
        return frozenset({0})


class FailsInReset(Fine):
    def reset(self, seed):
        text = super().reset(seed)
        if self.fails:
            raise OSError("no server")
        return text


class FailsInStep(Fine):
    def step(self, action, *, final=False):
        if self.fails:
            raise OSError("no server")
        return super().step(action, final=final)


class NotANumber(Fine):
    def step(self, action, *, final=False):
        result = super().step(action, final=final)
        reward = float("nan") if self.fails else result.reward
        return StepResult(result.observation, reward, result.done)


class NoText(Fine):
    def step(self, action, *, final=False):
        result = super().step(action, final=final)
        text = None if self.fails else result.observation
        return StepResult(text, result.reward, result.done)


class ScoresNan(Fine):
    def score(self):
        return float("nan") if self.fails else 1.0


class Hangs(Fine):
    def step(self, action, *, final=False):
        if self.fails:
            time.sleep(20)
        return super().step(action, final=final)


class AlwaysFailsInReset(Fine):
    def reset(self, seed):
        raise OSError("no server")


class AlwaysScoresNan(Fine):
    def score(self):
        return float("nan")


class StartsAnew(Fine):
    starts = 0

    def reset(self, seed):
        super().reset(seed)
        StartsAnew.starts += 1
        return f"the parcel is number {StartsAnew.starts}"


def played(env, limit_s=20.0):
    config = base.get_config()
    config.env.name = f"{__name__}:{env.__name__}"
    config.env.step_timeout_s = limit_s
    config.train.demonstrations = COUNT
    settings = from_config(config.to_dict())
    suite = make_suite(settings)
    return demonstration_segments(make_nano(suite, settings), suite, settings)


@pytest.mark.parametrize(
    ("env", "limit_s"),
    [
        (FailsInReset, 20.0),
        (FailsInStep, 20.0),
        (NotANumber, 20.0),
        (NoText, 20.0),
        (ScoresNan, 20.0),
        (Hangs, 0.05),
    ],
)
def test_tasks_that_fail_are_left_out_and_counted(env, limit_s):
    whole = len(played(Fine))
    with pytest.warns(UserWarning, match="demonstrations were") as warned:
        rest = len(played(env, limit_s))
    told = [str(w.message) for w in warned if "demonstrations were" in str(w.message)]
    # Suites differ in their names, so their seeds do too.
    (message,) = told
    count = int(message.split(": ")[1].split()[0])
    assert 0 < count < COUNT // 2
    assert f"{env.__name__}': {count} of {COUNT} failed" in message
    assert rest == whole - whole // COUNT * count


@pytest.mark.parametrize("env", [AlwaysFailsInReset, AlwaysScoresNan])
def test_an_environment_that_always_fails_ends_the_run(env, recwarn):
    with pytest.raises(ConfigError, match=rf"{env.__name__}'.*4 of 4 failed"):
        played(env)


def test_a_task_that_starts_in_two_ways_is_one_line():
    with pytest.raises(ConfigError, match="expected the same start for seed") as error:
        played(StartsAnew)
    assert "\n" not in str(error.value)
