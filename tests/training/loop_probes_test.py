"""The run loop hands the evidence of probes to its updates, and says what they cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.builders.engines import make_run_mesh
from mempo_jax.builders.policies import Policy
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.rollout.assemble import assemble_trajectories
from mempo_jax.training.groups import Groups
from mempo_jax.training.loop import Trainer
from tests.experiments import tiny as config
from tests.rollout import probe_case, tiny

SCRIPT = [
    probe_case.WRITE.format("gold one"),
    probe_case.WRITE.format("two three"),
    probe_case.RECALL,
    probe_case.ANSWER,
]


def make_trainer(modes):
    c = config.get_config()
    c.credit.modes, c.mesh.data = modes, 1
    c.train.length_buckets = (tiny.LONGEST,)
    c.sampling.group_size = 2
    settings = from_config(c.to_dict())
    params = jax.tree.map(jnp.asarray, tiny.make_params())
    policy = Policy(tiny.CONFIG, tiny.MODEL, tiny.TOKENIZER, params)
    suite, mesh = make_suite(settings), make_run_mesh(settings)
    return Trainer(policy, suite, settings, mesh)


def step(trainer, monkeypatch, valid):
    """The evidence that a step's updates would read, and its figures."""
    received = []
    trajectories = probe_case.play(SCRIPT, count=4)
    arrays = assemble_trajectories(trajectories, 2, trainer._shapes)._replace(
        valid=valid
    )

    def minibatches(step, groups):
        received.append(groups.arrays.evidence)
        return []  # nothing to update on

    def score(params, rows, temperature):
        assert params is trainer.state.params
        assert temperature == trainer.settings.sampling.temperature
        texts = [tiny.TOKENIZER.decode(row) for row in rows.tokens]
        held = np.array(["0: gold one" in text for text in texts])[:, None]
        return np.where(held, -0.1, -3.0) * np.ones(rows.tokens.shape), None

    groups = Groups(trajectories, arrays, trajectories, {})
    monkeypatch.setattr(trainer.groups, "sample", lambda step: groups)
    monkeypatch.setattr(trainer, "_minibatches", minibatches)
    monkeypatch.setattr(trainer.programs, "score", score)
    figures, _ = trainer.step(0)
    return received[0], figures


@pytest.mark.parametrize("mode", ["attribution", "counterfactual"])
def test_a_step_probes_where_a_listed_mode_asks(monkeypatch, mode):
    trainer = make_trainer(("ops_only", mode))
    valid = np.array([[True, True], [False, False]])
    evidence, figures = step(trainer, monkeypatch, valid)
    assert evidence.leave_out.shape == (4, trainer._shapes.max_ops)
    if mode == "attribution":
        assert not evidence.leave_out.any()
        assert not any(key.startswith("probe") for key in figures)
        return
    np.testing.assert_allclose(evidence.leave_out[:2, 0], 2.9, rtol=1e-5)
    assert not evidence.leave_out[2:].any()
    assert figures["probe_variants"] == 3
    assert figures["probes_skipped"] == 0
    assert 0 < figures["probe_share"] <= 1
    assert figures["seconds_probing"] <= figures["seconds"]
