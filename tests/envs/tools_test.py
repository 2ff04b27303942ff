import random
import threading

import numpy as np
import pytest

from mempo_jax.envs.tools import HungToolError, Tool, ToolConfig


def settings(timeout_s=10.0, retries=1, deterministic=True):
    return ToolConfig(timeout_s, retries, deterministic)


class Flaky:
    """Fails so many times, then answers."""

    def __init__(self, failures, error=None):
        self.left, self.calls = failures, 0
        self.error = error or RuntimeError("boom\nboom")

    def __call__(self, text):
        self.calls += 1
        if self.calls <= self.left:
            raise self.error
        return f"found {text}"


def test_an_answer_comes_through():
    result = Tool(settings())(Flaky(0), "it")
    assert (result.value, result.error) == ("found it", "")


def test_failures_are_repeated_and_then_told():
    flaky = Flaky(2)
    assert Tool(settings(retries=2))(flaky, "it").value == "found it"
    assert flaky.calls == 3
    flaky = Flaky(9)
    result = Tool(settings(retries=2))(flaky, "it")
    assert result.value is None
    assert result.error == "RuntimeError: boom boom"
    assert flaky.calls == 3


def test_long_messages_are_cut():
    result = Tool(settings(retries=0))(Flaky(1, ValueError("x" * 900)), "it")
    assert len(result.error) < 190


def test_a_hung_call_is_left_behind_and_repeated():
    calls, wake = [], threading.Event()

    def slow():
        calls.append(1)
        if len(calls) == 1:
            wake.wait(20)
        return "late or not"

    assert Tool(settings(0.1))(slow).value == "late or not"
    assert len(calls) == 2
    wake.set()


def test_a_tool_that_always_hangs_is_told():
    wake = threading.Event()
    result = Tool(settings(0.05))(wake.wait, 20)
    assert result.error == "no answer within 0.05 s"
    wake.set()


def test_a_tool_with_a_state_is_not_called_again_after_it_hung():
    wake, calls = threading.Event(), []

    def hang():
        calls.append(1)
        wake.wait(20)

    with pytest.raises(HungToolError, match=r"config\.env\.tools\.timeout_s"):
        Tool(settings(0.05), stateful=True)(hang)
    assert len(calls) == 1
    wake.set()


def draw():
    return random.random(), float(np.random.rand())


def test_deterministic_tools_draw_by_seed_and_by_nothing_else():
    one, other = Tool(settings(), seed=3), Tool(settings(), seed=3)
    apart = Tool(settings(), seed=4)
    mixed = []
    for _ in range(3):
        mixed.append(one(draw).value)
        random.random()  # what others draw
        np.random.rand(5)
        apart(draw)
    assert [other(draw).value for _ in range(3)] == mixed
    assert len(set(mixed)) == 3
    assert apart(draw).value not in mixed


def test_what_a_tool_draws_leaves_the_global_numbers_alone():
    random.seed(5)
    np.random.seed(5)
    expected = draw()
    random.seed(5)
    np.random.seed(5)
    tool = Tool(settings(retries=0), seed=1)
    tool(lambda: random.seed(9))
    tool(Flaky(1), "it")
    assert draw() == expected


def test_other_tools_draw_as_they_like():
    random.seed(5)
    first = Tool(settings(deterministic=False), seed=3)(draw).value
    second = Tool(settings(deterministic=False), seed=3)(draw).value
    assert first != second


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ((0.0, 1, True), "timeout_s"),
        ((float("nan"), 1, True), "timeout_s"),
        ((1.0, -1, True), "retries"),
        ((1.0, 11, True), "retries"),
    ],
)
def test_impossible_settings(values, field):
    with pytest.raises(ValueError, match=rf"config\.env\.tools\.{field}: expected"):
        ToolConfig(*values)


def test_the_longest_wait():
    assert settings(2.0, 3).longest_s == 8.0
