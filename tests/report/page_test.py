"""The whole page: it stands alone, shows everything, and lets no text be markup."""

import json
import re

import pytest

from mempo_jax.doctor import NOTE, PROBLEM, WARNING, Figure, Finding
from mempo_jax.report.page import page as page_of_run
from mempo_jax.report.run_files import read_run
from mempo_jax.report.selection import select_groups
from tests.report import run_case
from tests.report.reading import Read

INERT = re.compile(r'<script type="text/html" id="([^"]+)">(.*?)</script>', re.S)


def page_of(folder, most=200, findings=None):
    selection = select_groups(folder / "trajectories", most)
    return page_of_run(read_run(folder), selection, findings)


def parts(page):
    """The page without what is closed, and that by its id."""
    return INERT.sub("", page), dict(INERT.findall(page))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return page_of(run_case.write(tmp_path_factory.mktemp("page") / "run"))


def test_it_stands_alone(page):
    assert not re.search(r"https?://", page)
    assert not re.search(r"<(link|iframe|object|embed|base)\b|url\(|@import", page)
    outside = re.sub(r"&lt;.*?&gt;", "", page)  # what policies wrote
    assert not re.search(r"\b(src|href|action)\s*=\s*[\"']?\w", outside)
    assert "default-src 'none'" in page


def test_no_text_becomes_markup(page):
    _, closed = parts(page)
    assert page.count("<script>") == 1
    kinds = [name[0] for name in closed]
    assert (kinds.count("g"), kinds.count("t")) == (6, 20)
    assert "<img" not in page
    first = Read(closed["t0-0"])
    assert run_case.NASTY in first.text
    assert "\u202e abc" in first.text
    assert "half \ufffd a pair" in first.text
    page.encode("utf-8")


def test_all_of_it_is_well_formed(page):
    for part in parts(page)[1].values():
        Read(part)


def test_what_stands_at_the_top(page):
    open_part, _ = parts(page)
    text = re.sub(r"<[^>]+>", "", re.search(r"<main>.*</main>", open_part, re.S)[0])
    assert "Ended: 20 of 20 training steps recorded." in text
    assert "task ledger · credit ops_only, attribution · seed 0" in text
    assert "success, sampled0.50from 0.50" in text
    assert text.count("0.50 [0.40, 0.60]") == 2 * len(run_case.MEASURED)
    headings = re.findall(r"(held-out|step \d+) ledger/(\w+)/", text)
    assert (
        headings
        == [("step 0", "train")] * 2
        + [("step 10", "train")] * 2
        + [("held-out", "test")] * 2
    )
    assert "token advantage = credit weight" in text
    assert "20 of 20 recorded trajectories, in 6 groups from 2 of 2 steps." in text
    assert "own_metric" in text


def test_a_trajectory_is_shown_turn_by_turn(page):
    read = Read(parts(page)[1]["t0-0"])
    rows = read.rows
    assert rows[0] == ["turn", "sees", "says", "operations", "reward"]
    assert rows[1][:3] == ["0", "one is 1 ★", "<w>one 1</w>;"]
    assert "write new entry 0" in rows[1][3]
    assert "weight 1 bonus +0.50 advantage +1.50" in rows[1][3]
    assert "write merged entry 2 replaces 1" in rows[2][3]
    assert "evicts 2" in rows[3][3]
    assert "recall recalled entry 0 similarity 0.75" in rows[4][3]
    assert rows[5][4] == "+1.00"
    assert (
        "reward 0.95 = task 1.00 (raw 1.00) + malformed −0.05 (raw 1.00)" in read.text
    )
    assert "weighs 0: write_cost 3.00" in read.text
    assert "group advantage +1.00" in read.text


def test_a_turn_that_was_cut_is_told(tmp_path):
    folder, made = run_case.write(tmp_path / "run"), run_case.record()
    made["turns"][2]["cut"] = True
    run_case.lines(folder / "trajectories" / "step_000000.jsonl", [made])
    rows = Read(parts(page_of(folder))[1]["t0-0"]).rows
    told = [row[0] for row in rows if "cut at the token limit" in "".join(row)]
    assert told == ["2"]


def test_tokens_carry_the_colours_of_their_numbers(page):
    spans = [a for n, a in Read(parts(page)[1]["t0-0"]).elements if n == "span"]
    runs = [each for each in spans if each.get("class", "").startswith("run")]
    assert [each["title"] for each in runs] == [
        "+1.50 = 1 × +1.00 + +0.50",
        "+0.25 = 0.25 × +1.00 + 0",
        "+0.10 = 0.1 × +1.00 + 0",
    ]
    assert runs[0]["class"] == "run ap8 wp8 bp8"
    assert runs[1]["class"] == "run ap3 wp4"
    worse = Read(parts(page)[1]["t0-2"])
    classes = [a["class"] for n, a in worse.elements if "run" in a.get("class", "")]
    assert classes[0] == "run an8 wp8 bn8"


def test_a_group_stands_side_by_side(page):
    read = Read(parts(page)[1]["g0"])
    figures = [row for row in read.rows if len(row) == len(read.rows[0])]
    assert figures[0][:5] == ["run", "reward", "task", "malformed", "advantage"]
    assert [row[0] for row in figures[1:5]] == ["#1", "#3", "#0", "#2"], "by reward"
    assert [row[4] for row in figures[1:5]] == ["+1.00", "+1.00", "−1.00", "−1.00"]
    stored = [row for row in read.rows if row[0].startswith("one 1")]
    assert stored == [["one 1 ★", "●▲◆", "●▲◆", "●▲◆", "●▲◆"]]
    assert [row[1] for row in read.rows if row[0] == "two 2 ★"] == ["●×"]


def test_records_without_credit_are_shown_and_said_so(tmp_path):
    page = page_of(run_case.write(tmp_path / "run", credit=False))
    assert "These records have no token credit: texts are not coloured." in page
    assert "tokens coloured by" not in page
    assert 'class="run' not in page
    assert "token advantage = credit weight" not in page
    assert "write</span> <span" in parts(page)[1]["t0-0"]


def test_records_of_both_kinds_stand_beside_each_other(tmp_path):
    folder = run_case.write(tmp_path / "run")
    old = [run_case.record("ledger/train/0", n, float(n), credit=False) for n in (0, 1)]
    run_case.lines(folder / "trajectories" / "step_000000.jsonl", old)
    _, closed = parts(page_of(folder))
    assert "it is not coloured" in closed["t0-0"]
    assert 'class="credit"' not in closed["t0-0"]
    assert 'class="credit"' in closed["t1-0"]
    assert "it is not coloured" not in closed["t1-0"]


def test_a_number_beyond_all_floats_is_shown(tmp_path):
    folder = run_case.write(tmp_path / "run")
    (folder / "config.json").write_text(json.dumps({"seed": 10**400}))
    assert f"seed {10**400}" in page_of(folder)


def test_a_run_under_way_or_killed(tmp_path):
    folder = run_case.write(tmp_path / "run", ended=False)
    metrics = folder / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + '{"step": 20, "succ')
    page = page_of(folder)
    assert "Not ended: 20 of 20 training steps recorded." in page
    assert "1 line of metrics.jsonl could not be read" in page
    assert "No evaluation is recorded yet." in page


@pytest.mark.parametrize("text", ["", "\n", '{"step": 0, "success": NaN}\n', "{"])
def test_metrics_without_a_number(tmp_path, text):
    folder = run_case.write(tmp_path / "run")
    (folder / "metrics.jsonl").write_text(text)
    page = page_of(folder)
    assert "No metrics are recorded yet." in page
    assert "NaN" not in page


def test_a_cold_start_alone(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"train": {"steps": 5}}))
    assert "no training step is recorded yet" in page_of(folder)
    before = dict.fromkeys(run_case.MEASURED, run_case.ESTIMATE)
    (folder / "evaluation_cold_start.json").write_text(json.dumps(before))
    page = page_of(folder)
    assert "Not ended: 0 of 5 training steps recorded." in page
    assert "0.50</strong>" in page
    assert "No trajectories are recorded" in page


def test_no_run_at_all(tmp_path):
    assert read_run(tmp_path) is None
    assert read_run(tmp_path / "absent") is None


@pytest.mark.parametrize(
    "name", ["config.json", "summary.json", "evaluation.json", "metrics.jsonl"]
)
@pytest.mark.parametrize("text", ["", "[]", '{"rows": 3, "train": 1, "trained": []}'])
def test_files_that_hold_something_else(tmp_path, name, text):
    folder = run_case.write(tmp_path / "run")
    (folder / name).write_text(text)
    assert "Trajectories" in page_of(folder)


def test_a_long_text_is_cut(tmp_path):
    folder = run_case.write(tmp_path / "run")
    made = run_case.record()
    made["turns"][1] = {"observation": "s" * 50_000, "action": "a" * 50_000}
    made["turns"][1]["tokens"] = [[-1, [1] * 50_000]]
    run_case.lines(folder / "trajectories" / "step_000010.jsonl", [made])
    page = page_of(folder)
    assert len(page) < 500_000
    assert page.count("[… 46,000 more characters]") >= 2


def test_the_comparison_of_policies(tmp_path):
    folder = run_case.write(tmp_path / "run")
    row = {
        "policy": "<rag>",
        "success_sampled": run_case.ESTIMATE,
        "em": {"mean": None},
    }
    evaluation = {"tasks": 512, "rows": [row, {"policy": "trained"}, 7]}
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    page = page_of(folder)
    assert "Beside other policies on 512 held-out tasks" in page
    assert "&lt;rag&gt;" in page
    assert "exact match" not in page, "nobody was measured by it"


def test_the_script_is_the_one_that_the_page_allows(page):
    import base64
    import hashlib

    script = re.search(r"<script>(.*?)</script>", page, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in page


def paths(value, path=()):
    """Every place in a JSON value."""
    yield path
    keys = range(len(value)) if isinstance(value, list) else ()
    for key in value if isinstance(value, dict) else keys:
        yield from paths(value[key], (*path, key))


def test_whatever_stands_in_a_record_there_is_a_page(tmp_path):
    """Each value of a record in turn gives way to one of another kind."""
    odd = (None, -1, 10**30, 0.5, "x", [], {}, [[1]], "\ud800")
    places = [p for p in paths(run_case.record()) if p and p[-1] != "turns"][::2]
    made = []
    for n, place in enumerate(places):
        record = json.loads(json.dumps(run_case.record(f"ledger/train/{n // 8}", n)))
        inner = record
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = odd[n % len(odd)]
        made.append(record)
    folder = run_case.write(tmp_path / "run", steps=())
    run_case.lines(folder / "trajectories" / "step_000000.jsonl", made)
    assert select_groups(folder / "trajectories", 10_000).shown > len(made)
    for part in parts(page_of(folder, 10_000))[1].values():
        Read(part)


def test_runs_of_a_held_out_task_are_named_and_in_order(page):
    rows = Read(parts(page)[1]["g4"]).rows
    assert [row[0] for row in rows[1:3]] == ["cold start, greedy", "trained, greedy"]


def summaries(page):
    """The lines that are seen of closed groups, plain."""
    open_part, _ = parts(page)
    lines = re.findall(r'<details class="group".*?<summary>(.*?)</summary>', open_part)
    return [re.sub(r"<[^>]+>", "", line) for line in lines]


def test_a_group_shows_what_was_asked_and_why_it_is_not_solved(page):
    first, *_, last = summaries(page)
    assert "2 solved, 2 not solved (2 had the evidence, answered wrong)" in first
    assert first.endswith("what is one → 1")
    assert "cold start 1 solved · trained 1 solved" in last
    _, closed = parts(page)
    titles = re.findall(r"<summary>(#\d.*?)</summary>", closed["g0"])
    shown = [re.sub(r"<[^>]+>", "", title).removesuffix(" #") for title in titles]
    assert shown[0] == "#1, solved, reward 0.95"
    assert shown[2] == ("#0, not solved, reward −0.05 had the evidence, answered wrong")


def test_only_the_first_questions_are_shown(tmp_path):
    folder, made = run_case.write(tmp_path / "run"), run_case.record()
    made["questions"] = [
        {"observation": n, "answer": f"<{n}>", "support": []} for n in range(4)
    ]
    run_case.lines(folder / "trajectories" / "step_000000.jsonl", [made])
    first = summaries(page_of(folder))[0]
    assert first.endswith("→ &lt;1&gt;2 more questions")


def test_links_to_groups_and_trajectories(page):
    open_part, closed = parts(page)
    keys = re.findall(r'<details class="group" id="([^"]+)"', open_part)
    assert keys[0] == "step-0-ledger-train-0"
    assert keys[-1] == "held-out-ledger-test-1"
    assert len(set(keys)) == len(keys) == 6
    for n, key in enumerate(keys):
        assert f'href="#{key}"' in open_part
        assert f'href="#{key}/1"' in closed[f"g{n}"]


def test_when_and_on_what_it_was_computed(tmp_path):
    folder = run_case.write(tmp_path / "run")
    assert "started" not in parts(page_of(folder))[0]
    (folder / "machines.json").write_text(json.dumps(run_case.machines()))
    told = (
        "started 2026-01-02T03:04:05+00:00, 2 starts, the last "
        "2026-01-03T00:00:00+00:00 · mempo_jax 0.1.0, commit c0ffeec0ffee with changes"
        " · jax 0.10.2 · python 3.11.7 · 2 × cpu"
    )
    assert told in page_of(folder)
    for text in ("[]", '{"machines": 3, "starts": 4}', '{"machines": [3]}', "{"):
        (folder / "machines.json").write_text(text)
        assert "started" not in parts(page_of(folder))[0]


def finding(severity, what="<what>"):
    seen = (Figure("kl", 1.5, 3, 9), Figure("words", float("nan")))
    return Finding("a_name", severity, what, "why", seen, ("do <this>",))


@pytest.mark.parametrize(
    ("severities", "verdict"),
    [
        ((), "The doctor found no problems."),
        ((NOTE,), "The doctor found no problems (1 note)."),
        ((PROBLEM, NOTE, NOTE), "The doctor found 1 problem, 2 notes."),
        ((WARNING, WARNING), "The doctor found 2 warnings."),
    ],
)
def test_what_the_doctor_finds(tmp_path, severities, verdict):
    folder = run_case.write(tmp_path / "run")
    page = page_of(folder, findings=[finding(each) for each in severities])
    assert page.count(verdict) == 2, "at the top and in its section"
    assert page.count("do &lt;this&gt;") == len(severities)
    assert page.count("kl 1.5 in steps 3 to 9") == len(severities)
    assert "Diagnosis" not in page_of(folder), "nobody asked"


def test_a_short_run_is_not_called_healthy(tmp_path):
    folder = run_case.write(tmp_path / "run")
    run_case.lines(folder / "metrics.jsonl", [run_case.metrics(n) for n in range(5)])
    page = page_of(folder, findings=[])
    assert "The doctor found no problems, and too few steps to judge by." in page
