"""Whole groups, spread over the run, those with contrast first."""

import pytest

from mempo_jax.report.selection import select_groups
from tests.report import run_case
from tests.report.page_test import page_of


def test_all_where_there_is_room(tmp_path):
    folder = run_case.write(tmp_path / "run") / "trajectories"
    chosen = select_groups(folder, 200)
    assert (chosen.shown, chosen.recorded) == (20, 20)
    assert [group.step for group in chosen.groups] == [0, 0, 10, 10, None, None]
    assert [m.source for m in chosen.groups[-1].members] == [
        *("cold_start_greedy", "trained_greedy")
    ]
    assert (chosen.step_files, chosen.step_files_shown) == (2, 2)


@pytest.mark.parametrize("most", [1, 7, 16, 40, 41, 100])
def test_no_more_than_asked_and_both_ends_of_the_run(tmp_path, most):
    folder = run_case.write(tmp_path / "run", steps=range(0, 200, 10)) / "trajectories"
    chosen = select_groups(folder, most)
    assert chosen.shown <= max(most, 4)
    steps = [group.step for group in chosen.groups if group.step is not None]
    assert steps == sorted(steps)
    assert steps[-1] == 190
    if most >= 16:
        assert steps[0] == 0
        assert chosen.shown > most / 2
    assert all(len(g.members) == 4 for g in chosen.groups if g.step is not None)
    assert chosen.recorded == 164


def test_a_group_with_contrast_comes_before_one_without(tmp_path):
    folder = tmp_path / "trajectories"
    folder.mkdir()
    alike = [run_case.record("ledger/train/0", n, 1.0) for n in range(2)]
    apart = [run_case.record("ledger/train/1", n, float(n)) for n in range(2)]
    run_case.lines(folder / "step_000000.jsonl", [*alike, *apart])
    (group,) = select_groups(folder, 2).groups
    assert group.task == "ledger/train/1"
    assert group.spread == 1.0


def test_a_run_that_only_evaluated(tmp_path):
    folder = run_case.write(tmp_path / "run", steps=()) / "trajectories"
    chosen = select_groups(folder, 3)
    assert [group.task for group in chosen.groups] == ["ledger/test/0"]


def test_nothing_there(tmp_path):
    assert select_groups(tmp_path / "absent", 200).groups == ()
    (tmp_path / "step_000000.jsonl").write_text("")
    assert select_groups(tmp_path, 200).groups == ()


def test_lines_that_cannot_be_read_are_counted_apart(tmp_path):
    folder = run_case.write(tmp_path / "run") / "trajectories"
    file = folder / "step_000010.jsonl"
    file.write_text(file.read_text() + '{"no": "record"}\n{"task": "ledger/tr')
    chosen = select_groups(folder, 200)
    assert (chosen.unreadable, chosen.shown, chosen.recorded) == (2, 20, 20)
    assert chosen.size.endswith("2 of 2 steps. 2 lines could not be read.")


def test_lines_that_are_no_record_do_not_count(tmp_path):
    """In files that are read, and in those that are left out."""
    folder = run_case.write(tmp_path / "run", steps=(0, 10, 20)) / "trajectories"
    for file in folder.iterdir():
        with file.open("a") as lines:
            lines.write('no json\n{"task": "ledger/tr')
    assert select_groups(folder, 200).recorded == 28
    assert select_groups(folder, 4).recorded == 28


def test_a_directory_named_like_a_file_is_left_out_and_said_so(tmp_path):
    folder = run_case.write(tmp_path / "run") / "trajectories"
    (folder / "step_000006.jsonl").mkdir()
    chosen = select_groups(folder, 200)
    assert (chosen.shown, chosen.step_files, chosen.unreadable_files) == (20, 2, 1)
    assert page_of(folder.parent).count("1 file could not be read.") == 1
    for file in folder.glob("*.jsonl"):
        if file.is_file():
            file.unlink()
    assert "1 file could not be read." in page_of(folder.parent)
