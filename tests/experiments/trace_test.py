"""Tracing: every op of three trajectories, in lines that fit; and the cold start."""

import re

import pytest

from experiments import cold_start, trace
from experiments.launch import launch
from experiments.transcript import transcript
from mempo_jax.envs import EpisodeStatus, Reward, Task
from mempo_jax.memory import OpRecord
from mempo_jax.rollout.trajectory import Trajectory
from tests.experiments.process import TINY, python_m


@pytest.fixture(scope="module")
def policy(tmp_path_factory, compiled):
    out = tmp_path_factory.mktemp("made") / "policy"
    code, said, err = python_m(compiled, "cold_start", TINY, f"--out={out}")
    assert code == 0, err
    assert str(out) in said
    return out


def ops(out):
    """(kind, outcome, entries, reward) of each op line."""
    form = r"^  op     turn \d+, (\w+), (\w+), entries (.*?), reward (-?\d\.\d\d)"
    return re.findall(form, out, flags=re.MULTILINE)


def test_a_policy_is_traced(compiled, policy):
    code, out, err = python_m(compiled, "trace", TINY, f"--policy={policy}")
    assert (code, err) == (0, "")
    assert f"policy: {policy}" in out
    assert len(re.findall("^=== trajectory", out, flags=re.MULTILINE)) == 3
    assert len(ops(out)) >= 3 * 2
    assert "  sees   turn 0/30 memory 0: " in out
    assert max(map(len, out.splitlines())) <= 100


def test_without_a_policy_one_is_made(compiled, policy):
    code, out, err = python_m(compiled, "trace", TINY, "--task=3")
    assert code == 0
    assert "no --policy: making one by a cold start of 30 steps" in err
    assert "task ledger/test/3" in out
    assert len(ops(out)) >= 3 * 2


def test_the_policy_of_a_run_is_found(capsys, tmp_path):
    def refused(*said):
        with pytest.raises(SystemExit) as caught:
            launch(trace.main, trace.OPTIONS, argv=[TINY, *said])
        assert caught.value.code == 2
        return capsys.readouterr().err

    assert "expected a run with policy/" in refused(f"--workdir={tmp_path}")
    (tmp_path / "cold_start").mkdir()
    assert f"'{tmp_path}/cold_start': " in refused(f"--workdir={tmp_path}")
    (tmp_path / "policy").mkdir()
    assert f"'{tmp_path}/policy': " in refused(f"--workdir={tmp_path}")
    assert "give one of them" in refused("--policy=x", f"--workdir={tmp_path}")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (["--out=configs"], "--out=configs: expected a new or an empty directory"),
        (["--out=/dev/null/x"], "--out=/dev/null/x: [Errno 20]"),
        (
            ["--out=x", "--config.train.cold_start_steps=0"],
            "config.train.cold_start_steps: expected at least 1",
        ),
        ([], "--out is missing"),
    ],
)
def test_a_cold_start_that_cannot_be(capsys, said, message):
    cold_start.OPTIONS["out"].value = None
    with pytest.raises(SystemExit) as caught:
        launch(
            cold_start.main,
            cold_start.OPTIONS,
            required=("config", "out"),
            argv=[TINY, *said],
        )
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def record(turn, kind, outcome, ids, **more):
    return OpRecord(turn=turn, kind=kind, outcome=outcome, entry_ids=ids, **more)


def test_each_op_is_told_whole():
    long = "word " * 60
    made = Trajectory(
        task=Task("ledger", "test", 0, 1),
        sample=0,
        status=EpisodeStatus.DONE,
        failure=None,
        goal="answer",
        segments=[],
        log=[
            record(0, "write", "new", (0,), text=long),
            record(0, "malformed", "error", (), error="unclosed_tag"),
            record(1, "write", "merged", (3, 0), text="b", evicted=(1, 2)),
            record(2, "answer", "noted", (), text="42"),
        ],
        observations=["first\nsecond line", "x", "what?"],
        actions=["a", "b", "c"],
        answers=["42"],
        turn_reward=[0.0, 0.0, 1.0],
        turn_observation=[0, 1, 2],
        useful=frozenset(),
        questions=(),
        reward=Reward({"task": 1.0}, {"task": 1.0}, 0.95),
        bank_size=1,
        rebuilds=0,
        tokens_total=0,
        tokens_peak=0,
        seconds_recall=[],
    )
    text = "\n".join(transcript([made], temperature=0.9))
    assert max(map(len, text.splitlines())) <= 100
    assert " ".join(long.split()) in " ".join(text.split())
    for expected in (
        "turn 0, malformed, error, entries none, reward 0.00, error unclosed_tag",
        'turn 1, write, merged, entries 3, 0, reward 0.00, evicts 1, 2: "b"',
        'turn 2, answer, noted, entries none, reward 1.00: "42"',
        "sees   first\n         second line\n",
        "answers: '42'; reward 0.95 (task 1.00)",
    ):
        assert expected in text
