"""The judge of a bank: one pair at a time, or all that a write is compared with."""

import dataclasses
import functools

import pytest

from mempo_jax.memory import Bank, BankConfig, Verdict, make_embedder


@pytest.fixture(scope="module")
def static():
    return make_embedder("static")


class Recording:
    """A judge of several pairs at a time that says the same of all."""

    def __init__(self, verdicts):
        self.verdicts, self.asked = verdicts, []

    def __call__(self, new, old):
        raise AssertionError("many() is there to be asked")

    def many(self, pairs):
        self.asked.append(pairs)
        return self.verdicts[: len(pairs)]


def test_a_judge_of_many_is_asked_once_about_the_four_nearest(static):
    judge = Recording([Verdict.ADDS] * 4)
    bank = Bank(BankConfig(judge="policy", merge_threshold=1.01), static, judge=judge)
    for step in range(6):
        foreseen = bank.questions(f"word{step}")
        bank.write(f"word{step}", step=step)
        asked = judge.asked[-1] if judge.asked else []
        assert foreseen == asked
    assert [len(pairs) for pairs in judge.asked] == [0, 1, 2, 3, 4, 4]
    assert bank.questions(" ") == []
    assert bank.questions("x" * 9_999) == []


def test_verdicts_of_many_are_weighed_as_those_of_one(static):
    orders = [(Verdict.OTHER, Verdict.REPEATS), (Verdict.ADDS, Verdict.UPDATES)]
    for verdicts in orders:
        banks = []
        for many in (False, True):
            one = functools.partial(lambda left, new, old: next(left), iter(verdicts))
            judge = Recording(list(verdicts)) if many else one
            bank = Bank(BankConfig(merge_threshold=-1.0), static)
            bank.write("ann phone 17", step=0)
            bank.write("bob lives in rome", step=0)
            bank._gates = dataclasses.replace(bank._gates, judge=judge)
            bank.write("ann phone", step=1)
            banks.append(bank.log)
        assert banks[0] == banks[1]


def test_a_judge_that_answers_too_little_is_told(static):
    bank = Bank(BankConfig(), static, judge=Recording([]))
    bank.write("a", step=0)
    with pytest.raises(ValueError, match="expected 1 verdicts, one a pair, got "):
        bank.write("b", step=1)
    assert len(bank.log) == 1


def test_where_memory_is_off_nothing_is_asked(static):
    bank = Bank(BankConfig(enabled=False), static)
    assert bank.questions("ann phone 17") == []


@pytest.mark.parametrize("verdict", [Verdict.UPDATES, Verdict.OTHER, Verdict.ADDS])
def test_the_same_text_is_a_repeat_whatever_the_judge_says(static, verdict):
    bank = Bank(BankConfig(), static, judge=lambda new, old: verdict)
    outcomes = [
        bank.write("ann is a nurse", title="Ann", step=step).outcome for step in (0, 1)
    ]
    assert outcomes == ["new", "duplicate"]
    assert len(bank) == 1
