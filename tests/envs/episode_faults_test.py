"""What the policy spells wrongly, and what environments do wrongly."""

import math

import numpy as np
import pytest

from mempo_jax.envs import EnvironmentFault, StepResult
from mempo_jax.envs.reward import RewardError
from tests.envs.episode_test import kinds, play
from tests.envs.scripted_env import ScriptedEnv, make_episode


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("<mem_write>never closed", "<mem_write> was never closed"),
        ("</act>", "</act> closes nothing"),
        ("<mem_forget>x</mem_forget>", "<mem_forget> is no known tag"),
        ('<mem_recall k="many">x</mem_recall>', "cannot be read"),
        ("<mem_write></mem_write>", "is empty"),
        ('<mem_delete ids="9"/>', "No memory has such an id"),
        ('<mem_merge ids="0,0">x</mem_merge>', "named twice"),
        (f"<mem_write>{'x' * 201}</mem_write>", "too long"),
        ('<mem_recall k="99">x</mem_recall>', "k was too large"),
    ],
)
def test_a_malformed_action_costs_and_tells_and_goes_on(action, message):
    episode = make_episode()
    shown = play(episode, action, "")
    assert "error: " in shown[1]
    assert message in shown[1]
    assert not episode.done
    assert episode.malformed == 1
    play(episode, "<answer>gold</answer>")
    reward = episode.reward()
    assert reward.raw["malformed"] == 1
    assert reward.total == pytest.approx(1 - 0.05)


def test_messages_are_shown_once_and_never_fill_the_context():
    episode = make_episode()
    action = "</mem_write>" * 50 + "<mem_" + "a" * 500 + ">" + "<mem_write></mem_write>"
    shown = play(episode, action, "", "")
    assert shown[1].count("error: ") == 2
    assert len(shown[1]) < 300
    assert episode.malformed == 52
    assert "error" not in shown[2]


def test_more_ops_than_allowed_are_malformed_and_not_run():
    env = ScriptedEnv()
    episode = make_episode(env)
    writes = "".join(f"<mem_write>fact {'abcd'[i]}</mem_write>" for i in range(4))
    play(episode, writes + "<answer>gold</answer>")
    assert env.seen == [("", False)]
    assert kinds(episode)[-1] == ("malformed", 0)
    assert not episode.done


def test_no_text_can_stop_an_episode():
    texts = [
        "",
        "\0",
        "é<mem_write>😀</mem_write>",
        "<" * 300,
        "<mem_write" * 30,
        "</answer>" * 5,
        '<mem_merge ids="' + "1," * 200 + '">',
        "<mem_recall>",
    ]
    episode = make_episode(ScriptedEnv(["line"] * 50))
    play(episode, *texts)
    assert episode.turn == len(texts)


class FaultyEnv(ScriptedEnv):
    def __init__(self, **results):
        super().__init__()
        self.results = results

    def step(self, action, *, final=False):
        if self.results.get("raises"):
            raise KeyError("lost")
        reward = self.results.get("reward", 0.0)
        shown = self.results.get("observation", "x")
        return StepResult(shown, reward, self.results.get("done", False))

    def score(self):
        value = self.results.get("score", 0.0)
        if isinstance(value, Exception):
            raise value
        return value


@pytest.mark.parametrize(
    ("results", "came"),
    [
        ({"raises": True}, "KeyError: 'lost'"),
        ({"reward": math.nan}, "nan"),
        ({"reward": math.inf}, "inf"),
        ({"reward": None}, "None"),
        ({"reward": "0.5"}, "'0.5'"),
        ({"observation": None}, "None"),
        ({"observation": b"x"}, "b'x'"),
        ({"reward": 10**400}, "inite float"),
        ({"done": "no"}, "'no'"),
        ({"done": None}, "None"),
        ({"done": 0.5}, "0.5"),
        ({"done": np.array([True, False])}, "ValueError"),
        ({"observation": "x" * 1_000_001}, "1,000,001: no context"),
        ({"observation": b"x" * 10_000_000}, "b'xxx"),
        ({"observation": ["x"] * 10_000_000}, "['x', "),
    ],
)
def test_a_faulty_environment_is_told_with_task_and_turn(results, came):
    episode = make_episode(FaultyEnv(**results))
    episode.observe()
    with pytest.raises(EnvironmentFault, match="scripted/train/0, turn 0") as caught:
        episode.act("")
    assert came in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("done", [True, False, np.True_, np.False_, 0, 1])
def test_done_may_be_any_kind_of_truth_value(done):
    episode = make_episode(FaultyEnv(done=done))
    play(episode, "")
    assert episode.done == bool(done)


def test_the_longest_text_that_is_taken():
    episode = make_episode(FaultyEnv(observation="x" * 1_000_000))
    episode.observe()
    episode.act("")
    assert not episode.done


@pytest.mark.parametrize("start", [ValueError("no"), None, 3, "x" * 1_000_001])
def test_a_faulty_reset_is_told(start):
    class Env(ScriptedEnv):
        def reset(self, seed):
            if isinstance(start, Exception):
                raise start
            return start

    with pytest.raises(EnvironmentFault, match=r"reset\(0\) raised"):
        make_episode(Env())


@pytest.mark.parametrize(
    ("score", "error"),
    [
        (math.nan, RewardError),
        (None, RewardError),
        (1.5, RewardError),
        (OSError("gone"), EnvironmentFault),
    ],
)
def test_a_faulty_score_is_told(score, error):
    with pytest.raises(error, match=r"score\(\)"):
        make_episode(FaultyEnv(score=score)).reward()


@pytest.mark.parametrize("goal", [None, 7, b"go", "g" * 1_000_001, RuntimeError("no")])
def test_a_faulty_goal_is_told(goal):
    class Env(ScriptedEnv):
        @property
        def goal(self):
            if isinstance(goal, Exception):
                raise goal
            return goal

        @goal.setter
        def goal(self, value):
            pass

    with pytest.raises(EnvironmentFault, match=r"reset\(0\) raised") as caught:
        make_episode(Env())
    assert len(str(caught.value)) < 500


def test_a_fault_says_where_in_the_environment_it_came_up():
    with pytest.raises(
        EnvironmentFault, match=r"'lost' \(episode_faults_test\.py:\d+, in"
    ):
        make_episode(FaultyEnv(raises=True)).act("")
