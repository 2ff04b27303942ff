"""What stands on the screen."""

import numpy as np
import pytest

from mempo_jax.doctor import examine, lines
from mempo_jax.doctor.findings import Seen
from mempo_jax.doctor.naming import field, number, share
from mempo_jax.doctor.wording import WIDTH, seen_text
from tests.doctor.doctor_case import run


def test_nothing_is_said_with_the_figures_that_say_so():
    told = lines([], run())
    assert told[0] == "Nothing found."
    text = "\n".join(told)
    assert "100 steps, 0 to 99" in text
    assert any(line.split()[0] == "success" for line in told[2:])
    assert "loss near 0 is normal" in text


def test_a_cause_is_told_whole_and_what_follows_in_short():
    record = run({"success": 0.0, "no_outcome_groups": 1, "degenerate_groups": 1})
    told = lines(examine(record), record)
    assert told[0].startswith("PROBLEM tasks_too_hard: ")
    text = "\n".join(told)
    assert "config.sampling.group_size (now 8)" in text
    assert "problem advantages_zero: " in text
    assert text.count("Probably from tasks_too_hard") >= 1
    assert max(map(len, told)) <= WIDTH


def test_figures_of_the_same_steps_stand_together():
    seen = (
        Seen("kl", 0.25, 3, 9),
        Seen("success", 1.0, 3, 9, "now"),
        Seen("success", 0.5, 0, 0),
        Seen("share of the time", 0.125),
    )
    assert seen_text(seen) == (
        "steps 3 to 9: kl 0.25, success 1 (now); step 0: success 0.5; "
        "share of the time 0.125"
    )


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_short_runs(steps):
    record = run(steps=steps)
    told = lines(examine(record), record)
    assert ("few to judge by" in "\n".join(told)) == (steps > 0)
    assert f"{steps} steps" not in "\n".join(told) or steps != 1


def test_numbers():
    assert [number(x) for x in (0.0, 3.0, 0.12345, 1e-7, np.nan)] == [
        *("0", "3", "0.123", "1e-07", "not a number")
    ]
    assert [share(x) for x in (0.0, 0.004, 0.5, 0.996, 1.0)] == [
        *("0 %", "0.4 %", "50 %", "99.6 %", "100 %")
    ]
    assert field(run(), "train.steps") == "config.train.steps (now 100)"
    assert field(run(), "no.such") == "config.no.such"
