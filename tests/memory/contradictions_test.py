"""What becomes of a changed value, a repetition and a bystander in a real bank."""

import functools

import pytest

from mempo_jax.memory import Bank, BankConfig, OpOutcome, make_embedder
from mempo_jax.memory.lexical.comparison import Verdict
from mempo_jax.memory.lexical.judge import lexical
from tests.memory.contradictions import CHANGED, HELD_OUT, OTHERS, SAME, TUNED
from tests.memory.contradictions_talk import CONVERSATION, REMARKS

SETS = {"tuned": TUNED, "held out": HELD_OUT, "conversation": CONVERSATION}
MOST_FALSE_MERGES = 0.10
LEAST_DUPLICATES_FOUND = 0.85


@pytest.fixture(scope="module")
def static():
    return make_embedder("static")


def outcome(embedder, pair, threshold):
    """``new``, ``duplicate``, ``added`` or ``superseded``: the second write's fate."""
    bank = Bank(BankConfig(merge_threshold=threshold), embedder)
    bank.write(pair.old, step=0)
    result = bank.write(pair.new, step=1)
    bank.check_valid()
    if result.outcome != OpOutcome.MERGED:
        return str(result.outcome)
    return "superseded" if bank.log[-1].supersedes else "added"


def is_false_merge(kind, fate):
    """Whether what the new note says, or what the old one said, is lost."""
    harmless = {"new", "superseded"} if kind in CHANGED else {"new"}
    return fate not in harmless


def share(pairs, holds):
    return sum(map(holds, pairs)) / len(pairs)


def of_kinds(pairs, kinds):
    return [pair for pair in pairs if pair.kind in kinds]


@pytest.mark.parametrize("threshold", [BankConfig().merge_threshold, -1.0])
@pytest.mark.parametrize("name", SETS)
def test_few_different_notes_are_merged_at_any_threshold(static, name, threshold):
    fate = functools.partial(outcome, static, threshold=threshold)
    for pairs in (SETS[name], [pair for pair in SETS[name] if pair.is_chinese]):
        different = of_kinds(pairs, CHANGED + OTHERS)
        wrong = share(different, lambda p: is_false_merge(p.kind, fate(p)))
        assert wrong <= MOST_FALSE_MERGES


@pytest.mark.parametrize("kinds", [SAME, ("trivial",), ("paraphrase",)])
@pytest.mark.parametrize("name", SETS)
def test_most_true_duplicates_are_found(static, name, kinds):
    fate = functools.partial(outcome, static, threshold=BankConfig().merge_threshold)
    for pairs in (SETS[name], [pair for pair in SETS[name] if pair.is_chinese]):
        same = of_kinds(pairs, kinds)
        assert share(same, lambda p: fate(p) != "new") >= LEAST_DUPLICATES_FOUND


@pytest.mark.parametrize("name", SETS)
def test_an_addition_is_never_dropped(static, name):
    for pair in of_kinds(SETS[name], ("addition",)):
        for threshold in (BankConfig().merge_threshold, -1.0):
            assert outcome(static, pair, threshold) != "duplicate"


def test_most_changed_values_over_the_threshold_supersede(static):
    """Else both values would stand side by side."""
    for pairs in SETS.values():
        changed = of_kinds(pairs, CHANGED)
        fates = [outcome(static, pair, threshold=-1.0) for pair in changed]
        assert fates.count("superseded") >= 0.85 * len(fates)


@pytest.mark.parametrize(("old", "new"), REMARKS)
def test_remarks_under_one_heading_are_never_lost(old, new):
    assert lexical(new, old) == Verdict.OTHER
    assert lexical(old, new) == Verdict.OTHER


def test_the_similarity_alone_would_merge_most_changed_values(static):
    """The sets are hard: without the judge the bounds do not hold."""
    for pairs in SETS.values():
        changed = of_kinds(pairs, CHANGED)
        rows = static.embed([text for p in changed for text in (p.old, p.new)])
        similar = (rows[::2] * rows[1::2]).sum(axis=1) >= BankConfig().merge_threshold
        assert similar.mean() > 0.5


def test_the_sets_are_what_they_claim(static):
    assert len(TUNED) >= 100
    assert len(HELD_OUT) >= 40
    assert len(CONVERSATION) >= 30
    assert sum(pair.is_chinese for pair in TUNED) >= 25
    assert sum(pair.is_chinese for pair in HELD_OUT) >= 12
    pairs = TUNED + HELD_OUT + CONVERSATION
    assert len({(pair.old, pair.new) for pair in pairs}) == len(pairs)
    assert {pair.kind for pair in pairs} == {*SAME, *CHANGED, *OTHERS, "addition"}
    for pair in of_kinds(TUNED + HELD_OUT, ("paraphrase",)):
        one, other = static.embed([pair.old, pair.new])
        assert one @ other >= BankConfig().merge_threshold
