import collections

import numpy as np
import pytest

from mempo_jax.envs import Situation
from mempo_jax.envs.ledger import NAMES, TOPICS, LedgerConfig, LedgerSuite


def settings(**changes):
    values = {
        "min_turns": 6,
        "max_turns": 12,
        "relevant_topics": 3,
        "max_relevant_facts": 4,
        "relevance": "hidden",
        "min_delay": 3,
        "max_delay": 40,
        "correction_rate": 0.0,
        "write_rate": 0.6,
        "thought": "topics",
    }
    return LedgerConfig(**{**values, **changes})


def play(suite, index, split="train"):
    """(goal, observations up to the question, index of each) of one task."""
    task = suite.task(split, index)
    env = suite.make(task)
    seen = [env.reset(task.seed)]
    while not seen[-1].startswith("what"):
        result = env.step("")
        assert not result.done
        assert result.reward == 0
        seen.append(result.observation)
    return env, seen


def asked(question):
    what, is_, who, topic = question.split()
    assert (what, is_) == ("what", "is")
    return who, topic


def truth(seen):
    """Position and value of the last fact about what is asked."""
    about = asked(seen[-1])
    found = [
        (i, f.split()[-1])
        for i, f in enumerate(seen[:-1])
        if tuple(f.split()[:2]) == about
    ]
    return found[-1]


def test_questions_concern_only_the_topics_of_the_world():
    suite = LedgerSuite(settings(), 5)
    topics = {asked(play(suite, i)[1][-1])[1] for i in range(150)}
    assert topics == set(suite.world_topics)
    assert len(topics) == 3


def test_worlds_differ_in_their_topics():
    worlds = {LedgerSuite(settings(), seed).world_topics for seed in range(12)}
    assert len(worlds) > 6


def test_hidden_topics_show_in_nothing_but_the_question():
    suite = LedgerSuite(settings(), 1)
    goals = set()
    counts = collections.Counter()
    for index in range(400):
        env, seen = play(suite, index)
        goals.add(env.goal)
        counts.update(f.split()[1] for f in seen[:-1])
    assert goals == {"answer the question"}
    # Each relevant topic is told about as often as each other one.
    shares = [counts[t] / sum(counts.values()) for t in TOPICS]
    assert max(shares) < 1.6 * min(shares)


def test_named_topics_stand_in_the_goal_and_vary():
    suite = LedgerSuite(settings(relevance="named"), 1)
    goals = set()
    for index in range(40):
        env, seen = play(suite, index)
        named = set(env.goal.removeprefix("answer about ").split(" , "))
        assert asked(seen[-1])[1] in named
        assert len(named) == 3
        assert env.useful() == {
            i for i, f in enumerate(seen[:-1]) if f.split()[1] in named
        }
        goals.add(env.goal)
    assert len(goals) > 10


def test_length_and_delay_keep_their_bounds():
    suite = LedgerSuite(settings(min_delay=3, max_delay=5), 0)
    lengths, delays = set(), set()
    for index in range(200):
        _, seen = play(suite, index)
        lengths.add(len(seen))
        delays.add(len(seen) - 1 - truth(seen)[0])
    assert lengths == set(range(6, 13))
    assert delays == {3, 4, 5}


def test_useful_facts_are_those_of_relevant_topics_and_limited():
    suite = LedgerSuite(settings(), 3)
    for index in range(100):
        env, seen = play(suite, index)
        topics = [f.split()[1] for f in seen[:-1]]
        wanted = {i for i, t in enumerate(topics) if t in suite.world_topics}
        assert env.useful() == wanted
        assert 1 <= len(wanted) <= 4
        assert truth(seen)[0] in wanted


def test_without_corrections_nothing_is_told_twice():
    suite = LedgerSuite(settings(min_turns=40, max_turns=40), 0)
    for index in range(20):
        _, seen = play(suite, index)
        things = [tuple(f.split()[:2]) for f in seen[:-1]]
        assert len(set(things)) == len(things) == 39


def test_a_correction_changes_the_answer_but_never_too_late():
    suite = LedgerSuite(settings(correction_rate=0.6, min_turns=12), 2)
    corrected = 0
    for index in range(300):
        env, seen = play(suite, index)
        told = {}
        for text in seen[:-1]:
            thing, value = tuple(text.split()[:2]), text.split()[-1]
            assert ("now" in text.split()) == (thing in told)
            assert told.get(thing) != value
            told[thing] = value
        at, value = truth(seen)
        assert len(seen) - 1 - at >= 3
        assert env.step(value, final=True).reward == 1
        corrected += "now" in seen[at]
    assert corrected > 50


def test_only_the_right_answer_scores():
    suite = LedgerSuite(settings(), 0)
    env, seen = play(suite, 0)
    value = truth(seen)[1]
    result = env.step(f" {value} ", final=True)
    assert (result.reward, result.done, env.score()) == (1.0, True, 1.0)
    for wrong in ("", "unknown", value[::-1] + "1", f"{value} or 12"):
        env, _ = play(suite, 0)
        result = env.step(wrong, final=True)
        assert (result.reward, result.done, env.score()) == (0.0, True, 0.0)


def test_an_answer_before_the_question_scores_nothing():
    suite = LedgerSuite(settings(), seed=0)
    for index in range(8):
        env, seen = play(suite, index)
        gold = env.questions()[0].answer
        for early in range(len(seen) - 1):
            env.reset(suite.task("train", index).seed)
            for _ in range(early):
                env.step("")
            result = env.step(gold, final=True)
            assert (result.reward, result.done, env.score()) == (0.0, True, 0.0)


def test_passing_over_the_question_ends_with_nothing():
    env, _ = play(LedgerSuite(settings(), 0), 0)
    result = env.step("")
    assert (result.reward, result.done, env.score()) == (0.0, True, 0.0)


def test_forty_turn_tasks_with_any_number_of_topics_can_be_drawn():
    for relevant in range(1, len(TOPICS)):
        most = min(48, (len(TOPICS) - relevant) * len(NAMES) + 2)
        hard = settings(
            min_turns=most,
            max_turns=most,
            relevant_topics=relevant,
            max_relevant_facts=1,
        )
        for index in range(5):
            assert len(play(LedgerSuite(hard, relevant), index)[1]) == most


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("relevance", "secret"),
        ("min_delay", 0),
        ("min_delay", 6),
        ("max_delay", 2),
        ("max_turns", 5),
        ("max_turns", 49),
        ("relevant_topics", 0),
        ("relevant_topics", 8),
        ("max_relevant_facts", 0),
        ("max_relevant_facts", 37),
        ("correction_rate", 1.1),
        ("write_rate", -0.1),
        ("thought", "aloud"),
        ("thought", "match"),  # where the goal names nothing
    ],
)
def test_impossible_settings_name_their_field(field, value):
    with pytest.raises(ValueError, match=rf"config\.env\.ledger\.{field}: .*{value}"):
        settings(**{field: value})


def test_too_many_turns_for_few_irrelevant_topics_are_refused():
    with pytest.raises(ValueError, match=r"max_turns: expected at most 14"):
        settings(relevant_topics=7, max_turns=15)


def test_splits_and_indices_are_different_tasks_and_repeat():
    suite = LedgerSuite(settings(), 0)
    stories = [
        tuple(play(suite, i, s)[1]) for s in ("train", "test") for i in range(30)
    ]
    assert len(set(stories)) == 60
    again = LedgerSuite(settings(), 0)
    assert tuple(play(again, 7, "test")[1]) == stories[37]


def test_the_expert_writes_every_topic_equally_often():
    suite = LedgerSuite(settings(write_rate=0.6), 0)
    expert, rng = suite.expert(), np.random.default_rng(0)
    for topic in TOPICS:
        made = [
            expert(Situation(f"ann {topic} is 17", (), ()), rng) for _ in range(2_000)
        ]
        share = np.mean(["<mem_write>" in text for text in made])
        assert abs(share - 0.6) < 0.05  # 4.5 standard errors
        assert all(text.startswith(f"<think> {topic}</think>") for text in made)


@pytest.mark.parametrize("thought", ["topics", "match"])
def test_the_expert_repeats_the_topics_that_a_goal_names_and_obeys_none(thought):
    suite = LedgerSuite(settings(relevance="named", thought=thought), 0)
    env, rng = suite.make(suite.task("train", 0)), np.random.default_rng(0)
    env.reset(3)
    named = [word for word in env.goal.split() if word in TOPICS]
    assert len(named) == suite.settings.relevant_topics
    written = {True: 0, False: 0}
    for topic in TOPICS:
        for _ in range(500):
            seen = Situation(f"ann {topic} is 17", (), (), env.goal)
            act = suite.expert()(seen, rng)
            said = [*named, topic]
            if thought == "match":
                said.append("yes" if topic in named else "no")
            assert act.startswith(f"<think> {' '.join(said)}</think>")
            written[topic in named] += "<mem_write>" in act
    shares = written[True] / (500 * 3), written[False] / (500 * 5)
    assert abs(shares[0] - shares[1]) < 0.06


def test_the_expert_recalls_then_answers_what_it_found():
    expert, rng = LedgerSuite(settings(), 0).expert(), np.random.default_rng(0)
    first = expert(Situation("what is ann phone", (), ()), rng)
    assert first == '<think> phone</think><mem_recall k="1"> ann phone</mem_recall>'
    recalled = ("ben phone 33", "ann phone 21")
    answer = expert(Situation("what is ann phone", recalled, ("ann phone",)), rng)
    assert answer.endswith("</think><answer> 21</answer>")
    nothing = expert(Situation("what is ann phone", (), ("ann phone",)), rng)
    assert nothing.endswith("<answer> unknown</answer>")


def test_the_vocabulary_covers_all_that_is_said():
    suite = LedgerSuite(settings(relevance="named", correction_rate=0.5), 0)
    words = {*suite.vocabulary(), ","}
    expert, rng = suite.expert(), np.random.default_rng(0)
    for index in range(40):
        env, seen = play(suite, index)
        for text in (env.goal, *seen):
            assert set(text.split()) <= words
        told = expert(Situation(seen[0], (), ()), rng)
        plain = told.replace("<", " <").replace(">", "> ").split()
        assert {w for w in plain if not w.startswith("<")} <= words


def test_a_question_knows_its_answer_and_the_fact_that_holds_it():
    suite = LedgerSuite(settings(correction_rate=0.5), 0)
    corrected = 0
    for index in range(60):
        env, seen = play(suite, index)
        [question] = env.questions()
        last, value = truth(seen)
        assert seen[question.observation] == seen[-1]
        assert (question.support, question.answer) == ({last}, value)
        assert question.kind == "answer"
        assert env.step(question.answer, final=True).reward == 1.0
        about = asked(seen[-1])
        corrected += sum(tuple(f.split()[:2]) == about for f in seen[:-1]) > 1
    assert corrected > 5
