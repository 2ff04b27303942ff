"""An agent at work: tasks of any kind, one bank over all of them, on disk or not."""

import functools
import signal
import subprocess
import sys

import pytest

from mempo_jax import Agent, TextTask
from mempo_jax.builders.memory_models import MemoryModels
from mempo_jax.envs import EpisodeStatus, Task
from mempo_jax.memory import (
    Bank,
    BankConfig,
    BankConflictError,
    BankFileError,
    make_embedder,
)
from mempo_jax.settings import ConfigError
from tests.envs.scripted_env import ScriptedEnv
from tests.experiments.process import ROOT, environment, finish, start
from tests.policy_case import config, save_policy
from tests.rollout.tiny import ScriptedEngine

SAID = tuple(
    f"<mem_write> {text}</mem_write>"
    for text in ("one", "two", "three", "four", "five", "one two", "three gold")
)
KILLED = """
import os, signal, sys
from mempo_jax import agent as agents
from tests import agent_test
from tests.envs.scripted_env import ScriptedEnv

agents.make_engine = agent_test.scripted_engine
agent = agents.Agent.from_pretrained(sys.argv[1], bank=sys.argv[2])
for task in range(2):
    agent.run(ScriptedEnv())
    print(len(agent.bank.entries), flush=True)

def die(episode):
    if episode.turn == 2:
        os.kill(os.getpid(), signal.SIGKILL)

agent.run(ScriptedEnv(), on_turn=die)
"""


TOGETHER = """
import sys
from mempo_jax import agent as agents
from tests import agent_test
from tests.envs.scripted_env import ScriptedEnv

agents.make_engine = agent_test.scripted_engine
agent = agents.Agent.from_pretrained(sys.argv[1], bank=sys.argv[2])
for task in range(6):
    agent.run(ScriptedEnv())
    print(agent.bank.trajectory_id.removeprefix("run-"), flush=True)
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return save_policy(tmp_path_factory.mktemp("made") / "policy")


class Engine(ScriptedEngine):
    def set_params(self, params):
        self.params = params


def scripted_engine(policy, settings, mesh):
    """In place of a real one: each turn writes the next text."""
    return Engine(SAID, slots=settings.sampling.slots), MemoryModels()


@pytest.fixture
def make(monkeypatch, policy):
    """Makes an agent that says ``SAID``, turn by turn."""
    monkeypatch.setattr("mempo_jax.agent.make_engine", scripted_engine)
    return functools.partial(Agent.from_pretrained, policy)


@pytest.fixture
def agent(make):
    return make()


def texts(bank):
    return [entry.text for entry in bank.entries]


def test_a_bank_goes_on_from_task_to_task(agent):
    sizes = []
    for _ in range(3):
        before = texts(agent.bank)
        made = agent.run(ScriptedEnv())
        assert made.status is not EpisodeStatus.FAILED
        assert texts(agent.bank)[: len(before)] == before
        sizes.append(len(agent.bank.entries))
        assert {record.turn for record in made.log} <= set(range(6))
    assert 0 < sizes[0] < sizes[2]
    assert agent.bank.trajectory_id == "run-2"
    assert {entry.source for entry in agent.bank.entries} == {"run-0", "run-1"}


def test_greedy_runs_repeat_and_others_do_not(policy):
    def said(**how):
        return agent.run("one two", **how).actions

    agent = Agent.from_pretrained(policy)
    assert said(greedy=True) == said(greedy=True)
    assert said() != said()


def test_a_task_of_the_config_and_one_of_another(agent):
    task = agent.suite.task("test", 3)
    made = agent.run(task)
    assert made.task == task
    assert made.questions
    with pytest.raises(
        ValueError, match=r"expected a task of 'ledger'.*got babi/test/0"
    ):
        agent.run(Task("babi", "test", 0, 0))


def test_a_text_is_shown_once_and_several_in_turn(agent):
    made = agent.run("one two")
    assert "one two" in made.observations[0]
    assert made.task.suite == "TextTask"
    task = TextTask(["one", "two three"], goal="find")
    made = agent.run(task)
    assert made.goal == "find"
    assert 1 <= len(task.replies) <= 2
    with pytest.raises(ValueError, match="at least one text"):
        TextTask([])


def test_each_turn_is_told_once_its_ops_are_done(agent):
    turns = []
    made = agent.run(
        ScriptedEnv(),
        on_turn=lambda episode: turns.append(
            (episode.turn, episode.actions[-1], len(episode.bank.log))
        ),
    )
    assert [text for _, text, _ in turns] == made.actions
    assert turns[-1][2] == len(made.log)


def test_a_trajectory_prints_what_happened_and_its_repr_is_short(agent):
    made = agent.run(TextTask(["one", "two three"], goal="find"))
    lines = str(made).splitlines()
    assert lines[0] == "task TextTask/run/0, goal: find; done"
    shown = "\n".join(lines)
    for turn, text in enumerate(("one", "two")):
        assert f"turn {turn}/8 memory {turn}" in shown
        assert f"  says   <mem_write> {text}</mem_write>" in shown
        assert f'write, new, entries {turn}, reward 0.00: "{text}"' in shown
    assert lines[-2].startswith("  end    answers: no answer; reward ")
    assert max(map(len, lines)) <= 100
    total = f"{made.reward.total:.2f}"
    assert repr(made) == (
        f"<Trajectory TextTask/run/0, sample 0: done, turns 2, ops 2, reward {total}>"
    )


def test_a_fault_of_the_environment_costs_its_task_only(agent):
    class Broken(ScriptedEnv):
        def step(self, action, *, final=False):
            raise KeyError("broken")

    agent.run(ScriptedEnv())
    before = texts(agent.bank)
    assert "KeyError" in agent.run(Broken()).failure
    assert texts(agent.bank)[: len(before)] == before
    assert agent.run(ScriptedEnv()).failure is None


def test_a_bank_on_disk_is_found_again(make, tmp_path):
    agent = make(bank=tmp_path / "bank")
    for _ in range(2):
        agent.run(ScriptedEnv())
    again = make(bank=str(tmp_path / "bank"))
    assert again.bank.entries == agent.bank.entries
    again.run(ScriptedEnv())
    assert again.bank.trajectory_id == "run-2"
    assert make(bank=again.bank).bank is again.bank


def test_a_bank_stays_in_its_directory_if_the_current_one_changes(
    make, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    agent = make(bank="notes")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    agent.run(ScriptedEnv())
    assert (tmp_path / "notes").is_dir()
    assert list((tmp_path / "other").iterdir()) == []


def test_a_bank_that_the_context_rule_would_never_fill_is_refused(make, tmp_path):
    other = config()
    other.context.rule = "rolling"
    assert len(make(config=other).bank) == 0
    with pytest.raises(ConfigError, match="rolling"):
        make(config=other, bank=tmp_path / "bank")


def test_a_bank_of_other_settings_is_taken_and_what_changed_is_named(make, tmp_path):
    for place, embedder, size in (("other", "static", 0), ("small", "hashing", 9)):
        made = Bank(BankConfig(capacity=size), make_embedder(embedder), "run-6")
        for step in range(6):
            made.write(f"{place} fact {step} of {step * 7919}", step=step)
        made.save(tmp_path / place)
    with pytest.warns(UserWarning, match=r"embedder is 'hashing' and was 'static': 6"):
        assert len(make(bank=tmp_path / "other").bank) == 4
    with pytest.warns(UserWarning, match=r"capacity is 4 and was 9.*; 2 entries over"):
        agent = make(bank=tmp_path / "small")
    assert len(agent.bank) == 4
    agent.run(ScriptedEnv())
    agent.bank.check_valid()
    assert agent.bank.trajectory_id == "run-7"
    assert make(bank=tmp_path / "small").bank.entries == agent.bank.entries
    (tmp_path / "small" / "meta.json").write_text("{")
    with pytest.raises(BankFileError, match=r"meta\.json"):
        make(bank=tmp_path / "small")


def test_agents_with_one_bank_go_on_from_each_other(make, tmp_path):
    first, second = (make(bank=tmp_path / "bank") for _ in range(2))
    for agent in (first, second, second, first):
        agent.run(ScriptedEnv())
        agent.bank.check_valid()
    assert first.bank.trajectory_id == "run-3"
    assert second.bank.trajectory_id == "run-2"
    assert {"run-0", "run-2"} <= {entry.source for entry in first.bank.entries}
    saved = Bank.load(tmp_path / "bank", make_embedder("hashing"))
    assert saved.entries == first.bank.entries
    assert {entry.text for entry in second.bank.entries} <= set(texts(saved))


def test_agents_of_two_processes_lose_nothing(policy, tmp_path, compiled):
    """Both run at the same time; every task's bank begins with what was saved."""
    env = environment(compiled, devices=1) | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", TOGETHER, str(policy), str(tmp_path / "bank")]
    both = [
        subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=240)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    # Each task has a number of its own: none was replaced by another.
    assert sorted(map(int, said[0] + said[1])) == list(range(12))
    saved = Bank.load(tmp_path / "bank", make_embedder("hashing"))
    saved.check_valid()
    assert saved.trajectory_id == "run-11"


def test_what_was_changed_by_hand_and_by_another_agent_is_not_lost(make, tmp_path):
    agent, other = (make(bank=tmp_path / "bank") for _ in range(2))
    agent.bank.write("by hand", step=0)
    other.run(ScriptedEnv())
    for act in (lambda: agent.run(ScriptedEnv()), lambda: agent.purge([0])):
        with pytest.raises(BankConflictError, match=r"agent\.bank was changed here"):
            act()
    assert texts(agent.bank) == ["by hand"]
    saved = Bank.load(tmp_path / "bank", make_embedder("hashing"))
    assert saved.entries == other.bank.entries


def test_an_agent_erases_for_good(make, tmp_path):
    agent, other = (make(bank=tmp_path / "bank") for _ in range(2))
    agent.run(ScriptedEnv())
    secret = agent.bank.entries[0].text
    with pytest.raises(BankConflictError, match="nothing was erased"):
        other.purge([0])  # ids that it has not seen
    assert other.purge([0]).purged == (0,)
    for file in (tmp_path / "bank").iterdir():
        assert f'"{secret}"'.encode() not in file.read_bytes()
    agent.run(ScriptedEnv())
    assert agent.bank.entries[0].text == ""
    alone = make()
    alone.run(ScriptedEnv())
    assert alone.purge([0]).purged == (0,)


def test_where_the_config_is_found(tmp_path, policy):
    run = tmp_path / "run"
    save_policy(run / "policy", with_config=False)
    with pytest.raises(ConfigError, match=r"expected mempo_config\.json in it"):
        Agent.from_pretrained(run / "policy")
    other = config()
    other.memory.capacity = 7
    made = Agent.from_pretrained(run / "policy", config=other)
    assert made.settings.memory.capacity == 7
    (run / "config.json").write_text('{"architectures": []}')
    with pytest.raises(ConfigError, match="expected the config of a run"):
        Agent.from_pretrained(run / "policy")
    with pytest.raises(ConfigError, match="is not a Hugging Face model directory"):
        Agent.from_pretrained(tmp_path, config=other)


def test_a_killed_process_loses_no_task_that_was_saved(policy, tmp_path, compiled):
    """Three tasks in processes of their own; the first is killed within its third."""
    bank = tmp_path / "bank"
    command = [sys.executable, "-c", KILLED, str(policy), str(bank)]
    env = environment(compiled, devices=1) | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    first, second = map(int, done.stdout.split())
    saved = Bank.load(bank, make_embedder("hashing"))
    saved.check_valid()
    assert first < len(saved.entries) == second
    words = (f"--policy={policy}", f"--bank={bank}", "--greedy")
    talk = start(compiled, "chat", *words, stdin=subprocess.PIPE)
    talk.stdin.write("one two three\n\nfour\n")
    code, out, err = finish(talk)
    assert code == 0, err
    assert out.count("  says ") >= out.count("reply: ") == 2
    assert "  op     turn 0, " in out
    after = Bank.load(bank, make_embedder("hashing"))
    assert after.entries[: len(saved.entries)][0].text == saved.entries[0].text
    assert after.trajectory_id == "run-3"


def test_it_prints_where_its_policy_and_bank_are(make, tmp_path):
    assert repr(make()).endswith("bank=in memory)")
    assert str(tmp_path / "b") in repr(make(bank=tmp_path / "b"))
