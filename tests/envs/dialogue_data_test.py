import json
import tracemalloc

import pytest

from mempo_jax.envs import qa_data
from mempo_jax.envs.base import DataError
from mempo_jax.envs.dialogue_data import Utterance, find_samples
from tests.envs.dialogue_story import TALK, talk, write


def read(path):
    return [place.read() for place in find_samples(path)]


def test_sessions_come_by_number_with_pictures_in_words(tmp_path):
    [found] = read(write(tmp_path))
    assert found.name == "own-1"
    assert [s.number for s in found.sessions] == [1, 2]
    assert found.sessions[0].date == "8:05 pm on 2 May, 2024"
    assert found.sessions[0].utterances[0] == Utterance(
        "D1:1", "Nora", "I bought a lamp today."
    )
    assert found.sessions[1].utterances[1] == Utterance(
        "D2:2", "Nora", "(picture: a red kite over a beach)"
    )
    assert found.speakers == ("Nora", "Otto")


def test_questions_with_numbers_without_answers_and_with_odd_evidence(tmp_path):
    [found] = read(write(tmp_path))
    assert [asked.category for asked in found.questions] == [2, 4, 1, 5, 5]
    assert [asked.answer for asked in found.questions] == [
        "2 May 2024",
        "Swift",
        "2",
        "",
        "No",
    ]
    assert found.questions[2].evidence == ("D1:1", "D2:2")
    assert found.questions[4].evidence == ()


def test_a_folder_of_files_and_lines_of_objects(tmp_path):
    write(tmp_path, TALK, talk(sample_id="own-2"), name="b.json")
    (tmp_path / "a.json").write_text(f"{json.dumps(talk(sample_id='own-0'))}\n")
    assert [t.name for t in read(str(tmp_path))] == ["own-0", "own-1", "own-2"]


TURN = {"speaker": "Nora", "dia_id": "D1:1", "text": "Hello."}
ASKED = TALK["qa"][1]


def without(item, name):
    return {key: value for key, value in item.items() if key != name}


DAMAGED = {
    "a list": ([], r"record 2.*expected an object"),
    "a text": ("x", r"record 2.*expected an object"),
    "no conversation": (without(TALK, "conversation"), r"field conversation: expected"),
    "conversation a list": (talk(conversation=[]), "field conversation: expected"),
    "no sessions": (talk(conversation={}), r"field conversation: expected session_1"),
    "no questions field": (without(TALK, "qa"), r"field qa: expected a list"),
    "questions an object": (talk(qa={}), r"field qa: expected a list"),
    "session a text": (talk(session_1="x"), r"field conversation\.session_1: expected"),
    "date a number": (talk(session_1_date_time=3), r"session_1_date_time: expected"),
    "turn a text": (talk(session_1=["x"]), r"session_1\[0\]: expected an object"),
    "no id": (talk(session_1=[without(TURN, "dia_id")]), r"session_1\[0\]\.dia_id"),
    "id of another form": (
        talk(session_1=[TURN, TURN | {"dia_id": "7"}]),
        r"session_1\[1\]\.dia_id: expected 'D1:3', got '7'",
    ),
    "no speaker": (talk(session_1=[without(TURN, "speaker")]), r"\[0\]\.speaker"),
    "text a list": (talk(session_1=[TURN | {"text": []}]), r"\[0\]\.text: expected"),
    "question a text": (talk(qa=["x"]), r"qa\[0\]: expected an object"),
    "no question": (talk(qa=[without(ASKED, "question")]), r"qa\[0\]\.question"),
    "question empty": (talk(qa=[ASKED | {"question": " "}]), r"not empty, got ''"),
    "no category": (talk(qa=[ASKED, without(ASKED, "category")]), r"qa\[1\]\.category"),
    "category six": (talk(qa=[ASKED | {"category": 6}]), r"expected 1 to 5, got 6"),
    "category a text": (talk(qa=[ASKED | {"category": "4"}]), r"got '4'"),
    "category true": (talk(qa=[ASKED | {"category": True}]), r"got True"),
    "no answer": (talk(qa=[without(ASKED, "answer")]), r"answer: expected a text"),
    "answer a list": (talk(qa=[ASKED | {"answer": ["x"]}]), r"answer: expected a text"),
    "answer empty": (talk(qa=[ASKED | {"answer": ""}]), r"answer: expected a text"),
    "evidence a number": (talk(qa=[ASKED | {"evidence": 3}]), r"evidence: expected"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_is_told_with_file_sample_and_field(tmp_path, kind):
    item, expected = DAMAGED[kind]
    with pytest.raises(DataError, match=expected) as caught:
        find_samples(write(tmp_path, TALK, item, TALK))
    message = str(caught.value)
    assert "talks.json" in message
    assert "sample 2" in message or "record 2" in message
    assert "\n" not in message
    assert len(message) < 500 + len(str(tmp_path))


@pytest.mark.parametrize("raw", [b"", b"[", b"[{]", b"\xff\xfe", b"<html>", b"3"])
def test_what_is_no_json_of_objects(tmp_path, raw):
    path = tmp_path / "talks.json"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"talks\.json, record 1.*expected"):
        find_samples(str(path))


def test_a_cut_file(tmp_path):
    path = write(tmp_path, TALK, TALK)
    text = (tmp_path / "talks.json").read_text()
    (tmp_path / "talks.json").write_text(text[:-30])
    with pytest.raises(DataError, match=r"talks\.json, record 2"):
        find_samples(path)


@pytest.mark.parametrize("where", ["", "nowhere.json", "."])
def test_no_file(tmp_path, where):
    path = str(tmp_path / where) if where else ""
    with pytest.raises(DataError, match=r"config\.env\.data_dir: expected a JSON file"):
        find_samples(path)


def test_no_conversation(tmp_path):
    (tmp_path / "talks.json").write_text("[]")
    with pytest.raises(DataError, match="at least one conversation"):
        find_samples(str(tmp_path / "talks.json"))


def test_a_file_that_changes_under_way(tmp_path):
    [place] = find_samples(write(tmp_path))
    (tmp_path / "talks.json").write_text("[]")
    with pytest.raises(DataError, match="as it was at the start of the run"):
        place.read()


def test_memory_is_that_of_one_conversation(tmp_path, monkeypatch):
    monkeypatch.setattr(qa_data, "CHUNK_BYTES", 1 << 15)
    turns = [TURN | {"dia_id": f"D1:{n}", "text": "word " * 40} for n in range(40)]
    many = [talk(session_1=turns) for _ in range(200)]
    path = write(tmp_path, *many)
    size = (tmp_path / "talks.json").stat().st_size
    del many
    tracemalloc.start()
    places = find_samples(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(places) == 200
    assert size > 2 * peak
