"""How each question was answered, as the environment tells it."""

import pytest

from mempo_jax.envs import Question
from tests.envs.scripted_env import ScriptedEnv
from tests.rollout.tiny import (
    LINES,
    ScriptedEngine,
    decoding,
    jobs,
    make_collector,
)

ASKED = Question(0, "gold", frozenset({5, 2}), category="single")


class Asking(ScriptedEnv):
    def questions(self):
        return (ASKED,)

    def question_scores(self):
        return (self.right,)


class Lame(Asking):
    def question_scores(self):
        raise RuntimeError("not now")


@pytest.mark.parametrize(
    ("env", "scores"), [(Asking, (1.0,)), (Lame, ()), (ScriptedEnv, ())]
)
def test_scores_of_questions_come_with_the_trajectory(env, scores):
    engine = ScriptedEngine(["<answer> gold</answer>"])
    collector = make_collector(engine, env=lambda job: env(LINES))
    [made] = collector.run(jobs(1), decoding())
    assert made.question_scores == scores
    recorded = made.to_json()
    assert recorded["question_scores"] == list(scores)
    asked = {"observation": 0, "answer": "gold", "support": [2, 5]}
    assert recorded["questions"] == ([asked] if env is not ScriptedEnv else [])
    assert made.failure is None
