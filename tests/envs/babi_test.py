import numpy as np
import pytest

from mempo_jax.envs import Question, Situation
from mempo_jax.envs.babi import BabiConfig, BabiSuite
from mempo_jax.envs.base import DataError
from mempo_jax.memory import Bank, BankConfig
from tests.envs.babi_formats import STORIES
from tests.envs.babi_story import ONE, TWO, write
from tests.envs.scripted_env import EMBEDDER, context, limits, make_episode


def make_suite(folder, tasks=(1,), seed=0, max_train_lines=40, write_rate=1.0):
    return BabiSuite(BabiConfig(tasks, max_train_lines, write_rate), folder, seed)


def run_expert(suite, split, index, seed=0):
    """Score of the expert in a whole episode with a real bank."""
    task = suite.task(split, index)
    bank = Bank(BankConfig(merge_threshold=0.6), EMBEDDER, trajectory_id="expert")
    rules, settings = context(), limits(max_turns=1_000, retrieval_top_k=6)
    episode = make_episode(suite.make(task), bank=bank, settings=settings, rules=rules)
    expert, rng = suite.expert(), np.random.default_rng(seed)
    while not episode.done:
        assert episode.observe() is not None
        episode.act(expert(episode.situation(), rng))
    assert episode.malformed == 0
    return episode.env.score()


def stories(suite, split, count):
    shown = []
    for index in range(count):
        task = suite.task(split, index)
        shown.append(suite.make(task).reset(task.seed))
    return shown


def test_a_story_is_told_line_by_line_and_scored_by_question(tmp_path):
    suite = make_suite(write(tmp_path, train=TWO, test=ONE))
    env = suite.make(suite.task("test", 0))
    assert env.reset(0) == "Nora went to the cellar."
    assert env.step("cellar").observation == "Otto moved to the attic."
    assert env.score() == 0  # nothing was asked
    assert env.step("").observation == "Where is Nora?"
    result = env.step(" Cellar ")
    assert result.reward == pytest.approx(1 / 3)
    env.step("")
    assert env.step("cellar").reward == 0
    last = env.step("attic")
    assert (last.done, last.observation) == (True, "")
    assert env.score() == pytest.approx(2 / 3)
    assert env.useful() == {0, 1, 3}


def test_questions_know_their_answers_and_the_lines_that_hold_them(tmp_path):
    suite = make_suite(write(tmp_path, train=TWO, test=ONE))
    env = suite.make(suite.task("test", 0))
    env.reset(0)
    assert env.questions() == (
        Question(2, "cellar", frozenset({0}), "act", "qa1"),
        Question(4, "porch", frozenset({3}), "act", "qa1"),
        Question(5, "attic", frozenset({1}), "act", "qa1"),
    )
    for answer in ("", "", "cellar", "", "garden"):
        env.step(answer)
    assert env.question_scores() == (1.0, 0.0, 0.0)  # the last was never reached


@pytest.mark.parametrize("task", STORIES)
def test_the_right_answers_solve_a_story_of_every_task(tmp_path, task):
    text, answers, support = STORIES[task]
    suite = make_suite(write(tmp_path, train=text, test=text, task=task), (task,))
    env, left = suite.make(suite.task("test", 0)), iter(answers)
    observation = env.reset(0)
    assert [q.answer for q in env.questions()] == answers
    assert [q.support for q in env.questions()] == support
    assert {q.category for q in env.questions()} == {f"qa{task}"}
    assert env.useful() == frozenset().union(*support)
    earned, done = 0.0, False
    while not done:
        result = env.step(next(left) if observation.endswith("?") else "")
        observation, done = result.observation, result.done
        earned += result.reward
    assert earned == pytest.approx(1.0)
    assert env.score() == 1.0
    assert env.question_scores() == (1.0,) * len(answers)


@pytest.mark.parametrize("task", STORIES)
def test_the_expert_plays_a_story_of_every_task(tmp_path, task):
    text = STORIES[task][0]
    suite = make_suite(write(tmp_path, train=text, test=text, task=task), (task,))
    score = run_expert(suite, "test", 0)
    assert score == 1.0 or task not in (1, 2, 5, 6, 7, 8, 11, 12, 13)


def test_an_answer_may_end_the_task_early(tmp_path):
    suite = make_suite(write(tmp_path, train=TWO, test=ONE))
    env = suite.make(suite.task("test", 0))
    env.reset(0)
    env.step("")
    env.step("")
    result = env.step("cellar", final=True)
    assert result.done
    assert env.score() == pytest.approx(1 / 3)


def test_lists_earn_a_share(tmp_path):
    text = "1 Otto got the lamp.\n2 What is Otto carrying? \tlamp,key\t1\n"
    suite = make_suite(write(tmp_path, test=text))
    for given, right in (("key, lamp", 1), ("lamp", 2 / 3), ("", 0)):
        env = suite.make(suite.task("test", 0))
        env.reset(0)
        env.step("")
        assert env.step(given).reward == pytest.approx(right)


def test_training_order_is_reshuffled_each_epoch_and_loses_nothing(tmp_path):
    many = "".join(
        f"1 Otto moved to the room{i}.\n2 Where is Otto? \troom{i}\t1\n"
        for i in range(30)
    )
    folder = write(tmp_path, train=many)
    suite = make_suite(folder)
    assert suite.size("train") == 30
    shown = stories(suite, "train", 60)
    assert set(shown[:30]) == set(shown[30:])
    assert len(set(shown[:30])) == 30
    assert shown[:30] != shown[30:]
    assert stories(make_suite(folder), "train", 60) == shown
    assert stories(make_suite(folder, seed=1), "train", 30) != shown[:30]


def test_split_and_index_of_a_task_find_it_again(tmp_path):
    many = "".join(
        f"1 Otto moved to the room{i}.\n2 Where is Otto? \troom{i}\t1\n"
        for i in range(9)
    )
    suite = make_suite(write(tmp_path, train=many))
    tasks = [suite.task("train", i) for i in range(20)]
    assert len({task.id for task in tasks}) == 20
    for task in tasks:
        again = suite.task(task.split, task.index)
        assert again == task
        assert suite.make(again).reset(0) == suite.make(task).reset(0)
    other = make_suite(str(tmp_path), seed=3).task("train", 0)
    assert other.seed != tasks[0].seed  # another order: not the same task


def test_tasks_are_mixed_and_long_training_stories_left_out(tmp_path):
    write(tmp_path, train=TWO + ONE, task=1)
    folder = write(tmp_path, train=ONE, test=TWO, task=2)
    suite = make_suite(folder, tasks=(1, 2), max_train_lines=6)
    assert suite.size("train") == 4
    assert suite.size("test") == 2


def test_no_usable_story_is_refused(tmp_path):
    folder = write(tmp_path, train=TWO)
    with pytest.raises(
        DataError, match=r"train\.txt.*at most 9 lines.*max_train_lines"
    ):
        make_suite(folder, max_train_lines=9)
    write(tmp_path, test="")
    with pytest.raises(DataError, match=r"test\.txt: expected at least one story"):
        make_suite(folder)


@pytest.mark.parametrize(
    "values",
    [((), 40, 0.5), ((0,), 40, 0.5), ((21,), 40, 0.5), ((1,), 1, 0.5), ((1,), 40, 1.5)],
)
def test_impossible_settings(values):
    with pytest.raises(ValueError, match=r"config\.env\.babi"):
        BabiConfig(*values)


@pytest.mark.parametrize(("split", "index"), [("valid", 0), ("train", -1)])
def test_unknown_tasks(tmp_path, split, index):
    with pytest.raises(ValueError, match="expected split train or test"):
        make_suite(write(tmp_path)).task(split, index)


def test_the_vocabulary_holds_every_word(tmp_path):
    words = set(make_suite(write(tmp_path)).vocabulary())
    assert {"Nora", "lamp", "Where", "cellar", "yes", "unknown"} <= words


def test_the_expert_solves_moves_things_and_yes_no_questions(tmp_path):
    suite = make_suite(write(tmp_path))
    assert run_expert(suite, "test", 0) == 1.0
    assert run_expert(suite, "train", 0) == 1.0
    assert run_expert(suite, "train", 1) == 1.0


def test_an_expert_that_never_writes_knows_nothing(tmp_path):
    suite = make_suite(write(tmp_path), write_rate=0.0)
    assert run_expert(suite, "train", 0) == 0


def test_the_expert_writes_all_kinds_of_lines_equally_often(tmp_path):
    expert = make_suite(write(tmp_path), write_rate=0.5).expert()
    rng = np.random.default_rng(0)
    for text in ("Nora went to the cellar.", "Nora got the lamp.", "Cats eat mice."):
        acts = [expert(Situation(text, (), ()), rng) for _ in range(1_000)]
        share = np.mean(["<mem_write>" in act for act in acts])
        assert abs(share - 0.5) < 0.08  # 5 standard errors


def test_the_expert_takes_any_question(tmp_path):
    expert, rng = make_suite(write(tmp_path)).expert(), np.random.default_rng(0)
    asked = "How do you go from the cellar to the attic?"
    assert "<mem_recall>" in expert(Situation(asked, (), ()), rng)
    assert expert(Situation(asked, (), ("q",)), rng) == "<act> unknown</act>"


OFFICIAL = {1: 2_000, 2: 2_000, 5: 2_000, 6: 2_000, 8: 2_000, 11: 2_000}


@pytest.mark.data
def test_the_official_files_load_whole(data_dir):
    suite = make_suite(
        str(data_dir / "babi"), tasks=tuple(OFFICIAL), max_train_lines=10_000
    )
    questions = {"train": 0, "test": 0}
    for split in questions:
        for index in range(suite.size(split)):
            env = suite.make(suite.task(split, index))
            env.reset(0)
            assert env.useful()
            result = env.step("")
            while not result.done:
                assert result.observation
                result = env.step("")
            assert env.score() == 0
        made = [line for s in suite._stories[split] for line in s.lines]
        questions[split] = sum(line.answer is not None for line in made)
    assert questions == {"train": 60_000, "test": 6_000}
    assert suite.size("train") == 10 * suite.size("test")


@pytest.mark.data
def test_the_expert_solves_official_stories(data_dir):
    suite = make_suite(str(data_dir / "babi"), tasks=(1, 2, 6))
    scores = [run_expert(suite, "test", index) for index in range(60)]
    scores += [run_expert(suite, "train", index) for index in range(60)]
    assert np.mean(scores) > 0.95


def test_stories_without_a_question_are_refused(tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"qa1_x_{split}.txt").write_text("1 Ann went to the hall.\n")
    settings = BabiConfig(tasks=(1,), max_train_lines=9, write_rate=0.5)
    with pytest.raises(DataError, match="with a question, got none"):
        BabiSuite(settings, str(tmp_path), 0)
