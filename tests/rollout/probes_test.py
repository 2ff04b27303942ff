import dataclasses

import numpy as np
import pytest

from mempo_jax.envs import Question
from mempo_jax.rollout.probes import spell
from tests.envs.scripted_env import context
from tests.rollout import probe_case as case
from tests.rollout.probe_case import ANSWER, ASKED, RECALL, WRITE, play
from tests.rollout.tiny import TOKENIZER

GOLD, JUNK = WRITE.format("gold one"), WRITE.format("two three")
OTHER_RECALL = "<mem_recall> two three</mem_recall>"
DROP = np.log(case.KNOWN / case.UNKNOWN)
GAIN = case.KNOWN - case.UNKNOWN


def worth(script, field="leave_out", **options):
    """The trajectory of a script, and what its ops are worth, by log position."""
    [trajectory] = play(script, **options)
    value = getattr(case.evidence([trajectory]), field)[0]
    assert not value[len(trajectory.log) :].any()
    return trajectory, value[: len(trajectory.log)]


def test_of_two_recalled_memories_the_one_that_held_the_answer_earns():
    trajectory, drop = worth([GOLD, JUNK, RECALL, ANSWER])
    assert [r.kind for r in trajectory.log] == ["write", "write", "recall", "answer"]
    np.testing.assert_allclose(drop, [DROP, 0, DROP, 0], rtol=1e-5)


def test_a_memory_that_was_never_recalled_earns_nothing_by_leaving_it_out():
    script = [GOLD, WRITE.format("gold gold"), RECALL, ANSWER]
    _, drop = worth(script, retrieval_top_k=1)
    assert sorted(drop > 0) == [False, False, True, True]
    _, gain = worth(script, "answer_gain", retrieval_top_k=1)
    np.testing.assert_allclose(gain, [GAIN, GAIN, 0, 0], rtol=1e-5)


@pytest.mark.parametrize("shown", [1, 2])
def test_two_memories_that_say_the_same_share(shown):
    script = [GOLD, GOLD, RECALL, ANSWER]
    trajectory, drop = worth(script, retrieval_top_k=shown)
    assert len(trajectory.log[2].entry_ids) == shown
    np.testing.assert_allclose(drop, [DROP / 2, DROP / 2, DROP, 0], rtol=1e-5)


def test_the_parents_of_a_merged_memory_share_and_the_merge_is_paid_too():
    merge = '<mem_merge ids="0,1"></mem_merge>'
    trajectory, drop = worth([GOLD, JUNK + merge, RECALL, ANSWER])
    kinds = [r.kind for r in trajectory.log]
    assert kinds == ["write", "write", "merge", "recall", "answer"]
    np.testing.assert_allclose(drop, [DROP / 2, DROP / 2, DROP, DROP, 0], rtol=1e-5)
    _, gain = worth([GOLD, JUNK + merge, RECALL, ANSWER], "answer_gain")
    np.testing.assert_allclose(gain, [GAIN, 0, 0, 0, 0], rtol=1e-5)


def test_a_write_that_was_joined_to_another_shares_with_it():
    script = [WRITE.format("one two"), GOLD, RECALL, ANSWER]
    trajectory, drop = worth(script, merge_threshold=-1.0)
    assert trajectory.log[1].outcome == "merged"
    assert "\n" in trajectory.log[1].stored
    np.testing.assert_allclose(drop, [DROP / 2, DROP / 2, DROP, 0], rtol=1e-5)


def test_an_answer_in_the_observation_itself_pays_no_memory():
    lines = ("one two", "three four", "gold find five")
    _, drop = worth([GOLD, JUNK, ANSWER], lines=lines)
    assert not drop.any()
    appended = context(rule="append", max_context_tokens=150)
    lines = ("one two", "three four", "find five")
    script = [GOLD, JUNK, RECALL, ANSWER]
    [trajectory] = play(script, lines=lines, rules=appended)
    made = case.plan([trajectory])
    known = [case.KNOWN] * len(made.variants)  # the past says it too: always known
    evidence = made.evidence(np.log(known), case.no_evidence(1, case.SHAPES))
    assert not evidence.leave_out.any()
    assert not evidence.answer_gain.any()


def test_answers_that_are_not_known_differ_by_nothing():
    [trajectory] = play([GOLD, JUNK, RECALL, ANSWER])
    made = case.plan([trajectory], ("leave_out",))
    blank = case.no_evidence(1, case.SHAPES)
    drop = made.evidence([-20.0, -9.0, -5.0], blank).leave_out
    assert not drop.any()


def test_junk_pays_for_what_it_drove_out_and_the_lost_write_earns_nothing():
    script = [GOLD + JUNK, WRITE.format("five four"), RECALL, ANSWER]
    trajectory, drop = worth(script, capacity=2)
    assert trajectory.log[2].evicted == (0,)
    np.testing.assert_allclose(drop, [0, -DROP / 2, -DROP / 2, 0, 0], rtol=1e-5)


@pytest.mark.parametrize(
    ("script", "capacity"),
    [
        ([JUNK + GOLD, WRITE.format("five four"), RECALL, ANSWER], 2),  # junk is out
        ([GOLD + JUNK, WRITE.format("five four"), ANSWER], 2),  # nothing was recalled
        ([GOLD + JUNK, GOLD, OTHER_RECALL, ANSWER], 2),  # the same is stored again
    ],
)
def test_an_eviction_that_did_not_matter_costs_nothing(script, capacity):
    trajectory, drop = worth(script, capacity=capacity, retrieval_top_k=1)
    assert any(record.evicted for record in trajectory.log)
    assert (drop >= 0).all()


@pytest.mark.parametrize("rule", ["window", "append"])
def test_a_question_that_asked_nothing_of_memory_charges_no_eviction(rule):
    asked = tuple(dataclasses.replace(ASKED, observation=n, kind="act") for n in (3, 4))
    script = [GOLD, JUNK, WRITE.format("four"), RECALL, "<act> one</act>"]
    [trajectory] = play(
        [*script, "<act> one</act>"],
        lines=("one", "two", "three", "find five", "find two"),
        asked=asked,
        capacity=2,
        rules=context(rule=rule, max_context_tokens=160),
    )
    assert trajectory.log[2].evicted == (0,)
    assert len(case.plan([trajectory], ("evictions",)).terms) == 1


def test_evictions_are_charged_only_where_they_are_asked_for():
    script = [GOLD + JUNK, WRITE.format("five four"), RECALL, ANSWER]
    trajectories = play(script, capacity=2)
    assert not case.evidence(trajectories, ("leave_out",)).leave_out.any()


def test_a_text_that_was_taken_back_has_no_gain():
    delete = '<mem_delete ids="0"/>'
    _, gain = worth([GOLD, JUNK + delete, RECALL, ANSWER], "answer_gain")
    assert not gain.any()
    _, gain = worth([GOLD, JUNK, RECALL, ANSWER], "answer_gain")
    np.testing.assert_allclose(gain, [GAIN, 0, 0, 0], rtol=1e-5)


def test_an_evicted_text_keeps_its_gain():
    _, gain = worth([GOLD, JUNK, RECALL, ANSWER], "answer_gain", capacity=1)
    np.testing.assert_allclose(gain, [GAIN, 0, 0, 0], rtol=1e-5)


def test_gains_add_up_over_the_questions_that_come_after_the_write():
    lines = ("one", "find five", "two", "find five")
    asked = (
        dataclasses.replace(ASKED, observation=1, kind="act"),
        dataclasses.replace(ASKED, observation=3),
    )
    act = "<act> gold</act>"
    script = [GOLD, RECALL, act, WRITE.format("gold"), RECALL, ANSWER]
    trajectory, gain = worth(script, "answer_gain", lines=lines, asked=asked)
    writes = case.ops(trajectory, "write")
    np.testing.assert_allclose(gain[writes], [2 * GAIN, GAIN], rtol=1e-5)
    shown = case.texts(case.plan([trajectory]))
    assert {t.split("<|assistant|>")[-1] for t in shown} == {
        "<act> gold",
        "<answer> gold",
    }


def test_the_potential_rises_where_the_recall_comes_in_view():
    _, potential = worth_of_turns([GOLD, JUNK, RECALL, ANSWER])
    np.testing.assert_allclose(potential[:5], [0, 0, 0, DROP, DROP], rtol=1e-5)
    _, potential = worth_of_turns([JUNK, JUNK, RECALL, ANSWER])
    assert not potential.any()


def worth_of_turns(script):
    [trajectory] = play(script)
    return trajectory, case.evidence([trajectory]).turn_potential[0]


def test_a_variant_is_the_sampled_context_without_one_line():
    [trajectory] = play([GOLD, JUNK, RECALL, ANSWER])
    made = case.plan([trajectory], ("leave_out",))
    whole, *others = case.texts(made)
    segment = trajectory.segments[-1]
    sampled = len(segment.tokens) - len(TOKENIZER.encode(ANSWER))
    tag, gold = TOKENIZER.encode("<answer>"), TOKENIZER.encode(" gold")
    assert list(made.variants[0].tokens) == segment.tokens[:sampled] + tag + gold
    assert made.variants[0].scored == len(gold)
    lines = [f"\n{i}: {r.stored}" for i, r in enumerate(trajectory.log[:2])]
    assert set(others) == {whole.replace(line, "") for line in lines}


def test_where_nothing_was_recalled_a_memory_is_put_behind_the_question():
    [trajectory] = play([GOLD, JUNK, ANSWER])
    shown = case.texts(case.plan([trajectory], ("answer_gain",)))
    added = [text for text in shown if "recalled" in text]
    assert len(shown) == 3
    assert all("find five\nrecalled\n" in text for text in added)
    plain = {text.replace("\nrecalled\n0: gold one", "") for text in shown}
    assert min(shown, key=len) in plain


def test_what_the_policy_says_itself_is_never_taken_for_a_recall():
    spoken = "recalled\n0: gold one"
    [trajectory] = play([GOLD, JUNK, f"{spoken}{RECALL}", ANSWER], retrieval_top_k=1)
    made = case.plan([trajectory], ("leave_out",))
    assert len(made.variants) == 2
    for text in case.texts(made):
        assert f"<|assistant|>{spoken}" in text


def test_two_recalls_in_a_row_are_both_searched():
    script = [GOLD, JUNK, RECALL, "<mem_recall> two</mem_recall>", ANSWER]
    trajectory, _ = worth(script, retrieval_top_k=1)
    hits = [trajectory.log[k].entry_ids for k in case.ops(trajectory, "recall")]
    assert hits == [(0,), (1,)]
    texts = case.texts(case.plan([trajectory], ("leave_out",)))
    assert [text.count("recalled nothing") for text in texts] == [0, 1, 1]


def test_a_rebuilt_context_lists_a_run_of_recalls_together():
    rules = context(rule="budget", max_context_tokens=85)
    script = [GOLD, JUNK, RECALL, "<mem_recall> two</mem_recall>", ANSWER]
    trajectory, drop = worth(script, rules=rules, retrieval_top_k=1)
    assert "recalled\n0: gold one\n1: two three" in trajectory.observations[-1]
    np.testing.assert_allclose(drop, [DROP, 0, DROP, 0, 0], rtol=1e-5)


def test_members_of_a_group_share_variants():
    trajectories = play([GOLD, JUNK, RECALL, ANSWER], count=4)
    one, all_ = case.plan(trajectories[:1]), case.plan(trajectories)
    assert all_.variants == one.variants
    drop = case.evidence(trajectories).leave_out
    assert (drop == drop[0]).all()


def test_what_is_too_long_is_counted_and_left_out():
    [trajectory] = play([GOLD, JUNK, RECALL, ANSWER])
    longest = max(len(v.tokens) for v in case.plan([trajectory]).variants)
    made = case.plan([trajectory], longest=longest - 1)
    assert made.skipped > 0
    assert all(len(v.tokens) < longest for v in made.variants)


def test_a_question_that_was_not_reached_or_has_no_answer_is_not_probed():
    later = dataclasses.replace(ASKED, observation=9)
    blank = dataclasses.replace(ASKED, answer=" ")
    for asked in ((), (later,), (blank,)):
        [trajectory] = play([GOLD, JUNK, RECALL, ANSWER], asked=asked)
        assert not case.plan([trajectory]).variants


@pytest.mark.parametrize("answer", ["zebra", "gold zebra one"])
def test_an_answer_that_the_tokenizer_cannot_spell_is_not_probed(answer):
    asked = dataclasses.replace(ASKED, answer=answer)
    assert spell(asked, TOKENIZER).ids == []
    made = case.plan(play([GOLD, JUNK, RECALL, ANSWER], asked=(asked,)))
    assert (made.variants, made.skipped) == ([], 1)


@pytest.mark.parametrize("rule", ["window", "append", "rolling"])
def test_each_question_pays_the_recall_that_it_was_answered_with(rule):
    asked = tuple(dataclasses.replace(ASKED, observation=n, kind="act") for n in (1, 2))
    answer = "<act> gold</act>"
    trajectory, drop = worth(
        [GOLD, RECALL, answer, RECALL, answer],
        asked=asked,
        rules=context(rule=rule, max_context_tokens=150),
    )
    assert case.ops(trajectory, "recall") == [1, 3]
    # What is appended shows both recalls at the second question: they share it.
    shares = (1.5, 0.5) if rule == "append" else (1, 1)
    expected = [2 * DROP, shares[0] * DROP, 0, shares[1] * DROP, 0]
    np.testing.assert_allclose(drop, expected, rtol=1e-5)


def test_an_observation_of_unknown_words_can_still_show_a_memory():
    lines = ("one two", "three four", "find zebra")
    _, gain = worth([GOLD, JUNK, ANSWER], "answer_gain", lines=lines)
    np.testing.assert_allclose(gain, [GAIN, 0, 0], rtol=1e-5)


def test_the_answer_alone_is_scored():
    question = Question(0, "five four", frozenset(), kind="act")
    opening, ids = spell(question, TOKENIZER)
    assert TOKENIZER.decode(opening) == "<act>"
    assert TOKENIZER.decode(ids) == " five four"
