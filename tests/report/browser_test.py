"""The page in a browser: it opens, holds what it should, and its switches work.

Runs with ``-m browser`` only, and fails where no Chromium is found.
"""

import json
import os
import re
import shutil
import subprocess

import pytest

from mempo_jax.report.selection import select_groups
from scripts import lifeline_picture
from tests.report import run_case
from tests.report.page_test import page_of

pytestmark = pytest.mark.browser
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
INERT = re.compile(r'<script type="text/html".*?</script>', re.S)
TELL = """
const told = {errors: []};
addEventListener("error", (event) => told.errors.push(String(event.message)));
addEventListener("unhandledrejection", (event) => told.errors.push(String(event)));
const all = (selector) => [...document.querySelectorAll(selector)];
const change = (one) => one.dispatchEvent(new Event("change", {bubbles: true}));
const ink = (one, what) => getComputedStyle(one)[what];
const seen = () => all(".group").filter((group) => !group.hidden).length;
addEventListener("load", async () => {
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  BODY
  document.body.innerHTML = "";
  const pre = document.createElement("pre");
  pre.id = "told";
  pre.textContent = JSON.stringify(told);
  document.body.append(pre);
});
"""


@pytest.fixture(scope="module")
def chromium():
    found = os.environ.get("CHROMIUM") or next(
        filter(None, map(shutil.which, NAMES)), ""
    )
    assert found, f"these tests need a browser: none of {', '.join(NAMES)} on PATH"
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = run_case.write(tmp_path_factory.mktemp("browser") / "run")
    return page_of(folder)


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens a page; returns the document as it then is, and what the console said."""

    def opened(text, anchor="", size="1200,900", ms=4000):
        file = tmp_path / "page.html"
        file.write_text(text, encoding="utf-8")
        command = [
            *(chromium, "--headless=new", "--no-sandbox", "--disable-gpu"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr"),
            *(f"--window-size={size}", f"--virtual-time-budget={ms}", "--dump-dom"),
            f"file://{file}{anchor}",
        ]
        done = subprocess.run(
            command, capture_output=True, timeout=120, check=True, encoding="utf-8"
        )
        said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return done.stdout, said

    return opened


@pytest.fixture
def told(opened):
    """Runs a script in a page that lets it; returns what it noted in ``told``."""

    def told(text, body, **options):
        script = f"<script>{TELL.replace('BODY', body)}</script>"
        text = POLICY.sub("", text).replace("<main>", f"{script}<main>", 1)
        dom, _ = opened(text, **options)
        inner = re.search(r'<pre id="told">(.*?)</pre>', dom, re.S)
        assert inner, dom[-2000:]
        made = json.loads(re.sub("&(lt|gt|amp);", _character, inner[1]))
        assert made.pop("errors") == []
        return made

    return told


def _character(found):
    return {"lt": "<", "gt": ">", "amp": "&"}[found[1]]


def test_it_opens_and_nothing_complains(opened, page):
    dom, said = opened(page, "#t0-0")
    assert said == []
    dom = INERT.sub("", dom)
    assert "<title>run – what the run did</title>" in dom, "a text was run as a script"
    assert dom.count('class="group"') == 6
    assert dom.count("data-entry=") == 4, "one trajectory is open, with its memories"
    assert 'class="run ap' in dom
    assert "<img" not in dom


def test_tokens_change_their_colour_with_the_switch(told, page):
    made = told(
        page,
        """
        location.hash = "t0-0"; await wait(50);
        const [op, other] = all(".said .run");
        told.texts = [op.textContent, other.textContent];
        for (const name of ["advantage", "weight", "bonus", "nothing"]) {
          const radio = document.querySelector(`[name=colour][value=${name}]`);
          radio.checked = true; change(radio);
          told[name] = [op, other].map((each) => ink(each, "backgroundColor"));
        }
        told.tokens = op.children.length;
        """,
    )
    clear = "rgba(0, 0, 0, 0)"
    assert made["texts"] == ["<w>one 1</w>", ";"]
    assert made["tokens"] == 3
    assert made["nothing"] == [clear, clear]
    assert made["bonus"][1] == clear != made["bonus"][0]
    for name in ("advantage", "weight"):
        assert clear not in made[name]
        assert made[name][0] != made[name][1]


def test_the_life_of_each_memory_is_drawn(told, page):
    made = told(
        page,
        """
        location.hash = "t0-0"; await wait(50);
        const entries = all(".lifelines .entry");
        told.kinds = entries.map((entry) => entry.getAttribute("class"));
        told.dead = entries.map((entry) => entry.querySelectorAll(".dead").length);
        const [first] = entries;
        told.marks = ["birth", "recalled", "context", "answer"].map(
          (name) => first.querySelectorAll("." + name).length);
        told.joins = all(".lifelines .join").length;
        const box = first.querySelector(".life").getBoundingClientRect();
        told.width = box.width;
        const line = first.querySelector(".life");
        told.stroke = ink(line, "stroke");
        document.documentElement.dataset.colour = "nothing";
        told.plain = ink(line, "stroke");
        """,
    )
    fates = ["", " superseded", " evicted", " deleted"]
    assert made["kinds"] == [f"entry{fate}" for fate in fates]
    assert made["dead"] == [0, 1, 1, 1]
    assert made["marks"] == [1, 1, 1, 1]
    assert made["joins"] == 1
    assert made["width"] > 100
    assert made["stroke"].startswith("rgb(30, 110, 220"), "its advantage is above 0"
    assert made["plain"] != made["stroke"]


def test_groups_are_filtered(told, page):
    made = told(
        page,
        """
        const choose = (id, value) => {
          document.getElementById(id).value = value;
          change(document.getElementById(id));
        };
        told.all = seen();
        choose("step", "10"); told.step = seen();
        choose("step", "held-out"); told.tasks = seen();
        choose("step", ""); choose("outcome", "failed"); told.failed = seen();
        told.none = document.getElementById("none").hidden;
        choose("outcome", "");
        const find = document.getElementById("find");
        const search = async (words) => {
          find.value = words;
          find.dispatchEvent(new Event("input", {bubbles: true}));
          await wait(400);
          return seen();
        };
        told.found = await search("TRAIN/11");
        told.said = await search('<\\/script><script>');
        told.nowhere = await search("not said by anyone");
        """,
    )
    assert (made["all"], made["step"], made["tasks"]) == (6, 2, 2)
    assert (made["failed"], made["none"]) == (0, False)
    assert (made["found"], made["said"], made["nowhere"]) == (1, 6, 0)


def test_metrics_are_chosen_and_read(told, page):
    made = told(
        page,
        """
        const figures = () => all("#chosen figure").length;
        told.before = figures();
        const labels = all(".choices label");
        const label = labels.find((each) => each.textContent === "own_metric");
        const box = label.querySelector("input");
        box.checked = true; change(box); told.chosen = figures();
        const svg = document.querySelector("#chosen svg");
        const key = (name) => svg.dispatchEvent(
          new KeyboardEvent("keydown", {key: name, bubbles: true}));
        key("ArrowRight"); key("ArrowRight");
        told.at = document.querySelector("#chosen .at").textContent;
        told.value = document.querySelector("#chosen figcaption output").textContent;
        box.checked = false; change(box); told.after = figures();
        """,
    )
    assert (made["before"], made["chosen"], made["after"]) == (0, 1, 0)
    assert (made["at"], made["value"]) == ("step 1", "8")


@pytest.mark.parametrize("size", ["1200,900", "390,800"])
def test_nothing_is_wider_than_the_window(told, page, size):
    body = """
        location.hash = "t0-0"; await wait(50);
        told.wide = document.documentElement.scrollWidth;
        told.window = document.documentElement.clientWidth;
        """
    made = told(page, body, size=size)
    assert made["wide"] <= made["window"]


def test_stored_texts_are_readable_on_a_phone(told, tmp_path):
    folder, long = run_case.write(tmp_path / "run"), "a text of several words " * 4
    made = [run_case.record(sample=n, ops=run_case.log(long)) for n in range(8)]
    run_case.lines(folder / "trajectories" / "step_000000.jsonl", made)
    body = """
        location.hash = "g0"; await wait(50);
        const rows = all(".written tbody th").map(
          (each) => each.getBoundingClientRect());
        told.window = document.documentElement.clientWidth;
        told.widths = rows.map((box) => box.width);
        told.heights = rows.map((box) => box.height);
        """
    made = told(page_of(folder), body, size="390,800")
    assert min(made["widths"]) >= 150
    assert max(made["heights"]) <= 150
    assert made["window"] <= 500


def test_a_link_opens_its_group_and_its_trajectory(told, page):
    made = told(
        page,
        """
        const open = () => all(".group[open]").map((each) => each.id);
        told.before = open();
        document.querySelectorAll(".group .anchor")[2].click(); await wait(50);
        told.group = [location.hash, open()];
        location.hash = "step-10-ledger-train-11/1"; await wait(50);
        told.both = open();
        const group = document.getElementById("step-10-ledger-train-11");
        const members = [...group.querySelectorAll(".member")];
        told.member = members.findIndex((each) => each.open);
        location.hash = "no-such-group"; await wait(50);
        told.after = open();
        """,
    )
    assert made["before"] == []
    first, second = "step-10-ledger-train-10", "step-10-ledger-train-11"
    assert made["group"] == [f"#{first}", [first]]
    assert made["both"] == made["after"] == [first, second]
    assert made["member"] == 1


def test_groups_are_filtered_by_why_they_are_not_solved(told, page):
    made = told(
        page,
        """
        const outcome = document.getElementById("outcome");
        for (const value of ["had", "lost"]) {
          outcome.value = value; change(outcome); told[value] = seen();
        }
        """,
    )
    assert made == {"had": 4, "lost": 0}


def test_a_picture_of_a_group_is_as_tall_as_its_page(chromium, tmp_path, monkeypatch):
    monkeypatch.setenv("CHROMIUM", chromium)
    folder, out = run_case.write(tmp_path / "run"), tmp_path / "picture.png"
    words = [f"--workdir={folder}", "--group=step-10-ledger-train-11", f"--out={out}"]
    assert lifeline_picture.main(words) == 0
    content = out.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    assert width == 1.5 * lifeline_picture.WIDTH
    assert 300 < height < 1.5 * lifeline_picture.TALL


def test_two_hundred_trajectories_open(told, tmp_path):
    folder = run_case.write(tmp_path / "run", steps=range(0, 250, 10), size=4)
    chosen = select_groups(folder / "trajectories", 200)
    assert chosen.shown >= 196
    made = told(
        page_of(folder),
        """
        told.groups = all(".group").length;
        told.elements = all("*").length;
        for (const group of all(".group")) group.open = true;
        await wait(100);
        told.members = all(".member").length;
        """,
    )
    assert made["groups"] == len(chosen.groups)
    assert made["elements"] < 4000, "what is closed is no element yet"
    assert made["members"] == chosen.shown
