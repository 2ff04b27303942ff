import json

import pytest

from mempo_jax.envs import qa_data
from mempo_jax.envs.base import DataError
from mempo_jax.envs.qa_data import read_objects

VALUES = [
    {"a": 1},
    {"text": 'ünï "quoted" \\ and } ] , {', "deep": [[{"b": None}]]},
    {},
    {"long": "x" * 500, "number": -1.5e-3, "is": True},
]


def write(tmp_path, text):
    path = tmp_path / "file.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def array(indent):
    return json.dumps(VALUES, indent=indent, ensure_ascii=False)


LINES = "\n".join(json.dumps(v, ensure_ascii=False) for v in VALUES)
FORMS = {
    "array": array(None),
    "indented": array(2),
    "lines": LINES,
    "spaced lines": "\n\n" + LINES.replace("\n", "\r\n\r\n") + "\n",
    "marked": b"\xef\xbb\xbf" + array(None).encode(),
    "marked lines": b"\xef\xbb\xbf" + LINES.encode(),
}


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_objects_and_their_bytes(
    tmp_path, monkeypatch, form, chunk
):
    monkeypatch.setattr(qa_data, "CHUNK_BYTES", chunk)
    path = write(tmp_path, FORMS[form])
    found = list(read_objects(path))
    assert [value for *_, value in found] == VALUES
    raw = path.read_bytes()
    for start, size, value in found:
        assert json.loads(raw[start : start + size]) == value


@pytest.mark.parametrize("chunk", [5, 1 << 20])
@pytest.mark.parametrize(
    ("text", "record", "expected"),
    [
        ("", 1, "one JSON array"),
        ("  \n ", 1, "one JSON array"),
        ("hello", 1, "one JSON array"),
        ('[{"a": 1}, {"b": tru}]', 2, "valid JSON"),
        ('[{"a": 1}, {"b": 2]', 2, "valid JSON"),
        ('[{"a": 1}, {"b": "never closed}]', 2, "valid JSON"),
        ('[{"a": 1}, {"b": 2}', 2, "a comma or ]"),
        ('[{"a": 1} {"b": 2}]', 1, "a comma or ]"),
        ('[{"a": 1}, 5]', 2, "an object"),
        ('[{"a": 1},]', 2, "an object"),
        ('[{"a": 1}] {"b": 2}', 1, "nothing after the \\]"),
        ('{"a": 1}\nnonsense', 2, "an object"),
        ('{"a": 1}\n{"b": ', 2, "valid JSON"),
        (b'[{"a": "\xff\xfe"}]', 1, "UTF-8"),
        ('[{"a": ' + "[" * 100_000, 1, "valid JSON|few levels"),
    ],
)
def test_damage_names_the_file_and_the_record(
    tmp_path, monkeypatch, text, record, expected, chunk
):
    monkeypatch.setattr(qa_data, "CHUNK_BYTES", chunk)
    path = write(tmp_path, text)
    with pytest.raises(DataError, match=expected) as caught:
        list(read_objects(path))
    assert f"{path}, record {record}, byte " in str(caught.value)


def test_an_object_without_an_end_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(qa_data, "MAX_OBJECT_CHARS", 1_000)
    monkeypatch.setattr(qa_data, "CHUNK_BYTES", 64)
    path = write(tmp_path, '[{"a": "' + "x" * 5_000 + '"}]')
    with pytest.raises(DataError, match=r"record 1, byte .*ends within 1000"):
        list(read_objects(path))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.json: expected a readable file"):
        list(read_objects(tmp_path / "none.json"))
