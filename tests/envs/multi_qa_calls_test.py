"""The search of ``multi_qa`` as a tool with limits, and the figures by kind."""

import random
import threading
from types import SimpleNamespace

import pytest

from mempo_jax.envs.qa_data import Passage
from mempo_jax.envs.tools import ToolConfig
from mempo_jax.evaluation.stats import by_category
from tests.envs.multi_qa_test import make_env


class Broken:
    """A search that fails so many times, and draws a number when it does not."""

    def __init__(self, failures):
        self.left = failures

    def search(self, query, count):
        self.left -= 1
        if self.left >= 0:
            raise OSError("no index")
        return [Passage("Drawn", (str(random.random()),))]


def test_a_search_that_fails_is_repeated_and_then_told():
    env = make_env(tool=Broken(1))
    assert "\n- Drawn: 0." in env.step("search: paints").observation
    env = make_env(tool=Broken(2))
    told = "searches 1 , found for: paints\nthe search failed: OSError: no index"
    assert env.step("search: paints").observation == told
    assert env.useful() == frozenset()
    assert env.step("1: Ada Fenwick; 2: no", final=True).reward == 1.0


def test_a_search_that_hangs_is_told():
    wake = threading.Event()
    hung = SimpleNamespace(search=lambda query, count: wake.wait(20))
    env = make_env(tool=hung, tools=ToolConfig(0.05, 0, True))
    told = env.step("search: paints").observation
    assert told.endswith("\nthe search failed: no answer within 0.05 s")
    wake.set()


def test_what_a_search_draws_depends_on_the_seed_of_the_task():
    shown = []
    for seed in (1, 1, 2):
        env = make_env(tool=Broken(0))
        env.reset(seed)
        shown.append(env.step("search: paints").observation)
    assert shown[0] == shown[1] != shown[2]


def test_scores_of_the_questions_stand_by_the_kinds_of_their_records():
    env = make_env()
    assert env.question_scores() == (0.0, 0.0)
    env.step("1: Ada; 2: no", final=True)
    [question] = env.questions()
    assert question.parts == ("h", "v")
    scores = env.question_scores()
    assert scores == pytest.approx((2 / 3, 1.0))
    made = SimpleNamespace(questions=(question,), question_scores=scores, failure=None)
    figures = by_category([made, made])
    assert {kind: each["questions"] for kind, each in figures.items()} == {
        "h": 2,
        "v": 2,
    }
    assert figures["h"]["mean"] == pytest.approx(2 / 3)
    env.reset(0)
    assert env.question_scores() == (0.0, 0.0)
