import collections
import json

import numpy as np
import pytest

from mempo_jax.envs import Situation, check_repeatable
from mempo_jax.envs.base import DataError
from mempo_jax.envs.dialogue import DialogueConfig, DialogueSuite, cut_into_turns
from mempo_jax.envs.dialogue_data import Conversation, Session, Utterance, find_samples
from mempo_jax.memory import Bank, BankConfig, make_embedder
from tests.envs.dialogue_story import TALK, talk, write
from tests.envs.scripted_env import EMBEDDER, context, limits, make_episode


def settings(**changes):
    values = {
        "chunk_chars": 0,
        "questions_per_task": 0,
        "categories": (1, 2, 3, 4, 5),
        "test_share": 0.5,
        "write_rate": 1.0,
    }
    return DialogueConfig(**values | changes)


def pair(folder, one=TALK):
    """Twice the same conversation: one to train on, one held out."""
    return write(folder, one, one)


def make_suite(path, seed=0, **changes):
    return DialogueSuite(settings(**changes), path, seed, max_ops=4)


def first(suite, split="test"):
    task = suite.task(split, 0)
    env = suite.make(task)
    return env, env.reset(task.seed)


def test_sessions_are_told_then_questions_asked(tmp_path):
    env, shown = first(make_suite(pair(tmp_path)))
    assert "Nora and Otto" in env.goal
    assert shown == (
        "session 1, 8:05 pm on 2 May, 2024\n"
        "Nora: I bought a lamp today.\nOtto: Nice! I went to the sea."
    )
    assert env.step("Swift").observation.startswith("session 2, 9:10 am")
    assert env.step("").observation == "question: When did Nora buy a lamp?"
    result = env.step("on 2 May 2024")
    assert result.observation == "question: What is Otto's boat called?"
    assert result.reward == pytest.approx(6 / 7 / 5)
    env.step("Swift")
    env.step("three")
    result = env.step("I do not know")
    assert not result.done
    result = env.step("no")
    assert (result.observation, result.done) == ("", True)
    scores = [pytest.approx(6 / 7), 1.0, 0.0, 1.0, 1.0]
    assert list(env.question_scores()) == scores
    assert env.score() == pytest.approx((6 / 7 + 3) / 5)


def test_an_answer_ends_the_task(tmp_path):
    env, _ = first(make_suite(pair(tmp_path)))
    env.step("")
    env.step("")
    result = env.step("2 May 2024", final=True)
    assert result.done
    assert env.score() == pytest.approx(1 / 5)
    assert env.question_scores() == (1.0, 0, 0, 0, 0)


def test_truth_is_where_the_evidence_is_told(tmp_path):
    env, _ = first(make_suite(pair(tmp_path)))
    questions = env.questions()
    assert [q.observation for q in questions] == [2, 3, 4, 5, 6]
    assert [q.support for q in questions] == [{0}, {1}, {0, 1}, {1}, frozenset()]
    assert [q.category for q in questions] == [
        "temporal",
        "single_hop",
        "multi_hop",
        "adversarial",
        "adversarial",
    ]
    assert questions[3].answer == "not mentioned"
    assert {q.kind for q in questions} == {"act"}
    assert env.useful() == {0, 1}


def test_long_sessions_are_cut_between_what_is_said(tmp_path):
    said = [Utterance(f"D1:{n}", "Nora", f"sentence {n} " * 6) for n in range(20)]
    said.append(Utterance("D1:99", "Otto", "word " * 100))
    turns = cut_into_turns(
        Conversation("x", (Session(1, "today", tuple(said)),), ()), 300
    )
    assert all(len(chunk) <= 330 for chunk in turns.chunks)
    assert all(chunk.startswith("session 1, today\n") for chunk in turns.chunks)
    whole = "".join(chunk.partition("\n")[2] for chunk in turns.chunks)
    assert whole.count("sentence 7 ") == 6
    assert whole.count("word") == 100
    assert len(turns.turns_of["D1:3"]) == 1
    assert len(turns.turns_of["D1:99"]) > 1
    for name, places in turns.turns_of.items():
        number = name.partition(":")[2]
        if number != "99":
            assert f"sentence {number} " in turns.chunks[min(places)]


def test_a_word_longer_than_a_turn_is_cut_within():
    said = (Utterance("D1:1", "Nora", "x" * 1_000),)
    turns = cut_into_turns(Conversation("x", (Session(1, "", said),), ()), 100)
    assert max(map(len, turns.chunks)) <= 100
    assert sum(chunk.count("x") for chunk in turns.chunks) == 1_000


def test_conversations_are_split_and_training_is_reshuffled(tmp_path):
    talks = [talk(sample_id=f"own-{n}") for n in range(4)]
    for number, one in enumerate(talks):
        one["conversation"]["session_1"][0]["text"] = f"number {number}"
    suite = make_suite(write(tmp_path, *talks), questions_per_task=2)
    assert (suite.size("train"), suite.size("test")) == (6, 6)  # 2 + 2 + 1 each

    def shown(split, indices):
        for index in indices:
            task = suite.task(split, index)
            env = suite.make(task)
            yield env.reset(task.seed), env.questions()

    train, test = list(shown("train", range(12))), list(shown("test", range(6)))
    numbers = [{text.split("number ")[1][0] for text, _ in s} for s in (train, test)]
    assert numbers == [{"0", "1"}, {"2", "3"}]
    assert collections.Counter(map(str, train[:6])) == collections.Counter(
        map(str, train[6:])
    )
    assert train[:6] != train[6:]
    check_repeatable(suite, [suite.task("train", n) for n in range(3)])
    more = make_suite(str(tmp_path / "talks.json"), test_share=0.9)
    assert (more.size("train"), more.size("test")) == (1, 3)


def test_one_conversation_lends_its_questions_to_both_splits(tmp_path):
    suite = make_suite(write(tmp_path), questions_per_task=1)
    assert (suite.size("train"), suite.size("test")) == (3, 2)
    asked = [
        first(suite, split)[0].questions()[0].answer for split in ("train", "test")
    ]
    assert asked[0] != asked[1]
    for count in (0, 5):
        with pytest.raises(DataError, match=r"trained on.*questions_per_task below 5"):
            make_suite(write(tmp_path), questions_per_task=count)


def test_categories_choose_questions(tmp_path):
    path = pair(tmp_path)
    env, _ = first(make_suite(path, categories=(4, 5)))
    assert len(env.questions()) == 3
    with pytest.raises(DataError, match=r"config\.env\.dialogue\.categories"):
        make_suite(path, categories=(3,))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chunk_chars", 20),
        ("chunk_chars", -1),
        ("questions_per_task", -1),
        ("categories", ()),
        ("categories", (0,)),
        ("test_share", 0.0),
        ("test_share", 1.0),
        ("write_rate", 2.0),
    ],
)
def test_impossible_settings(field, value):
    with pytest.raises(ValueError, match=rf"config\.env\.dialogue\.{field}"):
        settings(**{field: value})


@pytest.mark.parametrize(("split", "index"), [("valid", 0), ("train", -1)])
def test_unknown_tasks(tmp_path, split, index):
    with pytest.raises(ValueError, match="expected split train or test"):
        make_suite(pair(tmp_path)).task(split, index)


def test_the_vocabulary_holds_every_word(tmp_path):
    words = set(make_suite(pair(tmp_path)).vocabulary())
    assert {"Swift", "kite", "session", "question", "mentioned", "2024"} <= words


def run_expert(suite, split="test", index=0, embedder=EMBEDDER):
    task = suite.task(split, index)
    bank = Bank(BankConfig(), embedder, trajectory_id="expert")
    rules = context(max_context_tokens=10**9)
    settings = limits(max_turns=5_000, retrieval_top_k=6, max_entry_chars=2_000)
    episode = make_episode(suite.make(task), bank=bank, settings=settings, rules=rules)
    expert, rng = suite.expert(), np.random.default_rng(index)
    while not episode.done:
        assert episode.observe() is not None
        episode.act(expert(episode.situation(), rng))
    assert episode.malformed == 0
    assert sum(episode.turn_reward) == pytest.approx(episode.env.score())
    return episode


def test_the_expert_notes_recalls_and_answers(tmp_path):
    episode = run_expert(make_suite(pair(tmp_path)))
    texts = [entry.text for entry in episode.bank.active]
    assert "(8:05 pm on 2 May, 2024) Nora: I bought a lamp today." in texts
    assert len(texts) == 4
    scores = episode.env.question_scores()
    assert scores[0] == 1.0
    assert scores[3] == 1.0  # Otto said it, not Nora


def test_the_expert_joins_what_its_ops_cannot_hold(tmp_path):
    turns = [
        {"speaker": "Nora", "dia_id": f"D1:{n}", "text": f"a <b> word{n}"}
        for n in range(10)
    ]
    suite = make_suite(pair(tmp_path, talk(session_1=turns)))
    said = suite.expert()(Situation(first(suite)[1], (), ()), np.random.default_rng(0))
    assert said.count("<mem_write>") == 4
    assert all(f"word{n}" in said for n in range(10))
    assert "<b>" not in said


def test_an_expert_that_never_writes_abstains(tmp_path):
    episode = run_expert(make_suite(pair(tmp_path), write_rate=0.0))
    assert not episode.bank.active
    assert set(episode.answers) == {"not mentioned"}
    assert episode.env.question_scores() == (0, 0, 0, 1.0, 1.0)


@pytest.mark.data
def test_the_public_conversations_load_whole(data_dir):
    path = str(data_dir / "locomo" / "locomo_4.json")
    samples = json.loads((data_dir / "locomo" / "locomo_4.json").read_text())
    found = [place.read() for place in find_samples(path)]
    assert [len(t.questions) for t in found] == [len(s["qa"]) for s in samples]
    assert sum(len(t.questions) for t in found) == 757
    for one, sample in zip(found, samples):
        counted = sum(
            len(turns)
            for name, turns in sample["conversation"].items()
            if name.startswith("session") and isinstance(turns, list)
        )
        assert sum(len(s.utterances) for s in one.sessions) == counted


@pytest.mark.data
def test_every_public_question_is_asked_and_answered(data_dir):
    suite = make_suite(str(data_dir / "locomo"), chunk_chars=1_200)
    embedder, scores = make_embedder("static"), collections.defaultdict(list)
    for split in ("train", "test"):
        for index in range(suite.size(split)):
            env = run_expert(suite, split, index, embedder).env
            for asked, score in zip(env.questions(), env.question_scores()):
                scores[asked.category].append(score)
    assert sum(map(len, scores.values())) == 757
    assert np.mean(scores["adversarial"]) > 0.3
    assert np.mean(scores["temporal"]) > 0.2
