"""What teaches a built-in policy to judge: questions with the lexical answers."""

import pytest

from mempo_jax.builders.memory_models import SHARE, JudgeExampleRecorder, judge_segments
from mempo_jax.builders.policies import initial_policy
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.memory import Verdict
from mempo_jax.memory.lexical.judge import make_judge
from mempo_jax.rollout.policy_judge import PolicyJudge, Questions
from mempo_jax.training.cold_start import demonstration_segments
from tests.experiments import tiny
from tests.rollout.tiny import MODEL, TOKENIZER

ADDS, CHANGES = "use {old} find {new} one", "use {old} find {new} two"


def taught():
    teacher = JudgeExampleRecorder()
    for name in ("ann", "ben", "cleo"):
        for value in range(8):
            teacher(f"{name} phone {value}", f"{name} bus {value}")
    return teacher


def test_the_teacher_is_the_lexical_judge():
    teacher, lexical = JudgeExampleRecorder(), make_judge("lexical")
    for new in ("ann phone 17", "ann phone 18", "the sky is blue"):
        assert teacher(new, "ann phone 17") == lexical(new, "ann phone 17")


def test_lessons_are_of_each_kind_and_repeatable():
    lessons = taught().lessons(60, 0)
    counts = {v: sum(each == v for *_, each in lessons) for v in Verdict}
    assert counts[Verdict.REPEATS] == counts[Verdict.UPDATES] == 20
    assert counts[Verdict.OTHER] + counts[Verdict.ADDS] == 20
    lexical = make_judge("lexical")
    assert all(lexical(new, old) == verdict for new, old, verdict in lessons)
    assert taught().lessons(60, 0) == lessons
    assert taught().lessons(60, 1) != lessons
    assert JudgeExampleRecorder().lessons(60, 0) == []


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (Verdict.OTHER, ("gold", "memory")),
        (Verdict.ADDS, ("gold", "memory")),
        (Verdict.UPDATES, ("gold", "gold")),
        (Verdict.REPEATS, ("memory", "memory")),
    ],
)
def test_a_lesson_is_two_questions_with_their_answers(verdict, said):
    questions = Questions(ADDS, CHANGES, "gold", "memory")
    judge = PolicyJudge(MODEL, TOKENIZER, questions, longest=96, rows=8)
    made = judge_segments([("five", "four", verdict)], judge, TOKENIZER)
    texts = [TOKENIZER.decode(segment.tokens) for segment in made]
    assert texts == [
        f"<|user|>use four find five {last}<|end|><|assistant|>{word}<|end|>"
        for last, word in zip(("one", "two"), said)
    ]
    for segment in made:
        spoken = [n for n, own in zip(segment.tokens, segment.is_action) if own]
        assert TOKENIZER.decode(spoken) in ("gold<|end|>", "memory<|end|>")


def test_only_a_built_in_policy_that_is_the_judge_is_taught(tmp_path):
    def counts(path="", **changes):
        config = tiny.get_config()
        config.env.ledger.min_turns = config.env.ledger.max_turns = 6
        config.policy.path = path
        config.context.instructions_form = "given"  # those of the policy that was saved
        config.memory.update(changes)
        settings = from_config(config.to_dict())
        suite = make_suite(settings)
        policy = initial_policy(suite, settings)
        policy.save(tmp_path / "policy", policy.params)
        return len(demonstration_segments(policy, suite, settings))

    plain, asked = counts(), counts(judge="policy")
    assert plain < asked <= plain * (1 + 2 * SHARE) + 6
    assert counts(str(tmp_path / "policy"), judge="policy") == plain
