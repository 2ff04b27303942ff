"""Every field of ``config.env`` in a row, and probes of worlds of their own."""

import dataclasses
import pathlib
import random
import sys
import tempfile
import threading
from types import ModuleType
from unittest import mock

from mempo_jax.builders.suites import call_workers, make_suite
from mempo_jax.envs.tools import Tool
from tests.config_walk_probes import demonstrations, tasks
from tests.envs import dialogue_story
from tests.envs.adapters.games import Corridor

NAMED = {"env.ledger.relevance": "named"}
LONG = {"env.ledger.min_turns": 10, "env.ledger.max_turns": 10}
BABI = {"env.name": "babi", "env.data_dir": "DATA", "env.babi.tasks": (1,)}
TALKS = {"env.name": "dialogue"}
GAME = {"env.name": "gymnasium", "env.adapter.id": "Corridor-v0"}
# field: (another value, probe, given)
ROWS = {
    "env.name": ("babi", "tasks", {"env.data_dir": "DATA", "env.babi.tasks": (1,)}),
    "env.data_dir": ("OTHER", "tasks", BABI),
    "env.step_timeout_s": (0.001, "slow_step", {}),
    "env.tools.timeout_s": (0.01, "tools", {}),
    "env.tools.retries": (2, "tools", {}),
    "env.tools.deterministic": (False, "tools", {}),
    "env.ledger.min_turns": (3, "tasks", {}),
    "env.ledger.max_turns": (9, "tasks", {}),
    "env.ledger.relevant_topics": (5, "tasks", {}),
    "env.ledger.max_relevant_facts": (1, "tasks", LONG),
    "env.ledger.relevance": ("named", "tasks", {}),
    "env.ledger.min_delay": (4, "tasks", LONG),
    "env.ledger.max_delay": (1, "tasks", LONG),
    "env.ledger.correction_rate": (0.8, "tasks", LONG),
    "env.ledger.write_rate": (0.0, "demonstrations", {}),
    "context.rolling_lines": (1, "demonstrations", LONG | {"context.rule": "rolling"}),
    "env.ledger.thought": ("match", "demonstrations", NAMED),
    "env.babi.tasks": ((1, 2), "tasks", BABI),
    "env.babi.max_train_lines": (2, "tasks", BABI),
    "env.babi.write_rate": (0.0, "demonstrations", BABI),
    "env.dialogue.chunk_chars": (40, "dialogue", TALKS),
    "env.dialogue.questions_per_task": (1, "dialogue", TALKS),
    "env.dialogue.categories": ((4,), "dialogue", TALKS),
    "env.dialogue.test_share": (0.2, "dialogue", TALKS),
    "env.dialogue.write_rate": (0.0, "dialogue", TALKS),
    "env.adapter.id": ("Corridor-v1", "adapter", GAME),
    "env.adapter.options": (("doors=2",), "adapter", GAME),
    "env.adapter.goal": ("walk", "adapter", GAME),
    "env.adapter.return_low": (-1.0, "adapter", GAME),
    "env.adapter.return_high": (2.0, "adapter", GAME),
    "env.adapter.moves": (("jump",), "adapter", GAME),
}


def tools(settings):
    """What comes of a call that fails, one that takes its time, and one that draws."""
    made, calls = settings.env.tools, []

    def fails():
        calls.append("failed")
        raise ValueError

    Tool(made)(fails)
    slow = Tool(made)(threading.Event().wait, 0.05)
    random.seed(9)
    return calls, slow.error, Tool(made, seed=3)(random.random).value


def dialogue(settings):
    """The tasks and the demonstrations of three short conversations."""
    talks = [dialogue_story.talk(sample_id=f"own-{n}") for n in range(3)]
    for number, talk in enumerate(talks):
        talk["conversation"]["session_1"][0]["text"] = f"I bought {number} lamps."
    with tempfile.TemporaryDirectory() as folder:
        path = dialogue_story.write(pathlib.Path(folder), *talks)
        env = dataclasses.replace(settings.env, data_dir=path)
        settings = dataclasses.replace(settings, env=env)
        return tasks(settings), demonstrations(settings)


def adapter(settings):
    """Four games of gymnasium, in whose place stands a small module."""
    gymnasium = ModuleType("gymnasium")
    gymnasium.error = ModuleType("error")
    gymnasium.error.Error = LookupError
    made = []

    def make(name, disable_env_checker, **options):
        made.append(name)
        return Corridor(**options)

    gymnasium.make = make
    with mock.patch.dict(sys.modules, {"gymnasium": gymnasium}):
        suite = make_suite(settings)
        seen = []
        for n in range(4):
            task = suite.task("train", n)
            env = suite.make(task)
            seen += [env.reset(task.seed), env.goal, env.step("wait"), env.score()]
            seen += [env.step(f"open {door}") for door in range(3)]
            seen.append(env.score())
        return made, seen, suite.vocabulary()


def workers(settings):
    """How many environments are called at a time."""
    return call_workers(settings)
