"""Two processes, once: what they tell each other, and where they put arrays."""

import json
import subprocess
import sys

import pytest

from benchmarks import _processes
from mempo_jax.distributed import hosts
from mempo_jax.settings import ConfigError
from tests.experiments.process import environment


@pytest.fixture(scope="module")
def both(compiled):
    """What each of two processes with four devices saw in ``hosts_case``."""
    env = environment(compiled, devices=4)
    started = _processes.start("tests.distributed.hosts_case", (), 2, env)
    ended = _processes.finish(started)
    for code, _, err in ended:
        assert code == 0, err
    return [json.loads(out.splitlines()[-1]) for _, out, _ in ended]


def test_what_one_process_made_reaches_all(both):
    for number, seen in enumerate(both):
        told = seen["told"]
        assert told["gathered"] == [0, 1]
        assert told["large"] == [True, True]
        assert told["agreed"] == [False, True, True, True]
        assert told["from_primary"] == 10
        assert told["on_primary"] == (None if number else "kept")


def test_shares_are_neighbours_and_nearly_equal(both):
    shares = zip(*(seen["told"]["shares"] for seen in both))
    assert list(shares) == [([], []), ([], [0]), ([0, 1], [2, 3, 4])]


def test_an_error_in_one_process_ends_the_work_of_all(both):
    [name, text] = both[0]["told"]["failed"]
    assert both[1]["told"]["failed"] == [name, text]
    assert name == "ProcessFailed"
    lines = text.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-2:] == ["ValueError: odd", "error: process 1 of 2 failed"]
    for seen in both:
        assert seen["told"]["unfit"] == ["ConfigError", "no such file"]
        assert seen["told"]["stopped"] == ["Preempted", "now"]
        assert seen["told"]["interrupted"] == ["Interrupted", "now"]


def test_a_reward_function_that_fails_in_one_process_stops_all(both):
    for seen in both:
        [name, text] = seen["sampled"]["failed"]
        assert name == "ProcessFailed"
        assert "ZeroDivisionError: a reward of this process alone" in text
        assert "call_reward_function" in text, "the traceback of the other process"


def test_each_runs_its_groups_and_all_hold_all(both):
    assert [seen["sampled"]["own"] for seen in both] == [[0], [1, 2]]
    for seen in both:
        kept = [[task, sample] for task in range(3) for sample in range(4)]
        assert seen["sampled"]["kept"] == kept


@pytest.mark.parametrize(
    ("shape", "local", "split"),
    [
        ("(2, 2, 2)", (1, 2, 2), [8, 24]),
        ("(8, 1, 1)", (4, 1, 1), [16, 48]),
        ("(1, 1, 8)", (1, 1, 4), [16, 12]),
    ],
)
def test_parameters_of_a_pod_are_whole_on_each_host(both, shape, local, split):
    for seen in both:
        placed = seen["placed"][shape]
        assert tuple(placed["local"].values()) == local
        assert placed["split"] == split
        for name in ("back", "to_local", "layer", "whole"):
            assert placed[name], name
        assert len(placed["pieces"]) == 4, "48 x 16 floats, 1,000 bytes at a time"


def test_what_several_processes_cannot_share_is_refused(both):
    for seen in both:
        [name, text] = seen["refused"]["left"]
        assert name == "ConfigError"
        assert "config.mesh: a mesh of 4 x 1 x 1 leaves devices of some" in text
        [_, text] = seen["refused"]["slots"]
        assert "config.sampling.slots: expected a multiple of 8" in text


def test_one_process_talks_to_nobody():
    assert (hosts.count(), hosts.primary()) == (1, True)
    assert hosts.share([1, 2]) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        hosts.gather(lambda: 1 / 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("", 2, 0), "expected --coordinator=HOST:PORT, where process 0 listens"),
        (("", None, 1), "leave all three out for one process"),
        (("auto", 2, None), "finds the number of processes itself"),
        (("here", 2, 0), "--coordinator=here: expected HOST:PORT"),
        (("here:x", 2, 0), "expected HOST:PORT"),
        (("here:99999", 1, 0), "expected HOST:PORT.*a port from 1 to 65535"),
        (("here:80", 0, 0), "--processes=0: expected at least 1"),
        (("here:80", 2, None), "expected --processes=N and --process=I"),
        (("here:80", None, 0), "expected --processes=N and --process=I"),
        (("here:80", 2, 2), "--process=2: expected 0 to 1"),
    ],
)
def test_half_given_launches_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        hosts.start(*given)


def test_others_that_do_not_come_are_told_of_in_one_line(tmp_path):
    code = "from mempo_jax.distributed import hosts as p; p.start(*{}, connect_s=1)"
    given = f"localhost:{_processes.free_port()}", 2, 1
    ended = subprocess.run(
        [sys.executable, "-c", code.format(given)],
        cwd=_processes.ROOT,
        env=environment(tmp_path, devices=1),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith(
        f"error: --coordinator={given[0]}: expected all 2 processes there within 1 s"
    )
