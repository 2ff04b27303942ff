from importlib import resources

import numpy as np
import pytest

from mempo_jax.envs import check_repeatable, factbook
from mempo_jax.envs.base import DataError
from mempo_jax.envs.factbook import (
    MAX_ANSWER_WORDS,
    FactbookConfig,
    FactbookSource,
    countries,
    field,
    passages,
    plain,
    questions,
    read_package,
    unbracketed,
)
from mempo_jax.envs.multi_qa import MultiQaSuite
from mempo_jax.envs.qa_data import SPLITS
from tests.envs.multi_qa_expert_test import run
from tests.envs.multi_qa_test import TOOLS, settings
from tests.envs.qa_case import COUNTRIES, country


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<p>C&ocirc;te &amp; sea</p>", "Côte & sea"),
        ("Madrid<br><br><strong>note:</strong> since 1561", "Madrid"),
        ("12&nbsp;km  note - all of it", "12 km"),
        ("8 km; note 1: half", "8 km"),
        ("a noteworthy hill", "a noteworthy hill"),
        ("banknotes: 5", "banknotes: 5"),
        ("<b>note:</b> only this", ""),
    ],
)
def test_html_and_notes_are_cut(text, expected):
    assert plain(text) == expected


def test_brackets_go_whole():
    assert unbracketed("Mont (white (old)) Blanc (2025 est.)") == "Mont Blanc"
    assert unbracketed("open (never closed") == "open (never closed"


def test_fields_are_found_whatever_space_their_names_have():
    data = COUNTRIES["aa"]
    assert field(data, "Geography", "Area", "total") == "5,500 sq km"
    assert field(data, "Government", "Capital", "name") == "Arvo"
    assert field(data, "Geography", "Area") == ""
    assert field(data, "Nothing", "Area", "total") == ""


def test_passages_hold_one_field_each():
    made = {p.title: p.sentences for p in passages("Arvia", COUNTRIES["aa"])}
    assert made["Arvia: Capital"] == ("name: Arvo",)
    assert made["Arvia: Land boundaries"] == (
        "total: 900 km",
        "border countries: Bren 300 km; Corland 1,200 km",
    )
    assert "Arvia: Country name" not in made


@pytest.fixture(scope="module")
def made():
    return {r.question: (r, codes) for r, codes in questions(countries(COUNTRIES))}


def test_questions_of_one_hop(made):
    record, codes = made["What is the capital of Arvia?"]
    assert (record.answer, record.kind, codes) == ("Arvo", "single", {"aa"})
    assert [(f.title, f.sentence) for f in record.support] == [
        ("Arvia: Capital", "name: Arvo")
    ]
    assert made["What is the highest point of Bren?"][0].answer == "Bren Hill"
    assert made["What is the currency of Arvia?"][0].answer == "Arvo crowns"


def test_questions_of_two_hops(made):
    start = "What is the highest point of the country"
    record, codes = made[f"{start} that has the longest land border with Corland?"]
    assert (record.answer, codes) == ("Mount Arv", {"aa", "cc"})
    titles = [fact.title for fact in record.support]
    assert titles == ["Corland: Land boundaries", "Arvia: Elevation"]
    record, codes = made[f"{start} whose capital is Brenton?"]
    assert (record.answer, codes) == ("Bren Hill", {"bb"})


def test_what_is_not_beyond_doubt_is_not_asked(made):
    assert not any("border with Bren" in question for question in made)  # a tie
    assert not any("border with Ezzia" in question for question in made)  # unknown
    assert "What is the capital of Ezzia?" not in made  # two of them
    assert not any("capital is Ezz" in question for question in made)
    unnamed = country("Fen", "Fenna", "", "unnamed location")
    asked = [r.question for r, _ in questions(countries({"ff": unnamed}))]
    assert "What is the capital of Fen?" in asked
    assert "What is the highest point of Fen?" not in asked
    twins = {"x": country("Gor", "Gora", "", "G"), "y": country("Gor", "Gory", "", "H")}
    assert countries(twins) == {}
    same = {"x": country("Gor", "Gora", "", "G"), "y": country("Hur", "Gora", "", "H")}
    asked = [r.question for r, _ in questions(countries(same))]
    assert not any("capital is" in question for question in asked)


def test_a_country_without_a_short_name_has_its_long_one():
    assert countries(COUNTRIES)["dd"].name == "Republic of none"
    data = country("The Dor", "D", "", "D")
    names = data["Government"]["Country name"]
    names["conventional long form"] = {"text": "Dor Republic"}
    assert countries({"dd": data})["dd"].spoken == "the Dor Republic"
    names["conventional long form"] = {"text": "Commonwealth of The Dor"}
    assert countries({"dd": data})["dd"].name == "The Dor"


@pytest.fixture(scope="module")
def real():
    return FactbookSource(read_package(), (0.1, 0.2), 0.5)


def test_the_package_gives_thousands_of_sound_questions(real):
    assert len(real._records) > 7_000
    assert len(real._by_question) == len(real._records)
    titles = {p.title: p for p in real.passages("test", 0)}
    for record in real._records:
        assert 0 < len(record.answer.split()) <= MAX_ANSWER_WORDS
        assert not set("<>;()\n") & set(record.answer)
        assert record.answer.lower() not in record.question.lower()
        for fact in record.support:
            assert fact.sentence in titles[fact.title].sentences
        assert plain(record.answer) in record.support[-1].sentence


def test_no_question_or_passage_of_training_is_of_a_held_out_country(real):
    numbers = {split: real.numbers(split, 0) for split in SPLITS}
    assert all(len(found) > 300 for found in numbers.values())
    owners = {p.title.split(": ")[0] for p in real.passages("train", 0)}
    held = {c.name for k, c in real._countries.items() if real._split_of[k] != "train"}
    assert len(held) > 40
    assert not owners & held
    for number in numbers["train"]:
        record = real.record("train", number)
        assert {f.title.split(": ")[0] for f in record.support} <= owners
    found = {p.title for p in real.passages("test", 0)}
    for number in numbers["test"]:
        support = real.record("test", number).support
        assert {fact.title for fact in support} <= found


def test_two_hops_have_their_share(real):
    kinds = [real.record("train", n).kind for n in real.numbers("train", 0)]
    assert np.mean([kind == "single" for kind in kinds]) == pytest.approx(0.5, abs=0.01)
    few = FactbookSource(COUNTRIES, (0.0, 0.0), 0.0)
    kinds = {few.record("train", n).kind for n in few.numbers("train", 0)}
    assert kinds == {"single"}
    many = FactbookSource(COUNTRIES, (0.0, 0.0), 1.0)
    kinds = {many.record("train", n).kind for n in many.numbers("train", 0)}
    assert kinds == {"two_hop_border", "two_hop_capital"}
    with pytest.raises(ValueError, match=r"two_hop_share: expected 0 to 1, got 2"):
        FactbookConfig(2.0)


def test_the_expert_reads_the_real_world(real):
    chosen = settings(objectives=4, search="bm25", passages=5, passage_chars=400)
    suite = MultiQaSuite("factbook", real, chosen, TOOLS, 0)
    check_repeatable(suite, [suite.task("train", 0)])
    scores = [run(suite, "test", index).env.score() for index in range(12)]
    assert np.mean(scores) >= 0.65  # measured .79


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(factbook, "PACKAGE", "no_such_package_of_facts")
    with pytest.raises(DataError, match=r"pip install 'mempo_jax\[factbook\]'"):
        read_package()


def test_another_layout_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(resources, "files", lambda name: tmp_path)
    with pytest.raises(DataError, match=r"data/REGION/CODE\.json"):
        read_package()
    (tmp_path / "data" / "europe").mkdir(parents=True)
    with pytest.raises(DataError, match="got none"):
        read_package()
    (tmp_path / "data" / "europe" / "aa.json").write_text("{")
    with pytest.raises(DataError, match=r"data/REGION/CODE\.json"):
        read_package()
