"""Episodes whose turns end at different times, and turns that are never sampled."""

import pytest

from mempo_jax.envs import EpisodeStatus
from mempo_jax.rollout.sampler import SamplingFault
from tests.rollout.tiny import ScriptedEngine, decoding, jobs, make_collector

TEXTS = ("one two", "<mem_write> one</mem_write>", "two", "<answer> gold</answer>")


class EachAtItsPace(ScriptedEngine):
    """Gives back one request at a time, the newest first."""

    def __init__(self, script, slots=8):
        super().__init__(script, slots)
        self.under_way, self.cancelled, self.together = [], 0, []

    def submit(self, requests, **sampling):
        taken = {request.slot for request in self.under_way}
        assert not taken & {request.slot for request in requests}
        self.under_way += requests

    def wait(self):
        if not self.under_way:
            return []
        self.together.append(len(self.under_way))
        request = self.under_way.pop()
        return [(request, self._one(request))]

    def cancel(self):
        self.cancelled += bool(self.under_way)
        self.under_way = []


def essence(trajectories):
    return [(t.sample, t.actions, t.observations, t.status) for t in trajectories]


def test_trajectories_do_not_depend_on_when_their_turns_come():
    lockstep = make_collector(ScriptedEngine(TEXTS)).run(jobs(8), decoding())
    engine = EachAtItsPace(TEXTS)
    made = make_collector(engine).run(jobs(8), decoding())
    assert essence(made) == essence(lockstep)
    assert len({t.actions[-1] for t in made}) == 1
    # While one episode goes through all of its turns, seven wait for theirs.
    assert engine.together[:4] == [8] * 4


def test_an_episode_that_enters_takes_the_place_of_one_that_ended():
    engine = EachAtItsPace(TEXTS, slots=3)
    made = make_collector(engine).run(jobs(9), decoding())
    assert [t.sample for t in made] == list(range(9))
    assert max(engine.together) == 3
    assert engine.together.count(3) > 20
    assert engine.cancelled == 0


class Lossy(ScriptedEngine):
    """Cannot serve the second turn of one slot."""

    def _one(self, request):
        made = super()._one(request)
        if request.slot == 2 and self._turns[2] == 2:
            return SamplingFault("no answer after 3 tries")
        return made


def test_a_turn_that_could_not_be_sampled_costs_its_trajectory_alone():
    engine = Lossy(TEXTS)
    made = make_collector(engine).run(jobs(8), decoding())
    assert [t.status is EpisodeStatus.FAILED for t in made] == [
        i == 2 for i in range(8)
    ]
    assert made[2].failure == "SamplingFault: no answer after 3 tries"
    assert not made[2].valid
    assert made[2].actions == ["one two<|end|>"]


def test_an_error_leaves_no_turn_under_way():
    engine = EachAtItsPace(TEXTS)

    def make(trajectory):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make_collector(engine).run(jobs(8), decoding(), on_done=make)
    assert engine.cancelled == 1
    assert engine.under_way == []
