"""What a finished episode leaves: its hygiene; faults are told apart from errors."""

import pytest

from mempo_jax.envs import EnvironmentFault, EpisodeStatus, Task
from mempo_jax.rollout.collect import failed, fault, finished, truth_of
from mempo_jax.rollout.segments import SegmentBuilder
from tests.envs.scripted_env import make_episode
from tests.rollout.tiny import TOKENIZER

TASK = Task("scripted", "train", 0, 0)


def test_the_bank_is_measured_at_the_end():
    episode = make_episode()
    for action in (
        "<mem_write> one</mem_write>",
        "<mem_write> two</mem_write>",
        "",
        "",
    ):
        episode.observe()
        episode.act(action)
    made = finished(
        TASK, 3, episode, SegmentBuilder(TOKENIZER), truth_of(episode, None, 5.0)
    )
    assert (made.sample, made.status) == (3, EpisodeStatus.DONE)
    assert made.hygiene.active == made.bank_size == 2
    assert made.hygiene.junk_share == 1.0
    assert made.hygiene.probed == 0, "texts are not compared in training"


def test_a_failure_has_no_reward():
    episode = make_episode()
    made = finished(
        TASK, 0, episode, SegmentBuilder(TOKENIZER), truth_of(episode, "it broke", 5.0)
    )
    assert (made.status, made.failure, made.reward) == (
        EpisodeStatus.FAILED,
        "it broke",
        None,
    )
    assert failed(TASK, 1, "x").hygiene is None


def test_only_faults_cost_a_trajectory():
    assert fault(EnvironmentFault("x")) == "EnvironmentFault: x"
    with pytest.raises(KeyError):
        fault(KeyError("ours"))
