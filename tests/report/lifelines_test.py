"""A line for each memory: which marks it bears, where they stand, and its colour."""

import re

import pytest

from mempo_jax.report import group_view, lifelines
from mempo_jax.report.lifelines import Axis, entry_histories
from mempo_jax.report.markup import TokenColours, render
from mempo_jax.report.run_files import read_record
from mempo_jax.report.selection import Group
from tests.report import run_case
from tests.report.reading import Read
from tests.report.run_case import op


def record(**changes):
    return read_record("step_000000", run_case.record(**changes))


def drawn(made):
    drawing = lifelines.lifelines(made, TokenColours.of([made]))
    return render("lifelines.html.j2", drawing=drawing)


def entries(page):
    """The marks of each entry: (element, attributes), by its id."""
    parts = re.split(r'(?=<g class="entry)', page)[1:]
    found = {}
    for part in parts:
        names = re.findall(r"<(\w+)([^>]*)>", part)
        found[int(re.search(r'data-entry="(\d+)"', part)[1])] = [
            (name, dict(re.findall(r'([\w-]+)="([^"]*)"', rest)))
            for name, rest in names
        ]
    return found


def classes(marks):
    return [each.get("class", "").split(" ")[0] for _, each in marks]


def test_marks_of_each_fate():
    found = entries(drawn(record()))
    assert [found[n][0][1]["class"] for n in range(4)] == [
        *("entry", "entry superseded", "entry evicted", "entry deleted")
    ]
    first = classes(found[0])
    for mark in ("birth", "recalled", "context", "answer"):
        assert first.count(mark) == 1
    assert "dead" not in first
    for ended in (1, 2, 3):
        assert classes(found[ended]).count("dead") == 1
        assert classes(found[ended]).count("fate") == 1


def test_marks_stand_at_their_turns():
    axis = Axis.of(5)
    marks = {each.get("class", ""): each for _, each in entries(drawn(record()))[0]}
    line = next(each for name, each in marks.items() if name.startswith("life"))
    assert (float(line["x1"]), float(line["x2"])) == (axis.x(0), axis.x(4))
    tip = marks["recalled"]["points"].split(" ")[-1]
    assert float(tip.split(",")[0]) == axis.x(3)
    assert marks["answer"]["points"].split(" ")[1].startswith(f"{axis.x(4)},")
    assert float(marks["context"]["x"]) == axis.x(4) - axis.cell / 2


def test_an_answer_that_earned_nothing_is_hollow():
    page = drawn(record(score=0.0))
    assert 'class="answer wrong"' in page
    assert 'class="answer wrong"' not in drawn(record())


def test_a_line_has_the_colour_of_its_credit():
    good, bad = (entries(drawn(record(score=score))) for score in (1.0, 0.0))
    lines = [
        next(e["class"] for _, e in found[0] if e.get("class", "").startswith("life"))
        for found in (good, bad)
    ]
    assert lines == ["life ap8 wp8 bp8", "life an8 wp8 bn8"]


def test_without_a_bonus_a_line_keeps_the_colour_of_its_advantage():
    """Beside one that has a bonus, and as the table of what was stored."""
    made = record()
    group = Group(0, made.task, (made,))
    (second,) = re.findall(
        r'class="life (a[^"]*)"',
        drawn(made).split('<g class="entry')[2],
    )
    assert second.split(" ")[0].startswith("ap")
    table = group_view.comparison(group, TokenColours.of([made]))
    (row,) = re.findall(r'<th scope="row" dir="auto">two 2.*?</tr>', table)
    assert f'<td class="{second}">●×</td>' in row


def test_an_update_is_joined_to_what_it_replaced():
    joins = re.findall(r'<line[^>]*class="join"/>', drawn(record()))
    assert len(joins) == 1


def test_too_many_lines_are_left_out_and_said_so():
    ops = [run_case.op(0, "write", "new", [n], stored=f"fact {n}") for n in range(70)]
    ops.append(run_case.op(1, "recall", "recalled", [69]))
    page = drawn(record(ops=ops))
    assert len(entries(page)) == lifelines.MOST
    assert 69 in entries(page), "one that was recalled stays"
    assert "10 memory lines left out: the ones never recalled." in Read(page).text
    assert "No memory was written." in drawn(record(ops=[]))


def test_a_block_that_is_carried_along_is_a_memory():
    blocks = [run_case.op(n, "rewrite", text=f"<{n}>") for n in range(3)]
    failed = run_case.op(3, "rewrite", "error", error="no_text")
    page = drawn(record(ops=[*blocks, failed]))
    assert "One block was rewritten 3 times; it ended as <2>" in Read(page).text
    assert "No memory was written" not in page


@pytest.mark.parametrize("text", ["many words " * 20, "MANY WORDS " * 20, "詞語" * 9])
@pytest.mark.parametrize("turns", [1, 2, 5, 40])
def test_a_label_begins_within_the_drawing(turns, text):
    made = run_case.record() | {"turns": [{"observation": "", "action": ""}] * turns}
    made["ops"] = [run_case.op(turns - 1, "write", "new", [123], stored=text)]
    page = drawn(read_record("step_000000", made))
    x, kind, told = re.search(
        r'<text x="([\d.]+)" y="[\d.]+" class="(label[^"]*)">(.*?)</text>', page
    ).groups()
    width = sum(
        11 if each > "\u3000" else 8.5 if each.isupper() else 6.1
        for each in re.sub("<.*?>", "", told)
    )
    assert float(x) - width * ("leftwards" in kind) >= 0
    assert "詞語" in told or "…" in told
    assert turns < 5 or float(x) + width * ("leftwards" not in kind) < 760


@pytest.mark.parametrize(
    ("each", "marked"),
    [
        (run_case.op(0, "write", "new", [0]), False),
        (run_case.op(0, "write", "duplicate", [0]), True),
        (run_case.op(0, "recall", "recalled", error="no_number"), True),
    ],
)
def test_a_strip_frames_what_failed(each, marked):
    drawing = drawn(record(ops=[each]))
    assert (f'class="op {each["kind"]} failed"' in drawing) == marked
    assert (f'class="op {each["kind"]}"' in drawing) != marked


def histories(log=None, turns=5):
    made = run_case.record() | {"turns": [{"observation": "", "action": ""}] * turns}
    return entry_histories(read_record("x", made | ({"ops": log} if log else {})))


def test_born_and_ended():
    first, second, third, fourth = histories()
    assert [each.entry for each in (first, second, third, fourth)] == [0, 1, 2, 3]
    assert [each.born for each in (first, second, third, fourth)] == [0, 0, 1, 2]
    assert (first.end, first.fate) == (None, "")
    assert (second.end, second.fate, second.into) == (1, "superseded", 2)
    assert (third.end, third.fate, third.parents) == (2, "evicted", (1,))
    assert (fourth.end, fourth.fate) == (2, "deleted")
    assert [each.op for each in (first, second, third, fourth)] == [0, 1, 2, 3]


def test_recalled_and_in_the_context_of_the_answer():
    first, second, *_ = histories()
    assert first.recalls == [(3, 1, 0.75)]
    assert first.contexts == first.answers == [4]
    assert not second.recalls


def test_a_run_of_recalls_keeps_what_the_first_found():
    log = [
        op(0, "write", "new", [0], stored="a", text="a"),
        op(1, "recall", "recalled", [0]),
        op(2, "recall", "recalled", []),
        op(3, "act", text="x"),
        op(4, "answer", text="x"),
    ]
    (each,) = histories(log)
    assert each.contexts == [2, 3]
    assert each.answers == [3]


def test_a_recall_in_the_last_turn_shows_nothing_to_anyone():
    log = [op(0, "write", "new", [0], stored="a"), op(4, "recall", "recalled", [0])]
    (each,) = histories(log)
    assert each.contexts == []


def test_joined_is_not_superseded():
    log = [
        op(0, "write", "new", [0], stored="a"),
        op(1, "write", "new", [1], stored="b"),
        op(2, "merge", "merged", [2, 0, 1], stored="a b"),
        op(3, "delete", "deleted", [0]),
    ]
    first, second, joined = histories(log)
    assert (first.fate, second.fate, joined.fate) == ("merged", "merged", "")
    assert joined.parents == (0, 1)
    assert first.end == 2, "a tombstone dies once"


def test_entries_of_an_initial_bank_were_there_before():
    log = [
        op(0, "recall", "recalled", [7, 3]),
        op(1, "delete", "deleted", [7]),
        op(1, "write", "duplicate", [3]),
        op(2, "delete", "error", [3], error="inactive_id"),
    ]
    third, seventh = histories(log)
    assert (third.born, third.op, third.end) == (-1, None, None)
    assert third.recalls[0][:2] == (0, 2)
    assert (seventh.born, seventh.end) == (-1, 1)
