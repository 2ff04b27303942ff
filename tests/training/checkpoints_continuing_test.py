"""What a run keeps: which checkpoint is the best, and what a continued run knows."""

import json
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.runs.run_dir import RunDir
from mempo_jax.settings import ConfigError
from mempo_jax.training import checkpoints

# Of the pairs of steps that end in a checkpoint the third is the best on average.
REWARDS = (0.1, 0.9, 0.3, 0.3, 1.0, 0.4, 0.8, 0.1, 0.2)
STEPS = len(REWARDS)


def make(folder, metric="reward", steps=STEPS):
    train = {"checkpoint_every": 2, "checkpoints_kept": 1, "steps": steps}
    train = SimpleNamespace(**train, checkpoint_best=metric)
    policy = SimpleNamespace(lora=SimpleNamespace(rank=0), ref_path="")
    trainer = SimpleNamespace(
        settings=SimpleNamespace(train=train, policy=policy),
        state={"w": jnp.zeros(4)},
        reference={"w": np.ones(2)},
        in_a_row={"skipped": 0, "empty": 0},
    )
    trainer.to_save = lambda: trainer.state
    trainer.put_back = lambda saved: setattr(trainer, "state", saved)
    folder.mkdir(exist_ok=True)
    return trainer, checkpoints.RunCheckpoints(trainer, {}, RunDir(str(folder)))


def go_on(folder, first, last, now=None, **how):
    """Steps ``first`` to ``last`` - 1, as a run takes them; saves at ``now`` too."""
    trainer, kept = make(folder, **how)
    with kept.closing():
        assert kept.restore() == first
        for step in range(first, last):
            figures = {"reward": REWARDS[step], "step": step}
            kept.note(step, figures)
            with (folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(figures) + "\n")
            trainer.state = {"w": jnp.full(4, step + 1.0)}
            trainer.in_a_row["empty"] = step
            kept.save_if_due(step + 1)
        if now:
            kept.save_now(now)
        return kept.put_back_best(), trainer, kept._checkpoints.steps()


@pytest.mark.parametrize("stops", [[], [1, 5, 6]])
def test_the_best_is_kept_beside_the_last_however_often_a_run_stops(tmp_path, stops):
    first = 0
    for now in stops:
        go_on(tmp_path, first, now, now=now)
        first = now
    best, trainer, steps = go_on(tmp_path, first, len(REWARDS))
    assert best == 6
    assert steps == [6, 9]
    assert trainer.state["w"].tolist() == [6.0] * 4


def test_without_a_metric_only_the_last_are_kept(tmp_path):
    best, trainer, steps = go_on(tmp_path, 0, len(REWARDS), metric="")
    assert (best, steps) == (None, [9])
    assert trainer.state["w"].tolist() == [9.0] * 4


def test_counters_go_on(tmp_path):
    go_on(tmp_path, 0, 4)
    trainer, kept = make(tmp_path)
    with kept.closing():
        assert kept.restore() == 4
    assert trainer.in_a_row == {"skipped": 0, "empty": 3}
    assert trainer.state["w"].tolist() == [4.0] * 4


def test_a_metric_that_there_is_not(tmp_path):
    with pytest.raises(ConfigError, match="checkpoint_best: expected a metric"):
        go_on(tmp_path, 0, 1, metric="rewrad")


def test_another_reference_and_an_earlier_end_are_refused(tmp_path):
    go_on(tmp_path, 0, 4)
    trainer, kept = make(tmp_path, steps=3)
    with pytest.raises(ConfigError, match=r"steps: expected at least 4"):
        kept.restore()
    trainer, _ = make(tmp_path)
    trainer.reference = {"w": np.zeros(2)}
    kept = checkpoints.RunCheckpoints(trainer, {}, RunDir(str(tmp_path)))
    with pytest.raises(ConfigError, match="with another reference policy"):
        kept.restore()
    assert trainer.state["w"].tolist() == [0.0] * 4
