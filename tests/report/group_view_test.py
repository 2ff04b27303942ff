"""What a group shows beside its closed line: figures, stored texts, a picture."""

import dataclasses

import pytest

from mempo_jax.report import group_view
from mempo_jax.report.run_files import read_record
from mempo_jax.report.selection import Group
from scripts import lifeline_picture
from tests.report import run_case
from tests.report.reading import Read


def member(sample, score, **changes):
    made = run_case.record(sample=sample, score=score, **changes)
    return read_record("step_000010", made)


@pytest.fixture
def group():
    lost = member(2, 0.0, ops=run_case.log()[:5], answers=["<3>"])
    return Group(10, "ledger/train/1", (lost, member(1, 1.0), member(0, 0.5)))


def test_a_picture_has_the_best_and_the_worst(group):
    page = str(group_view.picture(group))
    text = Read(f"<html><head>{page.partition('</style>')[2]}").text
    assert "two of 3 attempts" in text
    assert "answers 1: reward 0.95" in text
    assert "stored as entry 0 in turn 0, recalled in turn 3" in text
    assert "answers <3>: reward −0.05" in text
    assert "lost the evidence: stored as entry 0, not recalled" in text
    assert "what is one? → 1" in text
    assert page.count('class="lifelines"') == 2
    assert run_case.NASTY not in page


def test_stored_texts_are_listed_once_by_their_first_turn(group):
    later = dataclasses.replace(group.members[0], log=(group.members[0].log[3],))
    rows = group_view.stored_texts([later, group.members[1]], None)
    assert [(row.text, row.useful) for row in rows] == [
        *(("one 1", True), ("two 2", True), ("two 3", False), ("four", False))
    ]
    assert [signs for signs, _ in rows[-1].cells] == ["●", "●×"]


def test_a_group_that_is_not_there_is_refused_with_those_that_are(tmp_path, capsys):
    folder = run_case.write(tmp_path / "run")
    for key in ("step-0-other", "held-out-ledger-test-0"):
        words = [f"--workdir={folder}", f"--group={key}", "--out=x.png"]
        with pytest.raises(SystemExit):
            lifeline_picture.main(words)
        assert "expected one of step-0-ledger-train-0, step" in capsys.readouterr().err
