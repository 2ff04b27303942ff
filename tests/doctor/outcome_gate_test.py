"""Groups with the outcome gate on, and with it off."""

import pytest

from tests.doctor.doctor_case import by_name, run

PENALTIES = {"no_outcome_groups": 0.8, "degenerate_groups": 0.3, "success": 0.2}


def findings(columns, gate):
    record = run(columns, fields={"reward__outcome_gate": gate})
    return by_name(record)


def test_without_the_gate_groups_learn_from_penalties():
    assert "few_groups_teach" in findings(PENALTIES, gate=True)
    assert "few_groups_teach" not in findings(PENALTIES, gate=False)


def test_without_the_gate_equal_rewards_still_teach_nothing():
    equal = PENALTIES | {"no_outcome_groups": 0.9, "degenerate_groups": 0.75}
    finding = findings(equal, gate=False)["few_groups_teach"]
    assert finding.what.startswith("75 % of the groups teach nothing")
    assert finding.seen[0].what == "degenerate_groups"


@pytest.mark.parametrize("gate", [True, False])
def test_what_keeps_penalties_small(gate):
    finding = findings(PENALTIES | {"no_outcome_groups": 0.9}, gate)["only_penalties"]
    why = "The outcome gate keeps these" if gate else "Nothing keeps these advantages"
    assert why in finding.why
    remedy = "turn config.reward.outcome_gate (now False) on"
    assert (remedy in finding.remedies) == (not gate)
    assert ("reward.outcome_gate" in finding.fields) == (not gate)
