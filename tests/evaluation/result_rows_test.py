"""Figures of trajectories as rows: answers, tokens, memory, and how they are shown."""

import csv
import io

import pytest

from mempo_jax.envs import Question
from mempo_jax.evaluation.baselines import ToldTrajectory
from mempo_jax.evaluation.result_rows import (
    MEASURES,
    answer_scores,
    lines,
    row,
    to_csv,
    tokens_computed,
)
from mempo_jax.memory import Hygiene, OpRecord
from mempo_jax.rollout.segments import Segment
from tests.rollout.assemble_test import note, recall, trajectory, write


def answered(turn, text, kind="answer"):
    return OpRecord(turn, kind, "noted", text=text)


def asked(observation, answer, support=(), kind="answer"):
    return Question(observation, answer, frozenset(support), kind)


def seen(log, questions=(), useful=(), observations=(0, 1, 2, 3), score=1.0, **more):
    return trajectory(
        log,
        useful=frozenset(useful),
        questions=tuple(questions),
        turn_observation=list(observations),
        score=score,
        **more,
    )


def test_answers_are_compared_with_the_question_that_they_answer():
    made = seen(
        [answered(1, " The sea.", "act"), answered(3, "two red kites")],
        [asked(1, "sea", kind="act"), asked(3, "red kite"), asked(2, "never answered")],
    )
    em, f1 = answer_scores(made)
    assert em == pytest.approx(1 / 3)
    assert f1 == pytest.approx((1 + 2 / 5 + 0) / 3)
    assert answer_scores(seen([])) is None


def test_numbered_answers_are_compared_one_by_one():
    made = seen([answered(3, "1: Paris; 2: no")], [asked(3, "1: Paris; 2: yes")])
    assert answer_scores(made) == (0.5, 0.5)
    single = seen([answered(3, "Paris")], [asked(3, "1: Paris")])
    assert answer_scores(single) == (1.0, 1.0)


def test_the_last_answer_to_a_question_counts():
    made = seen(
        [answered(1, "old", "act"), answered(2, "new", "act")],
        [asked(1, "new", kind="act")],
        observations=(0, 1, 1, 2),
    )
    assert answer_scores(made) == (1.0, 1.0)


def test_what_a_rebuilt_context_shares_is_not_computed_again():
    first, second = Segment(), Segment()
    first.add_observation([1, 2, 3, 4], 0)
    second.add_observation([1, 2, 9, 4, 5], 1)
    assert tokens_computed(seen([], segments=[first, second])) == 4 + 3
    assert tokens_computed(seen([], segments=[])) == 0


def test_memory_figures_of_a_policy():
    made = seen(
        [write(0, 0), write(1, 1), recall(3, 1), answered(3, "x")],
        [asked(3, "y", support={1})],
        useful={1, 2},
        score=0.0,
    )
    got = row("policy", [ToldTrajectory(made)], [ToldTrajectory(made)])
    assert got["write_precision"]["mean"] == 0.5
    assert got["write_recall"]["mean"] == 0.5
    assert got["recall_hit_rate"]["mean"] == 1.0
    assert got["evidence_recall"]["mean"] == 1.0
    assert got["success_sampled"]["mean"] == 0.0
    assert set(MEASURES) < set(got)


def test_merged_entries_carry_what_they_tell_of():
    log = [
        write(0, 0),
        OpRecord(1, "write", "merged", (1, 0)),
        OpRecord(2, "merge", "merged", (2, 1)),
        recall(3, 2),
    ]
    made = seen(log, [asked(3, "y", support={0, 1}), asked(2, "z", support={2})])
    assert row("policy", [ToldTrajectory(made)])["evidence_recall"][
        "mean"
    ] == pytest.approx(2 / 3)


def test_a_write_tells_of_what_its_rule_says():
    made = seen([write(3, 0), note(3, "skip")], useful={0, 1})
    told = ToldTrajectory(made, (frozenset({0, 1}),))
    assert row("rule", [told])["write_recall"]["mean"] == 1.0
    assert row("rule", [ToldTrajectory(made)])["write_recall"]["mean"] == 0.0


def test_without_memory_there_is_nothing_to_measure():
    made = seen([answered(3, "x")], [asked(3, "x", support={1})], useful={1})
    got = row("rule", [ToldTrajectory(made)])
    for name in ("write_precision", "write_recall", "recall_hit_rate"):
        assert got[name]["mean"] is None
    assert got["evidence_recall"]["mean"] is None
    assert got["staleness"]["mean"] is None


def test_hygiene_is_averaged_over_banks_that_hold_something():
    def bank(active, staleness, junk):
        shares = (junk, 0.0, 0.0)
        return Hygiene(5, active, active, staleness, staleness, *shares, (), 0, 0)

    made = [
        seen([], hygiene=bank(*each)) for each in ((2, 3, 0.5), (0, 0, 0), (1, 4, 1))
    ]
    got = row("policy", [ToldTrajectory(each) for each in made])
    assert got["staleness"]["mean"] == 3.5
    assert got["junk_share"]["mean"] == 0.75


def test_failed_trajectories_count_as_failures():
    good, bad = seen([]), seen([], score=0.0)
    bad.failure, bad.reward = "broken", None
    got = row(
        "policy", [ToldTrajectory(good), ToldTrajectory(bad)], [ToldTrajectory(good)]
    )
    assert got["failed"] == 1
    assert got["success_sampled"]["mean"] == 0.5
    assert got["success_greedy"]["mean"] == 1.0
    assert row("rule", [ToldTrajectory(bad)])["failed"] == 1


def test_rows_as_csv_and_on_screen():
    rows = [
        row("one", [ToldTrajectory(seen([]))]),
        row("another", [ToldTrajectory(seen([], score=0.25))]),
    ]
    read = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert [each["policy"] for each in read] == ["one", "another"]
    assert float(read[1]["success_sampled"]) == 0.25
    assert read[0]["em"] == read[0]["em_low"] == ""
    assert set(read[0]) >= {f"{name}_high" for name in MEASURES}
    shown = "\n".join(lines(rows))
    for heading in MEASURES.values():
        assert heading in shown
    assert "another" in shown
    assert max(map(len, lines(rows))) <= 120
