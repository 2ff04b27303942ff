"""Talking with a policy; with a real one: ``tests/agent_test.py``."""

import io
import re
import signal
import subprocess
import time

import pytest

from experiments import chat
from experiments.chat import OPTIONS
from experiments.launch import launch
from mempo_jax.builders.memory_models import MemoryModels
from mempo_jax.config import from_config
from mempo_jax.envs.ledger import LedgerSuite
from tests.agent_test import Engine
from tests.experiments.process import finish, start
from tests.policy_case import config, save_policy

SAID = ("<mem_write> one two</mem_write>", "<act> three</act>")


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return save_policy(tmp_path_factory.mktemp("made") / "policy")


def settings():
    return from_config(config().to_dict())


def talk(*argv):
    with pytest.raises(SystemExit) as ended:
        launch(chat.main, chat.OPTIONS, required=("policy",), argv=list(argv))
    return ended.value.code


@pytest.fixture
def scripted(policy, monkeypatch, capsys):
    """Talks with a policy that says ``SAID``; returns the lines of output and error."""

    def answer(policy, settings, mesh):
        return Engine(SAID), MemoryModels()

    monkeypatch.setattr("mempo_jax.agent.make_engine", answer)

    def run(text, *words):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        # Flags keep their values from one call to the next.
        defaults = ("--bank=", "--temperature=0", "--nogreedy")
        assert not talk(f"--policy={policy}", *defaults, *words)
        said = capsys.readouterr()
        return said.out.splitlines(), said.err.splitlines()

    return run


def test_lines_of_a_pipe_are_answered_and_ops_shown(scripted, tmp_path):
    words = (f"--bank={tmp_path / 'bank'}", "--goal=find gold")
    out, _ = scripted("one\n\n  \nfour", *words)
    assert out == [
        "  says   <mem_write> one two</mem_write><|end|>",
        '  op     turn 0, write, new, entries 0: "one two"',
        "reply: - (1 memory)",
        "  says   <act> three</act>",
        '  op     turn 0, act, noted, entries none: "three"',
        "reply: three (1 memory)",
    ]
    assert (tmp_path / "bank" / "meta.json").is_file()


def test_a_banner_says_what_the_policy_knows(scripted, policy):
    OPTIONS["goal"].value = None
    out, err = scripted("")
    assert out == []
    assert err[0].startswith(f"policy {policy}: nano, ")
    assert "made for the task ledger and knows" in err[0]
    topics = LedgerSuite(settings().env.ledger, settings().seed).world_topics
    shown = "\n".join(err)
    assert f"only {', '.join(topics)} were ever asked about" in shown
    assert re.search(
        r'lines such as "\w+ \w+ is \d+" and questions such as "what', shown
    )
    assert "numbers from 10 to 99" in shown
    assert "goal: answer the question; greedy; 0 memories" in shown


def test_commands_are_not_shown_to_the_policy(scripted):
    out, err = scripted("one\n/memory\n/help\n/mem x\n/quit\nfour", "--goal=find")
    assert sum(line.startswith("reply: ") for line in out) == 1
    assert "1 of 1 entries active, at most 4 at a time" in out
    assert any(re.search(r"active +recalled 0x +one two$", line) for line in out)
    assert any(line.startswith("/quit ") for line in out)
    assert err[-1] == "/mem: unknown command; /help lists them"


def test_an_entry_is_erased_from_memory_and_disk(scripted, tmp_path):
    words = (f"--bank={tmp_path / 'bank'}", "--goal=find")
    lines = (
        "one",
        "/purge",
        "/purge a",
        "/purge -1",
        "/purge 7",
        f"/purge {'9' * 5000}",
    )
    _, err = scripted("\n".join(lines), *words)
    refused = [line for line in err if line.startswith("/purge: ")]
    assert [("expected ids of entries" in line) for line in refused] == [
        *(True, True, True),
        *(False, False),
    ]
    assert "purge: expected ids below 1, got [7]" in refused[3]
    out, err = scripted("/purge 0\n/memory", *words)
    assert out[0] == "erased: 0"
    assert any(re.search(r"purged .*\(its text was erased\)$", line) for line in out)
    saved = [file.read_bytes() for file in (tmp_path / "bank").iterdir()]
    assert not any(b"one two" in data for data in saved)


def test_words_that_it_does_not_know_are_named(scripted):
    _, err = scripted("one Two zzz, 12\ntwo", "--goal=find qqq")
    [goal, line] = [each for each in err if each.startswith("warning: ")]
    assert goal == "warning: the goal has what is not in its vocabulary: qqq"
    assert line == "warning: not in its vocabulary: Two (near: two), zzz, 12"


def test_it_is_greedy_unless_a_temperature_is_given(scripted, monkeypatch):
    seen = []
    monkeypatch.setattr(
        Engine,
        "generate",
        lambda self, requests, *, temperature, top_p, top_k: (
            seen.append(temperature) or [self._one(request) for request in requests]
        ),
    )
    scripted("one")
    scripted("one", "--greedy")
    scripted("one", "--temperature=0.5")
    assert seen == [0.0, 0.0, 0.5]


def test_ctrl_c_amid_an_answer_takes_nothing_down_around_compiled_code(
    scripted, monkeypatch
):
    left = []

    def leave(code):
        left.append(code)
        raise SystemExit(0)

    def interrupt(self, requests, **how):
        raise KeyboardInterrupt

    monkeypatch.setattr("os._exit", leave)
    monkeypatch.setattr(Engine, "generate", interrupt)
    scripted("one")
    assert left == [130]


@pytest.mark.parametrize("text", ["", "one two three four five\n"])
def test_ctrl_c_leaves_without_a_traceback(policy, tmp_path, text):
    """While it waits for a line, and while it answers one."""
    process = start(
        tmp_path,
        "chat",
        f"--policy={policy}",
        stdin=subprocess.PIPE,
        # A shell that runs the tests in the background has their children ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    for line in process.stderr:
        if line.startswith("The first reply"):
            break
    process.stdin.write(text)
    process.stdin.flush()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130
    assert "Traceback" not in err
    assert "Fatal" not in err


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
    both = refused(f"--policy={policy}", "--greedy", "--temperature=1")
    assert "--greedy and --temperature: give one of them" in both
