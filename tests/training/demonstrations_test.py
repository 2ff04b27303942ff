import json

import numpy as np
import pytest

from mempo_jax.envs import EpisodeStatus, Situation
from mempo_jax.envs.ledger import LedgerSuite
from mempo_jax.memory import Bank, BankConfig
from mempo_jax.models.nano import build_nano
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.settings import ConfigError
from mempo_jax.training.demonstrations import (
    demonstrate,
    recorded,
    records,
    scripted,
    write_demonstrations,
)
from tests.envs.ledger_test import settings
from tests.envs.scripted_env import EMBEDDER, ScriptedEnv, context, limits, make_episode
from tests.rollout.tiny import TOKENIZER, ScriptedEngine, decoding, jobs, make_collector

SUITE = LedgerSuite(settings(write_rate=1.0), 0)
LEDGER_TOKENIZER = build_nano(
    ["turn 0/0 memory 0: \nrecalled nothing\n0: ", "use memory"],
    [*SUITE.vocabulary(), *map(str, range(31))],
)


def by_script(*texts):
    left = iter(texts)
    return lambda situation, rng: next(left, "")


def actions(segments, tokenizer=TOKENIZER):
    """Texts of the action tokens by turn."""
    turns = {}
    for segment in segments:
        for token, turn, action in zip(
            segment.tokens, segment.turn_id, segment.is_action
        ):
            if action:
                turns.setdefault(turn, []).append(token)
    return [tokenizer.decode(turns[turn]) for turn in sorted(turns)]


def ledger_episode(task):
    episode = make_episode(
        SUITE.make(task), bank=Bank(BankConfig(), EMBEDDER), settings=limits()
    )
    episode.task = task
    return episode


def test_turns_end_as_sampled_ones_do():
    texts = [
        " one",
        "<mem_write> one</mem_write>",
        "<mem_recall> one</mem_recall>",
        "",
        "<answer></answer>",
        "<answer> gold</answer> two",
    ]
    episode = make_episode(ScriptedEnv(["one"] * 9))
    made = actions(demonstrate(episode, by_script(*texts), TOKENIZER, 0))
    assert made == [
        " one<|end|>",
        "<mem_write> one</mem_write><|end|>",
        "<mem_recall> one</mem_recall>",
        "<|end|>",
        "<answer></answer>",
        "<answer> gold</answer>",
    ]
    assert episode.done


def test_turns_end_as_the_template_ends_them_whatever_else_stops():
    several = Tokenizer(TOKENIZER._fast, [TOKENIZER.pad_id])
    assert several.stop_ids[0] == TOKENIZER.pad_id
    made = demonstrate(
        make_episode(ScriptedEnv(["one"] * 9)), by_script(" one"), several, 0, 1
    )
    assert actions(made) == [" one<|end|>"]


def test_segments_and_masks_are_those_of_sampling():
    script = [
        "<mem_write> one</mem_write> two",
        "",
        "<mem_recall> one</mem_recall>",
        "<act> two</act>",
        "<answer> gold</answer>",
    ]
    [sampled] = make_collector(ScriptedEngine(script)).run(jobs(1), decoding())
    episode = make_episode(
        ScriptedEnv(("one two", "three", "four five", "one", "two three four")),
        settings=limits(max_turns=6),
    )
    shown = demonstrate(episode, by_script(*script), TOKENIZER, 0)
    assert [(s.tokens, s.is_action, s.turn_id) for s in shown] == [
        (s.tokens, s.is_action, s.turn_id) for s in sampled.segments
    ]


def test_experts_run_through_real_episodes_to_the_right_answer():
    tasks = [SUITE.task("train", i) for i in range(8)]
    episodes = {}

    def make(task):
        episodes[task.index] = ledger_episode(task)
        return episodes[task.index]

    made = list(scripted(make, tasks, SUITE.expert(), LEDGER_TOKENIZER))
    assert len(made) == 8
    for episode, segments in zip(episodes.values(), made):
        assert episode.done
        assert episode.reward().total == pytest.approx(
            1 + episode.reward().weighted["write_cost"]
        )
        assert actions(segments, LEDGER_TOKENIZER) == episode.actions


def test_demonstrations_repeat_and_differ_by_task():
    suite = LedgerSuite(settings(write_rate=0.5), 0)
    tasks = [suite.task("train", i) for i in range(6)]

    def run():
        made = scripted(ledger_episode, tasks, suite.expert(), LEDGER_TOKENIZER)
        return [[s.tokens for s in segments] for segments in made]

    assert run() == run()
    assert len({str(tokens) for tokens in run()}) == 6


def test_an_overflow_ends_the_demonstration():
    episode = make_episode(rules=context(rule="append", max_context_tokens=30))
    [segment] = demonstrate(episode, by_script(*["one"] * 9), TOKENIZER, 0)
    assert episode.status is EpisodeStatus.OVERFLOW
    assert segment.is_action[-1]


def write_lines(tmp_path, *lines):
    path = tmp_path / "demonstrations.jsonl"
    raw = [s if isinstance(s, bytes) else json.dumps(s).encode() for s in lines]
    path.write_bytes(b"\n".join(raw) + b"\n")
    return str(path)


def read(path):
    return list(recorded(path, SUITE.task, ledger_episode, LEDGER_TOKENIZER))


def test_what_a_run_recorded_is_demonstrated_again(tmp_path):
    task = SUITE.task("train", 3)
    shown = demonstrate(ledger_episode(task), SUITE.expert(), LEDGER_TOKENIZER, 0)
    turns = [{"observation": "", "action": a} for a in actions(shown, LEDGER_TOKENIZER)]
    path = write_lines(
        tmp_path,
        {"task": task.id, "seed": task.seed, "turns": turns},
        b"",
        {"task": task.id, "turns": turns[:2]},
    )
    first, second = read(path)
    assert [s.tokens for s in first] == [s.tokens for s in shown]
    # A recording that stops early shows what it holds, and no idle turns behind it.
    assert actions(second, LEDGER_TOKENIZER) == [t["action"] for t in turns[:2]]


GOOD = {"task": "ledger/train/0", "turns": [{"action": "x"}]}
DAMAGED = [
    (b"{", "expected a JSON object in one line"),
    (b"\xff\xfe", "expected a JSON object in one line"),
    (b"[" * 100_000, "expected a JSON object in one line"),
    (b"[]", r"expected a JSON object, got \[\]"),
    (b"3", "expected a JSON object, got 3"),
    ({"turns": []}, "field task: expected 'suite/split/index', there is 'turns'"),
    (GOOD | {"task": "ledger/train"}, "field task: expected 'suite/split/index'"),
    (GOOD | {"task": "ledger/train/one"}, "field task: expected 'suite/split/index'"),
    (GOOD | {"task": "ledger/train/²"}, "field task: expected 'suite/split/index'"),
    (GOOD | {"task": 7}, "field task: expected 'suite/split/index', got 7"),
    (GOOD | {"task": "ledger/test/0"}, r"field task: expected a task of split train"),
    (GOOD | {"task": "babi/train/0"}, r"field task: .*like ledger/train/0"),
    (GOOD | {"seed": 1}, r"field seed: expected \d+.*got 1; set config\.env"),
    ({"task": "ledger/train/0"}, "field turns: expected a list of turns"),
    (GOOD | {"turns": None}, "field turns: expected a list of turns, got None"),
    (GOOD | {"turns": []}, "field turns: expected at least one turn"),
    (GOOD | {"turns": ["x"]}, r"field turns\[0\]: expected an object, got 'x'"),
    (GOOD | {"turns": [{"text": "x"}]}, r"field turns\[0\]\.action: expected a text"),
    (
        GOOD | {"turns": [{"action": "x"}, {"action": 3}]},
        r"field turns\[1\]\.action: expected a text, got 3",
    ),
    (
        GOOD | {"turns": [{"action": "<answer> x</answer>"}, {"action": "x"}]},
        r"field turns: expected at most 1, behind which ledger/train/0 ends, got 2",
    ),
]


@pytest.mark.parametrize(("line", "expected"), DAMAGED)
def test_a_damaged_line_is_told_with_file_number_and_field(tmp_path, line, expected):
    path = write_lines(tmp_path, GOOD, line, GOOD)
    with pytest.raises(
        ConfigError, match=rf"demonstrations\.jsonl, line 2.*{expected}"
    ):
        read(path)


def test_what_the_expert_shows_is_written_and_read_back(tmp_path):
    tasks = [SUITE.task("train", n) for n in range(5)]
    path = tmp_path / "demonstrations.jsonl"
    lines = records(ledger_episode, tasks, SUITE.expert(), LEDGER_TOKENIZER)
    assert write_demonstrations(path, lines) == 5
    record = json.loads(path.read_text().splitlines()[0])
    assert (record["task"], record["score"]) == ("ledger/train/0", 1.0)
    assert "<mem_write>" in record["turns"][0]["action"]
    assert "<|end|>" not in path.read_text()
    made = scripted(ledger_episode, tasks, SUITE.expert(), LEDGER_TOKENIZER)
    assert [tokens(segments) for segments in read(str(path))] == [
        tokens(segments) for segments in made
    ]


def tokens(segments):
    return [(s.tokens, s.is_action, s.turn_id) for s in segments]


def test_no_file(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.train\.demonstrations_path"):
        read(str(tmp_path / "none.jsonl"))


def test_the_scripted_policy_sees_observation_recalls_and_goal():
    seen = []

    def policy(situation, rng):
        seen.append(situation)
        assert isinstance(rng, np.random.Generator)
        return "<mem_recall> one</mem_recall>" if len(seen) == 1 else "<act> x</act>"

    env = ScriptedEnv(["first", "second"])
    demonstrate(make_episode(env), policy, TOKENIZER, 0)
    assert seen == [
        Situation("first", (), (), env.goal),
        Situation("first", (), ("one",), env.goal, turn=1),
        Situation("second", (), (), env.goal, turn=2),
    ]
