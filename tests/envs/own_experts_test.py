"""Who demonstrates in environments of one's own: their expert, or the generic one."""

import re

import numpy as np
import pytest

from examples.own_environment import COLOURS
from mempo_jax.builders.suites import make_suite, play_expert
from mempo_jax.config import from_config
from mempo_jax.envs import Question, Situation, StepResult
from mempo_jax.envs.own_environments import own_suite
from mempo_jax.envs.own_experts import CheckedExpert, GenericExpert
from mempo_jax.memory import BankConfig
from mempo_jax.settings import ConfigError
from tests.experiments import tiny

EXAMPLE = "examples.own_environment:Doors"
DOORS = "tests.envs.doors:Doors"
LIMITS = BankConfig()


def play(path, count, write_rate):
    """Episodes of the first training tasks, as the expert of ``path`` plays them."""
    config = tiny.get_config()
    config.env.name = path
    settings = from_config(config.to_dict())
    suite = make_suite(settings)
    return list(play_expert(suite, settings, count, write_rate))


@pytest.mark.parametrize("path", [EXAMPLE, DOORS, f"{__name__}:Codes"])
def test_who_writes_everything_recalls_and_answers_right(path):
    for episode in play(path, 20, 1.0):
        assert episode.malformed == 0
        [recall] = [r for r in episode.bank.log if r.kind == "recall"]
        assert recall.entry_ids
        assert episode.env.score() == 1.0


@pytest.mark.parametrize("path", [EXAMPLE, DOORS, f"{__name__}:Codes"])
def test_who_writes_nothing_recalls_nothing(path):
    played = play(path, 30, 0.0)
    assert not any(r.kind == "write" for e in played for r in e.bank.log)
    assert all(any(r.kind == "recall" for r in e.bank.log) for e in played)
    assert np.mean([episode.env.score() for episode in played]) < 0.7


def test_the_expert_of_the_example_is_blind_to_what_matters():
    written, shown = [0, 0], [0, 0]  # of what is of no use, and of what is
    for episode in play(EXAMPLE, 200, None):
        useful = episode.env.useful()
        turns = {r.turn for r in episode.bank.log if r.kind == "write"}
        for at in range(4):
            shown[at in useful] += 1
            written[at in useful] += at in turns
    rates = np.divide(written, shown)
    assert rates == pytest.approx([0.2, 0.2], abs=0.08)


def test_the_words_of_the_example_are_all_known():
    assert set(COLOURS) <= set(own_suite(EXAMPLE, 0).vocabulary())


class Codes:
    """One question in words; several facts; no moves and no expert."""

    goal = "answer"

    def reset(self, seed):
        self.codes = np.random.default_rng(seed).integers(100, 1000, size=3)
        names = ("box", "shed", "gate")
        self.lines = [f"the {n} has code {c}." for n, c in zip(names, self.codes)]
        self.lines.append("what code has the shed?")
        self.at, self.right = 0, 0.0
        return self.lines[0]

    def step(self, action, *, final=False):
        asked = self.at == 3
        self.right = float(asked and final and action == str(self.codes[1]))
        self.at += 1
        done = final or asked
        return StepResult("" if done else self.lines[self.at], self.right, done)

    def score(self):
        return self.right

    def useful(self):
        return frozenset({1})

    def questions(self):
        return (Question(3, str(self.codes[1]), frozenset({1})),)


class Unasked(Codes):
    """Its last observation asks without a question mark."""

    def reset(self, seed):
        super().reset(seed)
        self.lines[-1] = "say the code of the shed"
        return self.lines[0]


def test_an_ending_asks_without_a_question_mark():
    [episode] = play(f"{__name__}:Unasked", 1, 1.0)
    assert episode.env.score() == 1.0
    written = [r.text for r in episode.bank.log if r.kind == "write"]
    assert len(written) == 3
    assert not any("say" in text for text in written)


def generic(observation, recalled=(), queries=(), *, moves=(), write_rate=1.0, **more):
    expert = GenericExpert(moves, write_rate=write_rate, **more)
    rng = np.random.default_rng(0)
    return expert(Situation(observation, recalled, queries), rng)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (generic("ann is here"), "<mem_write> ann is here</mem_write>"),
        (generic("ann is here", write_rate=0.0), ""),
        (generic("<act>no</act>"), "<mem_write> act no /act</mem_write>"),
        (
            generic("It rains. Where is ann?"),
            '<mem_recall k="1"> Where is ann?</mem_recall>',
        ),
        (
            generic("It rains. Where is ann?", ("ann is in Rome.",), ("q",)),
            "<mem_write> It rains.</mem_write><act> Rome</act>",
        ),
        (generic("Where is ann?", (), ("q",)), "<act> unknown</act>"),
        (
            generic("Where is ann?", (), ("q",), tag="answer"),
            "<answer> unknown</answer>",
        ),
        (
            generic(
                "Where?", ("ann is in Rome",), ("q",), moves=("to Oslo", "to Rome")
            ),
            "<act> to Rome</act>",
        ),
        (
            generic(" ".join("abcdefghijklm")),
            "<mem_write> a b c d e f g h i j</mem_write>",
        ),
    ],
)
def test_the_generic_expert(said, expected):
    assert said == expected


def test_without_a_memory_each_move_is_as_likely():
    moves = ("go left", "go right")
    expert, rng = GenericExpert(moves), np.random.default_rng(0)
    said = [expert(Situation("where ?", (), ("q",)), rng) for _ in range(200)]
    assert 60 < said.count("<act> go left</act>") < 140


def checked(answer, write_rate=1.0):
    def expert(seen, rng):
        if isinstance(answer, Exception):
            raise answer
        return answer

    return CheckedExpert(expert, "config.env.name = 'x:Y'", LIMITS, write_rate)


NONSENSE = [
    (None, r"a text \(str\), got None"),
    (b"<act> x</act>", r"a text \(str\), got b'<act>"),
    (KeyError("door"), r"to return a text, it raised KeyError: 'door'"),
    ("<act> x", r"well-formed tags, got '<act> x': <act> was never closed"),
    ("<mem_keep> x</mem_keep>", r"<mem_keep> is no known tag"),
    ('<mem_recall k="99"> x</mem_recall>', "k was too large"),
    (f"<mem_write>{'x' * 3000}</mem_write>", r"<mem_write> is too long"),
    ("<mem_write>x</mem_write>" * 5, "Too many actions in one turn"),
    ("open red", r"an action in tags, such as <act> text</act>.*got 'open red'"),
]


@pytest.mark.parametrize(("answer", "expected"), NONSENSE)
def test_nonsense_of_an_expert_names_the_environment_and_the_turn(answer, expected):
    seen = Situation("a corridor", (), (), turn=3)
    pattern = rf"config\.env\.name = 'x:Y': expert\(\): expected .*{expected}"
    with pytest.raises(ConfigError, match=pattern) as caught:
        checked(answer)(seen, np.random.default_rng(0))
    assert str(caught.value).endswith("(turn 3, observation 'a corridor')")


@pytest.mark.parametrize("text", ["", "<think> red</think>", "<act> x</act>"])
def test_an_expert_may_do_nothing(text):
    said = checked(text, 0.0)(Situation("", (), ()), np.random.default_rng(0))
    assert said == text


def test_each_write_is_dropped_apart_and_the_rest_stays():
    text = "<think> t</think><mem_write> a</mem_write><mem_write> b</mem_write>"
    text += "<act> x</act>"
    expert, rng = checked(text, 0.5), np.random.default_rng(0)
    said = [expert(Situation("", (), ()), rng) for _ in range(400)]
    assert {re.sub("<mem_write>.*?</mem_write>", "", each) for each in said} == {
        "<think> t</think><act> x</act>"
    }
    kept = {tuple(re.findall("<mem_write> (.)", each)) for each in said}
    assert kept == {(), ("a",), ("b",), ("a", "b")}
    assert sum("> a<" in each for each in said) == pytest.approx(200, abs=40)


class BadExpert(Codes):
    expert = "write all"


class BadRate(Codes):
    write_rate = 30


class Breaks(Codes):
    def step(self, action, *, final=False):
        raise OSError("no server")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("BadExpert", r"expected expert as a method.*got 'write all'"),
        ("BadRate", r"expected write_rate as a number from 0 to 1, got 30"),
        ("Breaks", r"a task without a move.*raised OSError: no server"),
    ],
)
def test_what_an_environment_brings_is_checked(name, expected):
    with pytest.raises(ConfigError, match=rf"{__name__}:{name}'.*{expected}"):
        own_suite(f"{__name__}:{name}", 0).expert()


class Peeks(Codes):
    def expert(self, seen, rng):
        return f"<act> {self.codes[1]}</act>"


def test_the_expert_cannot_look_into_the_task():
    with pytest.raises(ConfigError, match=r"AttributeError.*codes"):
        play(f"{__name__}:Peeks", 1, 1.0)
