"""Findings in words."""

import numpy as np
import pytest

from mempo_jax.doctor import examine, lines, verdict
from mempo_jax.doctor.findings import Figure, mean, median
from mempo_jax.doctor.text import (
    WIDTH,
    choose,
    field_text,
    figures_text,
    number,
    share,
    spell,
)
from mempo_jax.runs import Window
from tests.doctor.doctor_case import run


def test_a_run_without_findings_shows_its_figures():
    text_lines = lines([], run())
    assert text_lines[0] == "No problems found in 100 steps."
    text = "\n".join(text_lines)
    assert "100 steps, 0 to 99" in text
    assert any(line.split()[0] == "success" for line in text_lines[2:])
    assert "loss near 0 is normal" in text


def test_a_cause_is_shown_whole_and_what_follows_in_short():
    record = run({"success": 0.0, "no_outcome_groups": 1, "degenerate_groups": 1})
    text_lines = lines(examine(record), record)
    assert text_lines[0].startswith("PROBLEM tasks_too_hard: ")
    text = "\n".join(text_lines)
    assert "config.sampling.group_size (now 8)" in text
    assert "problem advantages_zero: " in text
    assert text.count("Probably from tasks_too_hard") >= 1
    assert max(map(len, text_lines)) <= WIDTH


def test_figures_of_the_same_steps_come_together():
    figures = (
        Figure("kl", 0.25, 3, 9),
        Figure("success", 1.0, 3, 9, "now"),
        Figure("success", 0.5, 0, 0),
        Figure("share of the time", 0.125),
    )
    assert figures_text(figures) == (
        "steps 3 to 9: kl 0.25, success 1 (now); step 0: success 0.5; "
        "share of the time 0.125"
    )


@pytest.mark.parametrize("steps", [1, 5, 19])
def test_short_runs_are_not_judged(steps):
    record = run(steps=steps)
    assert verdict(examine(record), record) == "too_short"
    text_lines = lines(examine(record), record)
    count = "1 step" if steps == 1 else f"{steps} steps"
    expected = f"Too short to judge: {count}, and at least 20 are needed."
    assert text_lines[0] == expected
    assert f"{count}, 0 to {steps - 1} (trends are judged from 20" in text_lines[1]


def test_verdicts():
    padded = run({"padding_share": 0.7})
    sick = run({"success": 0.0, "no_outcome_groups": 1}, steps=9)
    notes = examine(padded)
    assert [finding.name for finding in notes] == ["padding"]
    assert verdict(notes, padded) == "no_problems"
    text_lines = lines(notes, padded)
    assert text_lines[0] == "No problems found in 100 steps."
    assert text_lines[1].startswith("NOTE padding")
    assert verdict(examine(sick), sick) == "problems", "however short it is"
    assert lines(examine(sick), sick)[0].startswith("PROBLEM")
    assert lines(examine(run(steps=20)), run(steps=20))[0].startswith("No problems")
    empty = run(steps=0, summary={})
    assert lines(examine(empty), empty)[0].startswith("WARNING no_steps")


def test_numbers():
    assert [number(x) for x in (0.0, 3.0, 0.12345, 1e-7, np.nan)] == [
        *("0", "3", "0.123", "1e-07", "not a number")
    ]
    assert [share(x) for x in (0.0, 0.004, 0.5, 0.996, 1.0)] == [
        *("0 %", "0.4 %", "50 %", "99.6 %", "100 %")
    ]
    assert field_text(run(), "train.steps") == "config.train.steps (now 100)"
    assert field_text(run(), "no.such") == "config.no.such"


def test_a_window_as_a_figure():
    window = Window("kl", np.array([1.0, 1, 1, 1, 900]), 3, 7)
    assert median(window, "now") == Figure("kl", 1.0, 3, 7, "now")
    assert mean(window).value == pytest.approx(180.8)


def test_texts_choose_by_facts():
    by_fact = {"first": "a", "second": "b", "": "c"}
    assert choose(by_fact, {"second": True}) == "b"
    assert choose(by_fact, {"second": True, "first": True}) == "a"
    assert choose(by_fact, {"first": False}) == "c"
    assert choose({"first": "a"}, {}) == ""
    assert choose("only", {"first": True}) == "only"


def test_slots_are_filled():
    record = run({"kl": 0.25})
    text = ("{n} of {kl} {part%} ", {"b": "no", "": ({"a": "{word}"}, ", {seed.x}")})
    facts = {"n": 1234567, "part": 0.5, "a": True, "word": "yes"}
    assert spell(text, facts, record) == "1234567 of 0.25 50 % yes, config.seed.x"
