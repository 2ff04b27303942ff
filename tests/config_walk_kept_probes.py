"""The probes of ``config_walk_test`` for what a run writes and keeps."""

from types import SimpleNamespace

import jax
import numpy as np

from mempo_jax.builders.suites import make_suite
from mempo_jax.distributed.hosts import Stop
from mempo_jax.runs.run_dir import RunDir
from mempo_jax.training import cold_start as cold_starts
from mempo_jax.training import run
from mempo_jax.training.checkpoints import Checkpoints, RunCheckpoints
from mempo_jax.types import TrainState

# as in the table of ``config_walk_test``
ROWS = {
    "train.cold_start_checkpoint_every": (1, "kept_steps", {}),
    "train.checkpoint_every": (2, "files", {"train.checkpoints_kept": 9}),
    "train.checkpoints_kept": (1, "files", {}),
    "train.checkpoint_best": ("loss", "files", {}),
    "train.steps": (3, "files", {}),
    "log.tensorboard": (True, "files", {}),
    "log.wandb_project": ("x", "files", {}),
    "log.trajectories_every": (0, "files", {}),
}


def files(settings, config, folder):
    """Names and lines of what the run loop writes, around a trainer that does not."""
    state = jax.device_put(TrainState({"w": np.zeros(2)}, (), np.zeros((), np.int32)))
    trainer = SimpleNamespace(
        settings=settings, state=state, reference={"w": np.zeros(2)}, in_a_row={}
    )
    trainer.to_save = lambda: state
    trainer.run = lambda first, last: (({"loss": 1.0}, []) for _ in range(first, last))
    place = RunDir(str(folder))
    kept = RunCheckpoints(trainer, config, place)
    run._train(trainer, config, place, kept, Stop(), lambda *_: None)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    depth = len(folder.parts) + 2
    names = {p.parts[len(folder.parts) : depth] for p in folder.rglob("*")}
    return lines, sorted(n for n in names if n[0] != "tensorboard" or len(n) == 1)


def kept_steps(settings, monkeypatch, shared):
    """The steps of a cold start behind which its state is saved."""
    saved = []

    class Still:
        def __init__(self, *given, **named):
            pass

        def trained(self, state):
            return state.params

        def supervised_zeros(self):
            return None

        def supervised_accumulate(self, params, sums, rows):
            return None

        def apply(self, state, sums):
            return state, {"loss": 0.0}

    def save(self, state, record):
        saved.append(record["step"])

    monkeypatch.setattr(cold_starts, "TrainPrograms", Still)
    monkeypatch.setattr(Checkpoints, "save", save)
    shared.runs += 1
    kept = shared.folder / f"run{shared.runs}"
    suite = make_suite(settings)
    cold_starts.cold_start(shared.policy, suite, settings, shared.mesh, kept=kept)
    return saved
