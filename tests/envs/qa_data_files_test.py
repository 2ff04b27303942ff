import pytest

from mempo_jax.envs.base import DataError
from mempo_jax.envs.qa_data import SPLITS, FileSource, find_files, share_of
from tests.envs import qa_case

NAMES = {"train": "", "validation": "", "test": ""}


def ids(source, split):
    return [
        source.record(split, number).id
        for shelf in range(source.shelves(split))
        for number in source.numbers(split, shelf)
    ]


def test_one_file_is_cut_by_record_id(tmp_path):
    files = {"train": qa_case.write(tmp_path / "own.json")}
    source = FileSource(files, (0.2, 0.4), 500)
    split = {name: set(ids(source, name)) for name in SPLITS}
    assert set().union(*split.values()) == {f"own{at}" for at in range(16)}
    assert sum(map(len, split.values())) == 16
    assert all(split.values())
    # where a record falls depends on nothing but its id
    half = [qa_case.record(at) for at in range(0, 16, 2)]
    files = {"train": qa_case.write(tmp_path / "half.json", half[::-1])}
    again = FileSource(files, (0.2, 0.4), 500)
    for name in SPLITS:
        assert set(ids(again, name)) == split[name] & {r["_id"] for r in half}


def test_shares_are_kept_on_average():
    places = [share_of(at * 2**32 // 1_000, 0.1, 0.2) for at in range(1_000)]
    counts = {name: places.count(name) for name in SPLITS}
    assert counts == pytest.approx(
        {"train": 700, "validation": 100, "test": 200}, abs=1
    )


def test_a_split_may_have_a_file_of_its_own(tmp_path):
    own = [qa_case.record(at, _id=f"held{at}") for at in range(4)]
    files = {
        "train": qa_case.write(tmp_path / "own.json"),
        "test": qa_case.write(tmp_path / "held.jsonl", own, lines=True),
    }
    source = FileSource(files, (0.2, 0.4), 500)
    assert ids(source, "test") == [f"held{at}" for at in range(4)]
    # nothing of the training file is held back for a test that has its own
    assert len(ids(source, "train")) + len(ids(source, "validation")) == 16
    assert len(source.passages("test", 0)) == 12


def test_a_large_file_stands_on_shelves_that_share_no_record(tmp_path):
    files = {"train": qa_case.write(tmp_path / "own.json")}
    source = FileSource(files, (0.0, 0.5), 5)
    assert source.shelves("train") == source.shelves("test") == 3
    numbers = [source.numbers("train", shelf) for shelf in range(3)]
    assert sum(map(len, numbers)) == len(set().union(*numbers))
    for shelf in range(3):
        titles = {passage.title for passage in source.passages("train", shelf)}
        for number in numbers[shelf]:
            assert {f.title for f in source.record("train", number).support} <= titles
    everything = [p for shelf in range(3) for p in source.passages("train", shelf)]
    assert len(everything) == 48


def test_a_question_finds_its_record(tmp_path):
    files = {"train": qa_case.write(tmp_path / "own.json")}
    source = FileSource(files, (0.2, 0.4), 500)
    assert source.find(qa_case.record(7)["question"]).id == "own7"
    assert source.find("Which?") is None


def test_the_one_file_of_a_folder_is_found(tmp_path):
    (tmp_path / "README.md").write_text("about")
    path = qa_case.write(tmp_path / "own.json")
    assert find_files(str(tmp_path), NAMES) == {"train": path}
    other = qa_case.write(tmp_path / "more.jsonl", lines=True)
    found = find_files(str(tmp_path), NAMES | {"train": "own.json", "test": other.name})
    assert found == {"train": path, "test": other}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({}, r"expected one .json or .jsonl file, found \['a.json', 'b.json'\].*train"),
        ({"train": "c.json"}, r"train_file: expected a file of .*got 'c\.json'"),
        ({"train": "a.json", "test": "c.json"}, r"test_file: .*got 'c\.json'"),
        (
            {"train": "a.json", "test": "a.json"},
            r"another file for each split.*a\.json",
        ),
    ],
)
def test_a_file_that_is_not_there_is_named(tmp_path, names, expected):
    for name in ("a.json", "b.json"):
        qa_case.write(tmp_path / name)
    with pytest.raises(DataError, match=expected):
        find_files(str(tmp_path), NAMES | names)


def test_no_folder_and_no_training_records_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"data_dir: expected a folder.*got ''"):
        find_files("", NAMES)
    with pytest.raises(DataError, match="found none"):
        find_files(str(tmp_path), NAMES)
    one = {"train": qa_case.write(tmp_path / "one.json", [qa_case.record(0)])}
    with pytest.raises(DataError, match="for training, got 1 that all fall to other"):
        FileSource(one, (0.4, 0.5), 500)
