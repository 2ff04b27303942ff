"""What groups say with the outcome gate on, and with it off."""

import pytest

from mempo_jax.doctor import examine
from tests.doctor.doctor_case import run

PENALTIES = {"no_outcome_groups": 0.8, "degenerate_groups": 0.3, "success": 0.2}


def found(columns, gate):
    record = run(columns, fields={"reward__outcome_gate": gate})
    return {each.name: each for each in examine(record)}


def test_without_the_gate_groups_learn_from_penalties():
    assert "few_groups_teach" in found(PENALTIES, gate=True)
    assert "few_groups_teach" not in found(PENALTIES, gate=False)


def test_without_the_gate_equal_rewards_still_teach_nothing():
    equal = PENALTIES | {"no_outcome_groups": 0.9, "degenerate_groups": 0.75}
    told = found(equal, gate=False)["few_groups_teach"]
    assert told.what.startswith("75 % of the groups teach nothing")
    assert told.seen[0].what == "degenerate_groups"


@pytest.mark.parametrize(
    ("gate", "why", "remedy"),
    [
        (True, "The outcome gate keeps these advantages small", "keep"),
        (False, "Nothing keeps these advantages small", "turn"),
    ],
)
def test_what_keeps_penalties_small(gate, why, remedy):
    told = found(PENALTIES | {"no_outcome_groups": 0.9}, gate)["only_penalties"]
    assert why in told.why
    assert f"{remedy} config.reward.outcome_gate (now {gate}) on" in told.remedies
    other = {"keep": "turn", "turn": "keep"}[remedy]
    assert not [each for each in told.remedies if each.startswith(other)]
