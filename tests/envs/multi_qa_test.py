import itertools

import numpy as np
import pytest

from mempo_jax.envs import Question, check_repeatable
from mempo_jax.envs.base import DataError
from mempo_jax.envs.multi_qa import MultiQaConfig, MultiQaEnv, MultiQaSuite
from mempo_jax.envs.qa_data import FileSource, Passage, QuestionRecord, SupportingFact
from mempo_jax.envs.search import SearchTool
from mempo_jax.envs.tools import ToolConfig
from mempo_jax.models.nano import build_nano
from tests.envs import qa_case

RECORDS = (
    QuestionRecord(
        "a",
        "Who paints boats?",
        "Ada Fenwick",
        (SupportingFact("Ada", "She paints."),),
        "h",
    ),
    QuestionRecord(
        "b",
        "Is Aldmoor large?",
        "no",
        (SupportingFact("Aldmoor", "It is small."),),
        "v",
    ),
)
TOOLS = ToolConfig(10.0, 1, True)
PASSAGES = (
    Passage("Ada", ("She paints.", "She lives in Aldmoor.")),
    Passage("Aldmoor", ("A town on the River Arden with a mill and a fair.",) * 3),
    Passage("Aldmoor", ("It is small.",)),
    Passage("Chess", ("A game of kings.",)),
)


def settings(**changes):
    values = {
        "objectives": 2,
        "train_file": "",
        "validation_file": "",
        "test_file": "",
        "validation_share": 0.2,
        "test_share": 0.4,
        "shelf_records": 500,
        "search": "bm25",
        "embedder": "hashing",
        "passages": 2,
        "passage_chars": 200,
        "metric": "f1",
        "write_rate": 1.0,
        "hops": 2,
        "note_chars": 200,
        "vocabulary_words": 50,
    }
    return MultiQaConfig(**{**values, **changes})


def make_env(tool=None, tools=TOOLS, **changes):
    tool = tool or SearchTool(PASSAGES, "bm25", None)
    env = MultiQaEnv(RECORDS, tool, settings(**changes), tools)
    assert env.reset(0) == "searches 0"
    return env


def make_suite(tmp_path, seed=0, records=None, **changes):
    chosen = settings(**changes)
    files = {"train": qa_case.write(tmp_path / "own.json", records)}
    shares = chosen.validation_share, chosen.test_share
    source = FileSource(files, shares, chosen.shelf_records)
    return MultiQaSuite("multi_qa", source, chosen, TOOLS, seed)


def test_the_goal_lists_the_questions():
    lines = make_env().goal.splitlines()
    assert lines == [
        "answer each question",
        "1: Who paints boats?",
        "2: Is Aldmoor large?",
    ]


def test_a_search_shows_passages_and_a_pass_takes_them_away():
    env = make_env()
    found = env.step("search: who paints").observation
    assert found.splitlines() == [
        "searches 1 , found for: who paints",
        "- Ada: She paints. She lives in Aldmoor.",
    ]
    passed = env.step("")
    assert passed.observation == "searches 1 , the last for: who paints"
    assert (passed.reward, passed.done) == (0.0, False)
    assert len(env.step("Search:  aldmoor  town").observation.splitlines()) == 3
    assert env.step("search: aldmoor").observation.startswith("searches 3 , found for")


def test_passages_and_queries_are_cut_between_words():
    env = make_env(passages=1, passage_chars=30)
    query = "mill " * 60
    head, line = env.step(f"search: {query}").observation.splitlines()
    assert line == "- Aldmoor: A town on the River Arden with"
    assert len(head) < 160


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("search:", "the query is empty: expected search: words"),
        (" search:   ", "the query is empty: expected search: words"),
        ("Ada Fenwick", "no such tool: expected search: words , got Ada Fenwick"),
        ("lookup: Ada", "no such tool: expected search: words , got lookup: Ada"),
        ("search: zebra", "searches 1 , found for: zebra\nnothing"),
    ],
)
def test_a_call_that_fails_is_an_observation(action, expected):
    assert make_env().step(action).observation == expected


@pytest.mark.parametrize(
    ("answer", "f1", "em"),
    [
        ("1: Ada Fenwick; 2: no", 1.0, 1.0),
        ("2: No!; 1: the Ada Fenwick", 1.0, 1.0),
        ("1: Ada; 2: no", (2 / 3 + 1) / 2, 0.5),
        ("1: Ada Fenwick", 0.5, 0.5),
        ("1: Ada Fenwick; 2: no it is not", 0.5, 0.5),
        ("Ada Fenwick and no", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_the_score_is_the_mean_over_the_questions(answer, f1, em):
    for metric, expected in (("f1", f1), ("em", em)):
        env = make_env(metric=metric)
        result = env.step(answer, final=True)
        assert (result.done, result.observation) == (True, "")
        assert result.reward == env.score() == pytest.approx(expected)
        assert np.mean(env.question_scores()) == pytest.approx(expected)


def test_finding_the_answer_scores_nothing():
    env = make_env()
    assert env.step("search: paints").reward == 0
    assert env.step("1: Ada Fenwick; 2: no").reward == 0  # said to the tool
    assert env.score() == 0


def test_observations_that_showed_support_are_the_useful_ones():
    env = make_env()
    assert env.useful() == frozenset()
    env.step("search: chess kings")
    env.step("search: paints")
    env.step("")
    env.step("search: small")
    assert env.useful() == {2, 4}
    cut = make_env(passage_chars=20, passages=1)
    cut.step("search: lives")
    assert cut.useful() == {1}
    cut.step("search: mill fair")  # of this title, but not the sentence
    assert cut.useful() == {1}


def test_all_questions_are_one_question_of_the_last_observation():
    env = make_env()
    env.step("search: paints")
    env.step("")
    gold = "1: Ada Fenwick; 2: no"
    expected = Question(2, gold, frozenset({1}), parts=("h", "v"))
    assert env.questions() == (expected,)
    assert env.step(gold, final=True).reward == 1.0


def asked(suite, split, index):
    return suite.make(suite.task(split, index)).goal.splitlines()[1:]


def questions_of(suite, split, indices):
    return [line[3:] for index in indices for line in asked(suite, split, index)]


def test_each_epoch_asks_everything_in_new_groups(tmp_path):
    suite = make_suite(tmp_path, validation_share=0.0, test_share=0.4)
    size = suite.size("train")
    first = questions_of(suite, "train", range(size))
    second = questions_of(suite, "train", range(size, 2 * size))
    assert set(first) == set(second)
    assert first != second
    assert len(set(first)) >= len(first) - 1  # one may repeat, to fill the last task
    held_out = questions_of(suite, "test", range(suite.size("test")))
    assert len(set(first) | set(held_out)) == 16
    assert not set(first) & set(held_out)
    assert questions_of(suite, "test", range(suite.size("test"))) == held_out


def test_tasks_of_a_shelf_follow_each_other(tmp_path):
    suite = make_suite(tmp_path, shelf_records=5, test_share=0.4, validation_share=0.0)
    size = suite.size("train")
    tools = [suite.make(suite.task("train", index))._tool for index in range(size)]
    assert len({id(tool) for tool in tools}) == 3
    changes = sum(a is not b for a, b in itertools.pairwise(tools))
    assert changes == 2
    assert len(suite._tools) == 2


def test_splits_of_one_small_file_share_its_search(tmp_path):
    suite = make_suite(tmp_path)
    tools = [suite.make(suite.task(split, 0))._tool for split in ("train", "test")]
    assert tools[0] is tools[1]


def test_tasks_are_repeatable_and_differ_by_seed(tmp_path):
    suite = make_suite(tmp_path)
    tasks = [suite.task("train", index) for index in range(9)]
    check_repeatable(suite, tasks)
    assert len({task.id for task in tasks}) == 9
    other = make_suite(tmp_path, seed=1)
    goals = [asked(suite, "train", index) for index in range(4)]
    assert goals != [asked(other, "train", index) for index in range(4)]
    held_out = [suite.task("test", index) for index in range(3)]
    assert held_out == [other.task("test", index) for index in range(3)]


def test_a_task_that_cannot_be_is_refused(tmp_path):
    suite = make_suite(tmp_path)
    for split, index in (("train", -1), ("dev", 0)):
        with pytest.raises(ValueError, match="expected"):
            suite.task(split, index)
    with pytest.raises(DataError, match=r"at least 12 questions .* for train"):
        make_suite(tmp_path, objectives=12)
    with pytest.raises(DataError, match="for test"):
        make_suite(tmp_path, test_share=0.0)


@pytest.mark.parametrize("objectives", [1, 2, 4, 6, 8, 10])
def test_any_number_of_questions_is_one_task(tmp_path, objectives):
    made = [qa_case.record(at % 16, _id=f"own{at}") for at in range(80)]
    for at, record in enumerate(made):
        record["question"] += f" {at}"
    suite = make_suite(tmp_path, records=made, objectives=objectives)
    env = suite.make(suite.task("train", 3))
    env.reset(0)
    assert len(env.goal.splitlines()) == 1 + objectives
    assert env.step(env.questions()[0].answer, final=True).reward == 1.0


def test_nano_spells_any_text_of_the_shelf(tmp_path):
    suite = make_suite(tmp_path, vocabulary_words=5)
    words = suite.vocabulary()
    assert {"searches", "unknown", "Q", "z", "?", "7", "."} <= set(words)
    assert "Kesterby" not in words  # too rare for a word of its own
    tokenizer = build_nano(["a ("], words)  # as the episode's own texts have
    for text in ("Kesterby lies on the Kell.", "River Lathe (7)?"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("objectives", 0),
        ("objectives", 33),
        ("validation_share", 1.0),
        ("test_share", 0.9),
        ("search", "exact"),
        ("embedder", "none"),
        ("metric", "rouge"),
        ("write_rate", 1.5),
        ("hops", 3),
        ("passages", 0),
        ("passage_chars", 5),
        ("note_chars", 0),
        ("shelf_records", 0),
        ("vocabulary_words", -1),
    ],
)
def test_impossible_settings_are_refused(field, value):
    with pytest.raises(ValueError, match=rf"config\.env\.multi_qa\.{field}: expected"):
        settings(**{field: value})


def test_scores_are_plain_numbers():
    result = make_env().step("1: Ada", final=True)
    assert type(result.reward) is float
    assert np.isfinite(result.reward)
