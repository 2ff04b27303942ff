"""An environment of one's own without an expert, and the documented example."""

import pathlib

import numpy as np
import pytest

from mempo_jax.builders.suites import make_episodes, make_suite
from mempo_jax.config import from_config
from mempo_jax.envs import check_repeatable
from mempo_jax.envs.own_environments import own_suite
from mempo_jax.settings import ConfigError
from tests.envs.scripted_env import make_episode
from tests.experiments import tiny

DOORS = "tests.envs.doors:Doors"


def test_the_documentation_shows_the_example_as_it_is():
    root = pathlib.Path(__file__).parents[2]
    example = (root / "examples" / "own_environment.py").read_text()
    assert example in (root / "docs" / "environments.md").read_text()


def test_the_example_is_a_task_that_memory_solves():
    suite = own_suite(DOORS, 0)
    tasks = [suite.task("train", n) for n in range(30)]
    check_repeatable(suite, tasks)
    assert suite.task("test", 0).seed not in {task.seed for task in tasks}
    assert len({suite.make(t).reset(t.seed) for t in tasks}) == 3
    assert {"door", "corridor", "open", "which", "told"} <= set(suite.vocabulary())
    for task in tasks:
        env = suite.make(task)
        shown = env.reset(task.seed)
        for _ in range(3):
            result = env.step("")
        assert (result.observation, result.done) == ("which door ?", False)
        assert env.step(f"open {shown.split()[-1]}").reward == 1.0
        assert env.score() == 1.0


def test_its_demonstrations_run_through_whole_episodes():
    suite, rng = own_suite(DOORS, 0), np.random.default_rng(0)
    episode = make_episode(suite.make(suite.task("train", 0)))
    while not episode.done:
        episode.observe()
        episode.act(suite.expert()(episode.situation(), rng))
    assert episode.malformed == 0
    assert all(answer.startswith("open ") for answer in episode.answers)


def test_it_makes_the_tasks_of_a_run():
    config = tiny.get_config()
    config.env.name = DOORS
    settings = from_config(config.to_dict())
    suite = make_suite(settings)
    task = suite.task("test", 0)
    episode = make_episodes(suite, settings)(task, "x")
    assert episode.observe().user.endswith(suite.make(task).reset(task.seed))


class Lame:
    goal = ""

    def reset(self, seed):
        return ""


class Needy(Lame):
    def __init__(self, size):
        self.size = size


class Whole(Lame):
    moves = "open"  # a tuple was meant
    step = score = useful = None


NUMBER = 3


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("no_such_module:Name", "No module named 'no_such_module'"),
        (f"{__name__}:Nothing", "Nothing"),
        (f"{__name__}:NUMBER", "expected a class or a function.*got 3"),
        (f"{__name__}:Lame", "expected an Environment.*Lame lacks step, score, useful"),
        (f"{__name__}:Needy", "without arguments, got TypeError: .*'size'"),
        (f"{__name__}:Whole", "expected moves as a tuple of texts, got 'open'"),
    ],
)
def test_what_is_no_environment(path, expected):
    with pytest.raises(ConfigError, match=rf"config\.env\.name = '{path}'.*{expected}"):
        own_suite(path, 0)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("x = (", r"SyntaxError: '\(' was never closed"),
        ("raise RuntimeError('needs a display')", "RuntimeError: needs a display"),
    ],
)
def test_a_module_that_fails_while_it_is_imported(
    tmp_path, monkeypatch, content, expected
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "failing_environment.py").write_text(content)
    with pytest.raises(ConfigError, match=rf"it cannot be imported: {expected}"):
        own_suite("failing_environment:Name", 0)


@pytest.mark.parametrize("name", ["leger", ":", "x:", ""])
def test_names_that_are_none(name):
    config = tiny.get_config()
    config.env.name = name
    with pytest.raises(ConfigError, match=r"config\.env\.name: expected one of"):
        from_config(config.to_dict())


class Numbers:
    """Shows a number where a text belongs."""

    goal = ""

    def reset(self, seed):
        return 3

    def step(self, action, *, final=False):
        raise AssertionError("not reached")

    def score(self):
        return 0.0

    def useful(self):
        return frozenset()


def test_an_observation_that_is_no_text_is_refused_by_name():
    path = f"{__name__}:Numbers"
    with pytest.raises(ConfigError, match=r"Numbers'.*expected a text \(str\), got 3"):
        own_suite(path, 0).vocabulary()
