import pytest

from mempo_jax.envs.babi import find_file, read_stories
from mempo_jax.envs.base import DataError
from tests.envs.babi_story import ONE, TWO, write


def read(tmp_path, text):
    path = tmp_path / "qa1_own_train.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_stories(path, 1))


def test_stories_lines_answers_and_evidence(tmp_path):
    first, second = read(tmp_path, ONE)
    assert [len(s.lines) for s in (first, second)] == [6, 2]
    assert first.lines[0].text == "Nora went to the cellar."
    assert first.lines[0].answer is None
    assert first.lines[4].text == "Where is Nora?"
    assert first.lines[4].answer == "porch"
    assert first.lines[4].evidence == {3}
    assert second.lines[1].evidence == {0}
    assert [s.task for s in (first, second)] == [1, 1]


def test_several_supporting_facts(tmp_path):
    [story] = read(tmp_path, TWO)
    assert story.lines[3].evidence == {0, 1}
    assert story.lines[7].evidence == {4, 5}


@pytest.mark.parametrize("change", ["windows", "no_last_newline", "blank_lines"])
def test_harmless_differences(tmp_path, change):
    text = {
        "windows": ONE.replace("\n", "\r\n"),
        "no_last_newline": ONE.rstrip("\n"),
        "blank_lines": ONE.replace("1 Otto", "\n1 Otto") + "\n\n",
    }[change]
    assert read(tmp_path, text) == read(tmp_path, ONE)


def test_other_scripts_and_list_answers(tmp_path):
    [story] = read(tmp_path, "1 Ñora cogió la lámpara.\n2 ¿Qué?\tlámpara,llave\t1\n")
    assert story.lines[1].answer == "lámpara,llave"


def test_reading_streams(tmp_path):
    path = tmp_path / "qa1_own_train.txt"
    path.write_text(ONE + "damaged\n")
    stories = read_stories(path, 1)
    assert len(next(stories).lines) == 6
    with pytest.raises(DataError, match="line 9"):
        list(stories)


DAMAGED = {
    "no number": (ONE.replace("2 Otto moved", "Otto moved"), 2),
    "number only": (ONE.replace("4 Nora travelled to the porch.", "4"), 4),
    "number and blank": (ONE.replace("4 Nora travelled to the porch.", "4  "), 4),
    "minus": (ONE.replace("2 Otto moved", "-2 Otto moved"), 2),
    "zero": (ONE.replace("1 Nora went", "0 Nora went"), 1),
    "starts in the middle": (ONE.split("\n", 1)[1], 1),
    "line missing": (ONE.replace("2 Otto moved to the attic.\n", ""), 2),
    "line twice": (ONE.replace("2 Otto", "2 Otto moved.\n2 Otto"), 3),
    "huge number": (ONE.replace("2 Otto", "99999999999999999999 Otto"), 2),
    "no answer": (ONE.replace("\tcellar\t1", "\t\t1"), 3),
    "no evidence": (ONE.replace("\tcellar\t1", "\tcellar"), 3),
    "empty evidence": (ONE.replace("\tcellar\t1", "\tcellar\t"), 3),
    "no question": (ONE.replace("Where is Nora? \tcellar", " \tcellar"), 3),
    "evidence in words": (ONE.replace("\tcellar\t1", "\tcellar\tone"), 3),
    "evidence zero": (ONE.replace("\tcellar\t1", "\tcellar\t0"), 3),
    "evidence itself": (ONE.replace("\tcellar\t1", "\tcellar\t3"), 3),
    "evidence ahead": (ONE.replace("\tcellar\t1", "\tcellar\t4"), 3),
    "evidence negative": (ONE.replace("\tcellar\t1", "\tcellar\t-1"), 3),
    "evidence a question": (ONE.replace("\tporch\t4", "\tporch\t3"), 5),
    "evidence superscript": (ONE.replace("\tcellar\t1", "\tcellar\t¹"), 3),
    "evidence huge": (ONE.replace("\tcellar\t1", "\tcellar\t" + "9" * 6000), 3),
    "a field too many": (ONE.replace("\tcellar\t1", "\tcellar\t1\t2"), 3),
    "tabs became blanks": (ONE.replace("\tcellar\t1", "  cellar  1"), 3),
    "cut in a question": (ONE[: ONE.index("\tporch\t4")], 5),
    "not utf-8": (ONE.encode().replace(b"attic", b"att\xffic", 1), 2),
    "utf-16": (ONE.encode("utf-16"), 1),
    "binary": (bytes(range(256)), 1),
    "html": ("<html><body>404</body></html>\n", 1),
    "json": ('{"story": 1}\n', 1),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_is_told_with_file_and_line(tmp_path, kind):
    text, line = DAMAGED[kind]
    with pytest.raises(DataError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert f"qa1_own_train.txt, line {line}: expected" in message
    assert "got" in message
    assert "\n" not in message
    assert len(message) < 400 + len(str(tmp_path))


def test_every_prefix_of_a_file_reads_or_is_refused_clearly(tmp_path):
    whole = read(tmp_path, TWO)[0].lines
    refused = 0
    for cut in range(len(TWO)):
        try:
            stories = read(tmp_path, TWO[:cut])
        except DataError:
            refused += 1
            continue
        lines = [line.text for story in stories for line in story.lines]
        assert lines[:-1] == [line.text for line in whole[: max(0, len(lines) - 1)]]
    assert 0 < refused < len(TWO) / 2


def test_the_file_of_a_task_is_found_by_its_number(tmp_path):
    write(tmp_path, task=1)
    write(tmp_path, task=11)
    assert find_file(str(tmp_path), 1, "test").name == "qa1_own_test.txt"
    assert find_file(str(tmp_path), 11, "train").name == "qa11_own_train.txt"


@pytest.mark.parametrize("folder", ["", "nowhere", "qa1_own_train.txt"])
def test_no_folder(tmp_path, folder):
    write(tmp_path)
    path = str(tmp_path / folder) if folder else ""
    with pytest.raises(DataError, match=r"config\.env\.data_dir: expected a folder"):
        find_file(path, 1, "train")


def test_no_file_or_two_files(tmp_path):
    write(tmp_path)
    with pytest.raises(DataError, match=r"qa2_\*_train\.txt, found none"):
        find_file(str(tmp_path), 2, "train")
    write(tmp_path, name="other")
    with pytest.raises(DataError, match=r"qa1_other_train\.txt.*qa1_own_train\.txt"):
        find_file(str(tmp_path), 1, "train")


def test_a_file_that_cannot_be_opened(tmp_path):
    (tmp_path / "qa1_own_train.txt").mkdir()
    with pytest.raises(
        DataError, match=r"qa1_own_train\.txt: expected a readable file"
    ):
        list(read_stories(find_file(str(tmp_path), 1, "train"), 1))
