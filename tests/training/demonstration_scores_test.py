"""Demonstrations that do not solve the task are reported before the cold start."""

import re
import warnings

import numpy as np
import pytest

from mempo_jax.builders.policies import make_nano
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.envs import Question, StepResult
from mempo_jax.settings import ConfigError
from mempo_jax.training.cold_start import demonstration_segments
from tests.experiments import tiny

EXAMPLE = "examples.own_environment:Doors"


def shown(name, **changes):
    """Texts of what is demonstrated, and the figures of each stage at its end."""
    config = tiny.get_config()
    config.env.name = name
    config.train.demonstrations = 48
    config.sampling.max_new_tokens = 16
    config.update_from_flattened_dict(changes)
    settings = from_config(config.to_dict())
    suite = make_suite(settings)
    policy = make_nano(suite, settings)
    figures = {}

    def progress(stage, done, total, values):
        if done == total:
            figures[stage] = values["score"]

    segments = demonstration_segments(policy, suite, settings, progress)
    texts = [policy.tokenizer.decode(segment.tokens) for segment in segments]
    return texts, figures


def test_the_example_recalls_answers_and_is_not_complained_about():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        texts, figures = shown(EXAMPLE)
    assert figures["expert, everything remembered"] == 1.0
    assert 0.15 < figures["demonstrations"] < 0.6
    answers = [text for text in texts if "<act>" in text.split("<|assistant|>")[-1]]
    assert len(answers) == 48
    right = 0
    for text in answers:
        assert "recalled" in text
        if noted := re.search(r"behind the (\w+) door", text):
            assert f"<act> open {noted[1]}</act>" in text
            right += 1
    assert right >= 48 * (figures["demonstrations"] - 0.15)
    assert not any("<unk>" in text for text in texts)


def test_the_experts_of_shipped_tasks_are_measured_too():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, figures = shown("ledger", **{"memory.capacity": 1})
    # though a memory of one entry forgets
    assert figures["expert, everything remembered"] == 1.0
    assert 0 < figures["demonstrations"] < 1


class Sum:
    """Asks for the sum of two numbers, which no memory contains."""

    goal = "add"

    def reset(self, seed):
        self.numbers = np.random.default_rng(seed).integers(10, 100, size=2)
        self.lines = [f"one is {self.numbers[0]}", f"two is {self.numbers[1]}"]
        self.lines.append("what is the sum ?")
        self.at, self.right = 0, 0.0
        return self.lines[0]

    def step(self, action, *, final=False):
        self.right = float(self.at == 2 and action == str(sum(self.numbers)))
        self.at += 1
        done = final or self.at == 3
        return StepResult("" if done else self.lines[self.at], self.right, done)

    def score(self):
        return self.right

    def useful(self):
        return frozenset({0, 1})


class Hopeless(Sum):
    def expert(self, seen, rng):
        return "<act> nothing</act>"


class Wordy(Sum):
    def expert(self, seen, rng):
        return f"<act> {'one ' * 20}</act>"


class Rare(Sum):
    """Its expert says a word for each number, and most numbers come up late."""

    def expert(self, seen, rng):
        return f"<act> ω{seen.observation.replace('?', 'x').split()[-1]}</act>"


class Kinds(Sum):
    def step(self, action, *, final=False):
        result = super().step(action, final=final)
        self.right = float(self.at == 3)
        return result

    def questions(self):
        right = Question(2, "one", frozenset({0}), "act", "easy")
        return (right, Question(2, "", frozenset(), "act", "sums"))

    def question_scores(self):
        return (1.0, 0.0)


def named(kind):
    return f"{__name__}:{kind.__name__}"


def test_a_task_that_the_generic_expert_cannot_solve():
    expected = (
        r"Sum'.*0 of 48 demonstrations score anything \(the expert scores 0\.00 if it "
        r"remembers everything\).*Give the environment an expert\(\)"
    )
    with pytest.warns(UserWarning, match=expected):
        shown(named(Sum))


def test_a_few_demonstrations_may_all_fail_by_chance():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown(named(Sum), **{"train.demonstrations": 15})


def test_an_expert_of_its_own_that_never_scores_is_refused():
    expected = r"Hopeless'.*0 of 48.*mend its expert\(\), or set config\.train\.cold"
    with pytest.raises(ConfigError, match=expected):
        shown(named(Hopeless))


def test_an_expert_that_says_more_than_the_policy_can_is_refused():
    expected = r"config\.sampling\.max_new_tokens: .*up to 23 tokens in a turn.*has 16"
    with pytest.raises(ConfigError, match=expected):
        shown(named(Wordy))


def test_kinds_of_questions_that_nobody_answers():
    with pytest.warns(UserWarning, match=r"question of sums \(0 of 48 questions\);"):
        shown(named(Kinds))


def test_words_that_the_built_in_policy_does_not_know():
    with (
        pytest.warns(
            UserWarning, match=r"Rare'.*does not know a word of.*<unk>.*moves"
        ),
        pytest.raises(ConfigError, match="0 of 48"),
    ):
        shown(named(Rare))


class Breaks(Sum):
    """Cannot bear to be acted upon."""

    def step(self, action, *, final=False):
        if action:
            raise OSError("no server")
        return super().step(action, final=final)


def test_an_environment_that_raises_is_named_in_one_line():
    expected = r"4 of 4 failed.*task Breaks/train/0, turn 3.*OSError: no server"
    with pytest.raises(ConfigError, match=expected):
        shown(named(Breaks), **{"train.demonstrations": 4})
