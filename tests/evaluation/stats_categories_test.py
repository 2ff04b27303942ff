from types import SimpleNamespace

import pytest

from mempo_jax.envs import Question
from mempo_jax.evaluation.stats import by_category


def made(*scored, failure=None):
    asked = tuple(
        Question(at, "gold", frozenset(), category=category)
        for at, (category, _) in enumerate(scored)
    )
    scores = tuple(score for _, score in scored)
    return SimpleNamespace(questions=asked, question_scores=scores, failure=failure)


def test_means_are_over_questions_and_intervals_over_tasks():
    figures = by_category(
        [
            made(("single", 1.0), ("single", 0.0), ("", 0.5)),
            made(("single", 1.0), ("multi", 0.25)),
            made(("multi", 1.0), failure="hung"),
        ]
    )
    assert list(figures) == ["multi", "single"]
    assert figures["single"]["mean"] == pytest.approx(2 / 3)
    assert figures["single"]["questions"] == 3
    low, high = figures["single"]["ci95"]
    assert low == pytest.approx(0.5)
    assert high == pytest.approx(1.0)
    assert figures["multi"] == {"mean": 0.25, "ci95": [0.25, 0.25], "questions": 1}


def test_tasks_without_categories_or_scores_have_none():
    unscored = made(("single", 1.0))
    unscored.question_scores = ()
    assert by_category([unscored, made(("", 1.0)), made()]) == {}
