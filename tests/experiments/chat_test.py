"""Talking with a policy: what is refused. The talk itself: ``tests/agent_test.py``."""

import io

import pytest

from experiments import chat
from experiments.launch import launch
from mempo_jax.builders.memory_models import MemoryModels
from tests.agent_test import Engine
from tests.policy_case import save_policy

SAID = ("<mem_write> one two</mem_write>", "<act> three</act>")


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return save_policy(tmp_path_factory.mktemp("made") / "policy")


def talk(*argv):
    with pytest.raises(SystemExit) as ended:
        launch(chat.main, chat.OPTIONS, required=("policy",), argv=list(argv))
    return ended.value.code


def test_lines_of_a_pipe_are_answered_and_ops_shown(
    policy, monkeypatch, capsys, tmp_path
):
    def scripted(policy, settings, mesh):
        return Engine(SAID), MemoryModels()

    monkeypatch.setattr("mempo_jax.agent.make_engine", scripted)
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\n  \nfour"))
    words = (f"--policy={policy}", f"--bank={tmp_path / 'bank'}", "--goal=find gold")
    assert not talk(*words)
    out = capsys.readouterr().out.splitlines()
    assert out == [
        "  says   <mem_write> one two</mem_write><|end|>",
        '  op     turn 0, write, new, entries 0: "one two"',
        "reply: - (1 memories)",
        "  says   <act> three</act>",
        '  op     turn 0, act, noted, entries none: "three"',
        "reply: three (1 memories)",
    ]
    assert (tmp_path / "bank" / "meta.json").is_file()


def test_what_is_refused(policy, capsys, tmp_path):
    def refused(*argv):
        assert talk(*argv) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    assert "--policy is missing" in refused("--policy=")
    nowhere = refused(f"--policy={tmp_path}", "--bank=")
    assert "expected mempo_config.json in it" in nowhere
    (tmp_path / "bank").mkdir()
    (tmp_path / "bank" / "meta.json").write_text("{")
    damaged = refused(f"--policy={policy}", f"--bank={tmp_path / 'bank'}")
    assert "meta.json" in damaged
