import json
import tracemalloc

import pytest

from mempo_jax.envs import qa_data
from mempo_jax.envs.base import DataError
from mempo_jax.envs.qa_data import Passage, RecordFile, SupportingFact
from tests.envs import qa_case


@pytest.mark.parametrize("lines", [False, True])
def test_records_are_read_by_number_and_found_by_question(tmp_path, lines):
    file = RecordFile(qa_case.write(tmp_path / "own.json", lines=lines))
    assert len(file) == len(qa_case.PEOPLE)
    for at in (3, 0, len(file) - 1):
        record, passages = file.read(at)
        wanted = qa_case.record(at)
        assert (record.id, record.kind) == (f"own{at}", "bridge")
        assert (record.question, record.answer) == (
            wanted["question"],
            wanted["answer"],
        )
        assert len(passages) == 3
        assert file.find(wanted["question"]) == record
    assert file.find("Which river is it?") is None


def test_text_is_cleaned_and_support_points_at_sentences(tmp_path):
    made = qa_case.record(
        0,
        question="  What do\n Salt &amp; Pepper sell ? ",
        context=[["Salt &amp; Pepper", ["One.", "  They sell &quot;tea&quot; . "]]],
        # a second passage and a ninth sentence that the context lacks
        supporting_facts=[
            ["Salt &amp; Pepper", 1],
            ["Gone", 0],
            ["Salt &amp; Pepper", 9],
        ],
    )
    record, passages = RecordFile(qa_case.write(tmp_path / "a.json", [made])).read(0)
    assert record.question == "What do Salt & Pepper sell ?"
    assert passages == (Passage("Salt & Pepper", ("One.", 'They sell "tea" .')),)
    assert record.support == (SupportingFact("Salt & Pepper", 'They sell "tea" .'),)


def without(name):
    made = qa_case.record(1)
    del made[name]
    return made


@pytest.mark.parametrize(
    ("second", "field", "expected"),
    [
        (without("_id"), "_id", "expected a text, the record has question"),
        (without("question"), "question", "expected a text"),
        (without("answer"), "answer", "expected a text"),
        (without("context"), "context", "expected a list, got no such field"),
        (without("supporting_facts"), "supporting_facts", "got no such field"),
        (qa_case.record(1, answer=4), "answer", "not empty, got 4"),
        (qa_case.record(1, answer=" "), "answer", "not empty, got ' '"),
        (qa_case.record(1, type=None), "type", "got None"),
        (qa_case.record(1, context={}), "context", "expected a list, got {}"),
        (qa_case.record(1, context=[]), "context", "got an empty list"),
        (
            qa_case.record(1, context=[["t", ["s"]], ["t", "s"]]),
            r"context\[1\]",
            r"\[title, \[sentences\]\]",
        ),
        (qa_case.record(1, context=[["t", [7]]]), r"context\[0\]", "sentences"),
        (
            qa_case.record(1, supporting_facts=[["t", "0"]]),
            r"supporting_facts\[0\]",
            "sentence >= 0",
        ),
        (
            qa_case.record(1, supporting_facts=[["t", -1]]),
            r"supporting_facts\[0\]",
            "got .*-1",
        ),
        (
            qa_case.record(1, supporting_facts=["t"]),
            r"supporting_facts\[0\]",
            "got 't'",
        ),
    ],
)
def test_another_shape_names_file_record_and_field(tmp_path, second, field, expected):
    path = qa_case.write(tmp_path / "own.json", [qa_case.record(0), second])
    with pytest.raises(
        DataError, match=rf"own\.json, record 2, field {field}: .*{expected}"
    ):
        RecordFile(path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"version": "2.0", "data": [qa_case.record(0)]}))
    with pytest.raises(DataError, match=r"record 1, field _id.*version, data"):
        RecordFile(path)
    path.write_text("[]")
    with pytest.raises(DataError, match=r"squad\.json: expected at least one record"):
        RecordFile(path)


def test_a_file_that_changed_is_noticed(tmp_path):
    path = qa_case.write(tmp_path / "own.json")
    file = RecordFile(path)
    path.write_text(path.read_text()[:300])
    with pytest.raises(DataError, match=r"own\.json, record 6: expected the file as"):
        file.read(5)


def test_memory_stays_flat_whatever_the_size(tmp_path, monkeypatch):
    monkeypatch.setattr(qa_data, "CHUNK_BYTES", 1 << 16)
    path = tmp_path / "large.json"
    count = qa_case.large_file(path, megabytes=4)
    tracemalloc.start()
    file = RecordFile(path)
    file.read(count - 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(file) == count > 500
    assert peak < 1_000_000  # two windows of text, one record, the numbers


@pytest.mark.data
def test_the_official_file_loads_whole(data_dir):
    path = data_dir / "hotpotqa" / "hotpot_dev_distractor_60.json"
    file = RecordFile(path)
    raw = json.loads(path.read_text())
    assert len(file) == len(raw) == 60
    for at, wanted in enumerate(raw):
        record, passages = file.read(at)
        assert record.id == wanted["_id"]
        assert len(passages) == len(wanted["context"])
        assert len(record.support) == len(wanted["supporting_facts"])
