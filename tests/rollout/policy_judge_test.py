"""The policy as judge: what it asks, and that nothing but the texts decides."""

import functools
import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.distributed.placement import make_mesh, place_params, row_sharding
from mempo_jax.memory import Verdict
from mempo_jax.rollout.policy_judge import (
    PolicyJudge,
    Questions,
    answer_ids,
    score,
    verdict,
)
from mempo_jax.settings import ConfigError
from mempo_jax.training.step_metrics import CompilationCounter
from tests.rollout.tiny import MODEL, TOKENIZER, WORDS

QUESTIONS = Questions(
    "use {old} find {new} one", "use {old} find {new} two", "gold", "memory"
)
DRAW = random.Random(7)
PAIRS = [
    tuple(" ".join(DRAW.choices(WORDS, k=DRAW.randint(1, n))) for n in (9, most))
    for most in (3, 9, 80, 300)
    for _ in range(12)
]


def make_params(seed=0):
    """Random weights under which answers vary with the texts."""
    draw = np.random.default_rng(seed).normal
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0))
    return jax.tree.map(lambda x: draw(0.0, 0.5, x.shape).astype(x.dtype), shapes)


def make_judge(questions=QUESTIONS, **options):
    options = {"longest": 96, "rows": 8, **options}
    judge = PolicyJudge(MODEL, TOKENIZER, questions, **options)
    judge.set_params(make_params())
    return judge


@pytest.fixture(scope="module")
def judge():
    return make_judge()


@jax.jit
def states(params, tokens, mask):
    return MODEL.hidden(params, tokens, mask)[0]


def expected_margin(template, new, old):
    """The plain way: one context at a time through the model."""
    text = template.format(new=new, old=old)
    ids = TOKENIZER.encode_prompt([{"role": "user", "content": text}])
    tokens = np.zeros((1, 64), np.int32)
    tokens[0, : len(ids)] = ids
    params = make_params()
    hidden = states(params, tokens, np.arange(64)[None] < len(ids))[len(ids) - 1]
    logits = np.asarray(hidden) @ np.asarray(MODEL.unembed(params))
    yes, no = (TOKENIZER.encode(word)[0] for word in ("gold", "memory"))
    return logits[yes] - logits[no]


def test_a_verdict_is_yes_against_no_behind_two_questions(judge):
    short = PAIRS[:20]
    expected = [
        verdict(
            expected_margin(QUESTIONS.adds, *pair) > 0,
            expected_margin(QUESTIONS.changes, *pair) > 0,
        )
        for pair in short
    ]
    assert judge.many(short) == expected
    assert len(set(judge.many(PAIRS))) > 1, "the pairs should not all be judged alike"


def test_in_bfloat16_the_output_matrix_is_rounded_as_in_training():
    draw = np.random.default_rng(0).normal
    states = jnp.asarray(draw(size=(2, 3, 16)), jnp.bfloat16)
    unembed = draw(size=(16, 30)).astype(np.float32)

    class Fixed:
        def unembed(self, params):
            return params

        def hidden(self, params, tokens, mask):
            return states

    run = jax.jit(functools.partial(score, Fixed()))
    answers = np.array([4, 9], np.int32)
    got = run(unembed, np.zeros((2, 3), np.int32), np.array([3, 1], np.int32), answers)
    rounded = np.asarray(jnp.asarray(unembed).astype(jnp.bfloat16), np.float64)
    logits = np.asarray(states, np.float64)[[0, 1], [2, 0]] @ rounded
    np.testing.assert_allclose(got, logits[:, 4] - logits[:, 9], atol=1e-5)


@pytest.mark.parametrize(
    ("adds", "changes", "said"),
    [
        (True, True, Verdict.UPDATES),
        (False, True, Verdict.UPDATES),
        (True, False, Verdict.ADDS),
        (False, False, Verdict.REPEATS),
    ],
)
def test_what_two_answers_say(adds, changes, said):
    assert verdict(adds, changes) == said


def test_neither_batch_nor_order_nor_place_shows_in_a_verdict(judge):
    together = judge.many(PAIRS)
    judge.set_params(make_params())
    backwards = judge.many(PAIRS[::-1])[::-1]
    judge.set_params(make_params())
    assert [judge(*pair) for pair in PAIRS] == together == backwards
    contexts = [[3, 4, 5], *([7 + n] * 20 for n in range(6)), [3, 4, 5]]
    for width in judge._widths:
        margins = judge._margins(contexts, width)
        alone = judge._margins([[3, 4, 5]], width)
        assert margins[0].tobytes() == margins[-1].tobytes() == alone[0].tobytes()


def test_a_pair_is_judged_once_until_the_parameters_change(monkeypatch):
    judge, asked = make_judge(), []
    plain = judge._yes
    monkeypatch.setattr(judge, "_yes", lambda ids: asked.append(len(ids)) or plain(ids))
    judge.prefetch_verdicts([("one", "two"), ("one", "two"), ("two", "one")])
    assert asked == [4]  # two questions a pair
    judge("one", "two")
    judge.many([("two", "one"), ("one", "two")])
    assert asked[1:] == [0, 0]
    other = jax.tree.map(lambda x: -x, make_params())
    judge.set_params(other)
    judge("one", "two")
    assert asked[3:] == [2]


def test_verdicts_follow_the_parameters(judge):
    judge.set_params(make_params())
    before = judge.many(PAIRS)
    judge.set_params(make_params(seed=5))
    after = judge.many(PAIRS)
    judge.set_params(make_params())
    assert before != after
    assert judge.many(PAIRS) == before


def test_nothing_compiles_after_the_warm_up():
    judge = make_judge()
    judge.warm_up()
    with CompilationCounter() as counter:
        judge.many(PAIRS)
        judge("one", "two")
    assert counter.count == 0


def test_a_mesh_of_eight_devices_says_the_same(judge):
    judge.set_params(make_params())
    mesh = make_mesh(4, 2, 1)
    spread = make_judge(row_sharding=row_sharding(mesh))
    spread.set_params(place_params(make_params(), mesh))
    spread.warm_up()
    with CompilationCounter() as counter:
        made = spread.many(PAIRS)
    assert counter.count == 0
    assert made == judge.many(PAIRS)


def test_texts_of_any_length_are_judged(judge):
    for new, old in itertools.product(("", "one", "two " * 5_000), repeat=2):
        assert judge(new, old) in set(Verdict)


def test_parameters_that_are_broken_are_told():
    judge = make_judge()
    judge.set_params(jax.tree.map(lambda x: x * np.nan, make_params()))
    with pytest.raises(FloatingPointError, match="not finite"):
        judge("one", "two")
    with pytest.raises(ValueError, match="set_params"):
        PolicyJudge(MODEL, TOKENIZER, QUESTIONS, longest=96, rows=8)("one", "two")


@pytest.mark.parametrize(
    ("yes", "no", "message"),
    [
        ("gold", "gold", "both begin with 'gold'"),
        ("yes", "memory", r"judge_yes: .* got 'yes', which it reads as '<unk>'"),
        ("gold", "", r"judge_no: .* got ''"),
    ],
)
def test_answers_that_cannot_be_told_apart_are_refused(yes, no, message):
    questions = Questions(QUESTIONS.adds, QUESTIONS.changes, yes, no)
    with pytest.raises(ConfigError, match=message):
        answer_ids(TOKENIZER, questions)


def test_a_question_longer_than_the_model_is_refused():
    with pytest.raises(ConfigError, match=r"memory\.judge_adds_prompt: .* less than 9"):
        make_judge(longest=9)
