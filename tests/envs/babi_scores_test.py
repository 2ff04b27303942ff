import pytest

from mempo_jax.envs.babi import answer_score

SCORES = [
    (1, "cellar", " Cellar ", 1.0),
    (1, "cellar", "cellar porch", 0.0),
    (1, "cellar", "", 0.0),
    (6, "yes", "yes", 1.0),
    (6, "yes", "no", 0.0),
    (10, "maybe", "maybe", 1.0),
    (10, "maybe", "yes no maybe", 0.0),  # naming everything earns nothing
    (7, "two", "2", 1.0),
    (7, "none", "0", 1.0),
    (7, "two", "three", 0.0),
    (1, "two", "2", 0.0),
    (8, "lamp,key", "key, lamp", 1.0),
    (8, "lamp,key", "lamp", 2 / 3),
    (8, "lamp,key", "lamp,lamp", 0.5),
    (8, "lamp,key", "lamp,coin", 0.5),
    (8, "lamp", "lamp,key", 2 / 3),
    (8, "lamp", "coin", 0.0),
    (8, "nothing", "nothing", 1.0),
    (8, "nothing", "nothing,lamp", 0.0),
    (8, "lamp", "", 0.0),
    (5, "lamp,key", "key", 2 / 3),  # a list in another task is a list all the same
    (19, "s,w", "s,w", 1.0),
    (19, "s,w", "South west", 1.0),
    (19, "s,w", "w,s", 0.0),
    (19, "s,s", "s", 0.0),
]


@pytest.mark.parametrize(("task", "gold", "given", "score"), SCORES)
def test_answers_are_scored_by_kind(task, gold, given, score):
    assert answer_score(given, gold, task) == pytest.approx(score)
