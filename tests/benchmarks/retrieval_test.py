"""The retrieval benchmark runs, on few vectors, with whatever is installed."""

import json

import numpy as np
import pytest

from benchmarks import _cases, _indexes, _texts, _timing, _vectors, retrieval

PLAN = _cases.Plan(rounds=2, batch=5, skipped=("faiss_ivf",), largest_bank=1000)


@pytest.fixture(scope="module")
def figures():
    arguments = ["--sizes=200", "--inserts=20", "--rounds=2", "--batch=5"]
    arguments += ["--forks=3", "--made-texts=150", "--skip=faiss_ivf"]
    options = retrieval.options_parser().parse_args(arguments)
    lines = []
    made = retrieval.run(options, lines.append)
    return {**made, "said": "\n".join(lines)}


def test_a_run_holds_every_case_and_is_plain_data(figures):
    assert [case["count"] for case in figures["cases"]] == [200, 115]
    assert json.loads(json.dumps(figures))["options"]["sizes"] == [200]
    for case in figures["cases"]:
        assert case["name"] in figures["said"]
        assert case["skipped"]["faiss_ivf"] == "left out"
        held = set(case["rows"]) - {"bank.recall"}
        assert held | set(case["skipped"]) == set(_indexes.KINDS)


def test_exact_search_finds_all_before_and_after_the_inserts(figures):
    for case in figures["cases"]:
        for name in ("numpy", "ours"):
            assert case["rows"][name]["recall"] == 1
            assert case["rows"][name]["after"]["recall"] == 1
        assert case["rows"]["numpy"]["to_numpy"] == 1


def test_writes_are_seen_at_once_and_by_no_other_fork(figures):
    bank = figures["bank"]
    assert bank["writes"]["unseen"] == 0
    assert bank["writes"]["count"] == 20
    assert bank["forks"]["own_write_seen"]
    assert bank["forks"]["others_unseen"]
    assert "bank of 200 entries" in figures["said"]


def test_recall_counts_what_was_missed_and_admits_equal_rows():
    rows = np.eye(40, dtype=np.float32)
    rows[20:30] = rows[:10]
    query = np.ones(40, np.float32) * 0.1
    query[10:20] = query[30:] = 0
    kth = _vectors.exact(rows, query[None], 10)[:, -1]
    ask = lambda ids: _vectors.recall(rows, [query], [ids], kth)  # noqa: E731
    assert ask(range(10)) == ask(range(20, 30)) == 1
    assert ask([*range(5), *range(10, 15)]) == 0.5
    assert ask([0] * 10) == 0.1
    assert ask([-1] * 10) == 0


def test_settings_are_the_cheapest_that_reach_our_recall(monkeypatch):
    class Blind(_indexes.Numpy):
        """Sees the first ``setting`` rows only."""

        settings = (50, 200, 199)

        def use(self, setting):
            self._count, self.label = setting, f"sees {setting}"

    monkeypatch.setattr(
        _indexes,
        "KINDS",
        {"numpy": _indexes.Numpy, "ours": _indexes.Ours, "blind": Blind},
    )
    case = _vectors.clustered(200, 20, PLAN.queries, 16, seed=0)
    row = _cases.measure(case, PLAN, lambda text: None)["rows"]["blind"]
    assert (row["setting"], row["short"], row["recall"]) == ("sees 200", False, 1)
    monkeypatch.setattr(Blind, "settings", (50, 60))
    row = _cases.measure(case, PLAN, lambda text: None)["rows"]["blind"]
    assert (row["setting"], row["short"]) == ("sees 60", True)


def test_competitors_take_turns():
    seen = []
    calls = {name: lambda i, name=name: seen.append((name, i)) or i for name in "ab"}
    seconds, given = _timing.in_turn(calls, [range(2), range(2, 4)])
    assert seen == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 1),
        ("b", 2), ("b", 3), ("a", 2), ("a", 3),
    ]  # fmt: skip
    assert given == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}
    assert seconds["a"].shape == (2, 2)


def test_the_ratio_is_taken_within_rounds():
    base = np.array([[1.0, 1.0], [10.0, 10.0], [2.0, 2.0]])
    assert _timing.ratio(base / 4, base) == 0.25


def test_a_case_is_the_same_for_a_seed_and_its_queries_are_no_rows():
    one, two = (_vectors.clustered(300, 10, 20, 16, seed=s) for s in (3, 3))
    assert (one.rows == two.rows).all()
    assert np.linalg.norm(one.rows, axis=1) == pytest.approx(1, abs=1e-5)
    assert (one.queries @ one.rows.T).max() < 0.999
    assert (one.embedder.embed(["q7"]) == one.queries[7]).all()
    assert (one.embedder.embed(["v305"]) == one.rows[305]).all()


def test_texts_are_read_from_a_file_and_held_apart(tmp_path):
    made = _texts.made_sentences(120, seed=1)
    assert made == _texts.made_sentences(120, seed=1)
    path = tmp_path / "lines.txt"
    path.write_text("\n".join([*made, *made, "short"]))
    case = _vectors.of_texts(str(path), 10, 20, seed=0, made=0)
    assert case.name == "texts lines 90"
    assert sorted([*case.texts, *case.asked]) == sorted(made)
    path.write_text("\n".join(made[:99]))
    with pytest.raises(ValueError, match="at least 100 different texts"):
        _vectors.of_texts(str(path), 10, 20, seed=0, made=0)


def test_conversation_turns_are_read_with_their_speakers(tmp_path):
    turn = {"speaker": "Bo", "dia_id": "D1:1", "text": "I moved to Lima."}
    sample = {"conversation": {"speaker_a": "Bo", "session_1": [turn]}}
    path = tmp_path / "talk.json"
    path.write_text(json.dumps([sample]))
    assert _texts.locomo_turns(path) == ["Bo: I moved to Lima."]


def test_too_few_queries_are_refused():
    with pytest.raises(ValueError, match="at least 3 queries, got 2"):
        PLAN.split(2)
