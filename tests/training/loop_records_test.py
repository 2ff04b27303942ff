"""Steps that are written down note what the update made of their tokens."""

import dataclasses

import numpy as np

from mempo_jax.training import loop
from mempo_jax.training.state import scheduled_values
from tests.rollout import probe_case
from tests.training.loop_probes_test import SCRIPT, make_trainer, step


def test_only_of_steps_that_are_recorded(monkeypatch):
    trainer = make_trainer(("ops_only", "counterfactual"))
    made = probe_case.play(SCRIPT, count=4)
    monkeypatch.setattr(probe_case, "play", lambda *given, **named: made)
    valid = np.array([[True, True], [False, False]])
    now = scheduled_values(0, trainer.settings)._replace(bonus_scale=0.5)
    monkeypatch.setattr(loop, "scheduled_values", lambda step, settings: now)
    for every, noted in ((0, False), (1, True)):
        log = dataclasses.replace(trainer.settings.log, trajectories_every=every)
        trainer.settings = dataclasses.replace(trainer.settings, log=log)
        evidence, _ = step(trainer, monkeypatch, valid)
        assert [each.credit is not None for each in made] == [noted] * 4
    assert [each.credit.trained for each in made] == [True, True, False, False]
    # All members did alike: what evidence says of the two writes is all that differs.
    assert evidence.leave_out[0, 0] > evidence.leave_out[0, 1]
    (_, good, worth), (_, bad, _), *_ = made[0].credit.by_op
    assert good > 0 > bad
    assert abs(good) < 0.51, "of two writes each stands one std from their mean"
    assert worth == good, "their group has no advantage"
    assert not any(row[2] for row in made[2].credit.by_op)


def test_which_steps_are_recorded():
    settings = make_trainer(("uniform",)).settings.log
    every = dataclasses.replace(settings, trajectories_every=3)
    assert [n for n in range(8) if every.records(n)] == [0, 3, 6]
    never = dataclasses.replace(settings, trajectories_every=0)
    assert not any(map(never.records, range(8)))
