"""Checkpoints of a run: written in the background, checked when read.

A checkpoint is a directory named by its step. Orbax writes it under another name and
renames it when it is complete, so a run killed at any moment leaves only complete ones
behind. What is lost or altered later is found on reading: the arrays by the checksums
of their storage; the record beside them (metadata, and the arrays' names and shapes) by
a checksum of its own.

A run's checkpoint holds the state after a complete step: parameters, optimiser, the
number of the step, which keys everything to come (tasks, samples, order of
minibatches), counters, the config, and which other weights belong to it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import math
import pathlib
import shutil
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from mempo_jax.distributed import hosts
from mempo_jax.runs.metrics_writer import read_metric_rows
from mempo_jax.runs.run_dir import RunDir, identity
from mempo_jax.settings import ConfigError
from mempo_jax.training.loop import Trainer

DAMAGED = "damaged"  # a checkpoint that cannot be read is renamed to this and its step
TEMPORARY = ".orbax-checkpoint-tmp"  # in the name of what Orbax has not finished


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, or none in the directory can be read."""


class Restored(NamedTuple):
    """What a checkpoint holds.

    Attributes:
      state: as it was saved, on the target's shardings.
      metadata: as JSON gives it back.
    """

    state: Any
    metadata: dict[str, Any]


class Checkpoints:
    """The last ``keep`` checkpoints of one run and the best one, in one directory.

    The best has the highest score, and is the earliest of equals; a checkpoint without
    a score is never the best. With several processes, each makes one on the same
    directory and makes the same calls.

    Attributes:
      directory: where they are, as an absolute path.
    """

    def __init__(self, directory: str | pathlib.Path, *, keep: int):
        """Opens or makes ``directory``; leftovers of a killed save are removed.

        Args:
          directory: of these checkpoints alone.
          keep: how many of the last ones to keep; the best stays besides.

        Raises:
          ConfigError: ``keep`` is below 1.
        """
        if keep < 1:
            raise ConfigError(f"checkpoints to keep: expected at least 1, got {keep}")
        self.directory = pathlib.Path(directory).absolute()
        self._scores: dict[int, float] = {}
        self._saving = 0
        preserve = _LastAndBest(keep, self._scores)  # sees scores that come later
        self._manager = ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=preserve,
                cleanup_tmp_directories=True,
                # A directory that cannot be written raises at once: otherwise Orbax's
                # other threads would wait minutes for it.
                async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
            ),
            item_names=("state", "record"),
        )
        # Or the next save would remove the best: this process has not seen its score.
        for step in self.steps():
            self._note_score(step)

    def steps(self) -> list[int]:
        """The steps of the checkpoints present, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, state: Any, metadata: Mapping[str, Any]) -> bool:
        """Starts to save ``state``; returns as soon as it may be donated or changed.

        Args:
          state: a pytree of arrays.
          metadata: what JSON can hold: an int ``"step"``, which names the checkpoint;
            a float ``"score"`` if it may be the best; config, identity of the
            reference and the like.

        Returns:
          False if this step is there already (nothing is written), else True.

        Raises:
          ValueError: no int ``"step"``, or one before the newest checkpoint's.
          CheckpointError: this one, or the one before it, cannot be written.
        """
        step = metadata.get("step")
        if not isinstance(step, int):
            raise ValueError(f'metadata["step"]: expected an int, got {step!r}')
        self.wait()  # one save at a time, so that an error belongs to a known step
        newest = self._manager.latest_step()
        if newest is not None and step <= newest:
            # A run that is stopped right after a regular checkpoint asks for it twice.
            if step == newest:
                return False
            raise ValueError(
                f"checkpoint of step {step}: {self.directory} holds step {newest};"
                " restore before saving, or use another directory"
            )
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            record=ocp.args.JsonSave(make_record(state, metadata)),
        )
        # Kept for ``wait``, where a save that fails later is reported.
        self._saving = step
        score = metadata.get("score")
        if score is not None:
            # Before the save: that is when Orbax asks what to preserve.
            self._scores[step] = score
        with self._writing():
            return self._manager.save(step, args=args)

    def restore(self, target: Any) -> Restored | None:
        """Reads the newest undamaged checkpoint, onto the target's shardings.

        Args:
          target: the state's pytree of arrays or ``jax.ShapeDtypeStruct``, each with
            the sharding that its array is to have.

        Returns:
          None if there is no checkpoint. Damaged ones newer than the one returned are
          named in one warning and renamed to ``damaged-STEP``.

        Raises:
          ConfigError: the checkpoint holds other arrays than ``target``.
          CheckpointError: there are checkpoints, and all are damaged.
        """
        damaged: dict[int, str] = {}
        with _quiet_asyncio():
            for step in reversed(self.steps()):
                restored, why = None, "another process could not read it"
                try:
                    restored = self._read(step, target)
                # Another config is no damage, and must not rename checkpoints that are
                # whole.
                except ConfigError:
                    raise
                except Exception as error:  # damage takes any form: JSON, zarr, files
                    why = f"{type(error).__name__}: {_first_line(error)}"
                # All processes must take the same step: one failure fails it for all.
                if hosts.agree(restored is None):
                    damaged[step] = why
                    continue
                self._set_aside(damaged, step)
                return restored
        if damaged:
            raise CheckpointError(
                f"no checkpoint in {self.directory} can be read:"
                f" {_describe(damaged)}; start in another directory, or remove it"
            )
        return None

    def best(self) -> int | None:
        """The step of the best checkpoint present; None if none has a score."""
        return _best(self.steps(), self._scores)

    def read(self, step: int, target: Any) -> Restored:
        """Reads the checkpoint of a step that is present.

        Args:
          step: which one.
          target: see ``restore``.

        Raises:
          ConfigError: it holds other arrays than ``target``.
          CheckpointError: it is damaged.
        """
        try:
            with _quiet_asyncio():
                return self._read(step, target)
        except ConfigError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {_first_line(error)}"
            raise CheckpointError(
                f"{self.directory}: {_describe({step: reason})}"
            ) from error

    def wait(self) -> None:
        """Returns when the save in progress is on disk.

        Raises:
          CheckpointError: it could not be written; earlier ones are still there.
        """
        with self._writing():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Finishes the save in progress and frees the threads."""
        try:
            self.wait()
        finally:
            self._manager.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns any failure to write into a CheckpointError, and removes the rest."""
        try:
            yield
        except Exception as error:  # a full disk takes any form: OSError, ValueError
            if jax.process_index() == 0:  # what is half written fills the disk
                for half in self.directory.glob(f"*{TEMPORARY}*"):
                    shutil.rmtree(half, ignore_errors=True)
            self._manager.reload()  # looks again at what is there
            left = self.steps()
            raise CheckpointError(
                f"the checkpoint of step {self._saving} could not be written to "
                f"{self.directory}: {_first_line(error)}; "
                + (f"that of step {left[-1]} is kept" if left else "there is no other")
                + "; make room there, and let this process write there"
            ) from error

    def _note_score(self, step: int) -> None:
        """Reads the score of a checkpoint that an earlier process wrote."""
        args = ocp.args.Composite(record=ocp.args.JsonRestore())
        try:
            record = self._manager.restore(step, args=args).record
            score = record["metadata"].get("score")
        except Exception:  # damaged: then it is not the best, and restore() says so
            return
        if isinstance(score, float):
            self._scores[step] = score

    def _read(self, step: int, target: Any) -> Restored:
        args = ocp.args.Composite(record=ocp.args.JsonRestore())
        # The record comes first: it is small, and refuses arrays that do not fit before
        # any of them is read.
        record = self._manager.restore(step, args=args).record
        if record["checksum"] != checksum(record):
            raise ValueError("its record was altered")
        check_same_arrays(record["arrays"], target, self.directory / str(step))
        args = ocp.args.Composite(state=ocp.args.StandardRestore(target))
        state = self._manager.restore(step, args=args).state
        return Restored(state, record["metadata"])

    def _set_aside(self, damaged: Mapping[int, str], used: int) -> None:
        """Renames damaged checkpoints, so that their steps can be saved again."""
        if not damaged:
            return
        warnings.warn(
            f"{self.directory}: {_describe(damaged)}; continuing from step {used}",
            stacklevel=3,
        )

        def move() -> None:
            for step in damaged:
                aside = self.directory / f"{DAMAGED}-{step}"
                # This step may have been damaged and set aside before; a rename needs
                # the name.
                shutil.rmtree(aside, ignore_errors=True)
                (self.directory / str(step)).rename(aside)

        hosts.on_primary(move)
        # In every process, since each one remembers the list of steps.
        self._manager.reload()


class RunCheckpoints:
    """The checkpoints of a training run: the last ones, and the best by a metric.

    A checkpoint's score is the mean of the metric ``train.checkpoint_best`` over the
    ``train.checkpoint_every`` steps before it. One saved between, because the run was
    stopped, has no score, so that a continued run finds the same best as an
    uninterrupted one.
    """

    def __init__(self, trainer: Trainer, config: Mapping[str, Any], run_dir: RunDir):
        """Opens the run's directory of checkpoints; reads no state yet.

        Args:
          trainer: whose state is saved and restored.
          config: the run's config, as JSON has it.
          run_dir: the run's directory.
        """
        self._trainer, self._config, self._run_dir = trainer, dict(config), run_dir
        train = trainer.settings.train
        self._every, self._last = train.checkpoint_every, train.steps
        self._metric = train.checkpoint_best
        self._values: dict[int, float] = {}
        # Once: the digest reads all weights, and these never change.
        self._fixed = _identities(trainer)
        self._checkpoints = Checkpoints(
            run_dir.checkpoints, keep=train.checkpoints_kept
        )

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """At its end the save in progress is finished and the threads are freed."""
        with contextlib.closing(self._checkpoints):
            yield

    def restore(self) -> int:
        """Puts the newest checkpoint into the trainer; returns its step, 0 without one.

        Raises:
          ConfigError: it belongs to other weights, or is later than the run's last
            step.
          CheckpointError: none can be read.
        """
        restored = self._checkpoints.restore(self._target())
        if restored is None:
            return 0
        for what, own in self._fixed.items():
            if restored.metadata.get(what, own) != own:
                raise ConfigError(
                    f"{self._checkpoints.directory}: its checkpoints were trained with "
                    f"another {what} policy; cold_start/ or config.policy.ref_path has "
                    "changed"
                )
        first = int(restored.metadata["step"])
        if first > self._last:
            raise ConfigError(
                f"config.train.steps: expected at least {first}, the step that "
                f"--workdir={self._run_dir.path} stands at, got {self._last}; use "
                "another --workdir"
            )
        self._trainer.put_back(restored.state)
        self._trainer.in_a_row |= restored.metadata.get("in_a_row", {})
        self._read_metric_until(first)
        return first

    def note(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Remembers a step's value of the metric that finds the best checkpoint.

        Args:
          step: from 0.
          metrics: all of the step, by name.

        Raises:
          ConfigError: ``train.checkpoint_best`` is none of them.
        """
        if not self._metric:
            return
        if self._metric not in metrics:
            raise ConfigError(
                "config.train.checkpoint_best: expected a metric of this run, such as "
                f"'success' or 'reward', got {self._metric!r}; metrics.jsonl has all"
            )
        value = metrics[self._metric]
        # None and NaN mean "not measured in this step": the mean is over the others.
        if value is not None and math.isfinite(value):
            self._values[step] = float(value)

    def save_if_due(self, done: int) -> None:
        """Starts to save after every ``checkpoint_every``-th step, and after the last.

        Args:
          done: steps done.
        """
        # The last one too, so that a run whose train.steps is raised goes on from
        # there.
        if done % self._every == 0 or done == self._last:
            self._save(done, self._score(done))

    def save_now(self, done: int) -> None:
        """Saves without a score, and returns when that is on disk.

        Args:
          done: steps done.

        Raises:
          CheckpointError: it cannot be written.
        """
        self._save(done, None)
        self._checkpoints.wait()

    def put_back_best(self) -> int | None:
        """Puts the best checkpoint into the trainer; its step, None without one.

        Raises:
          CheckpointError: it is damaged.
        """
        best = self._checkpoints.best() if self._metric else None
        if best is not None:
            # Before the state is given up, since shapes and shardings are read off it.
            target = self._target()
            self._trainer.state = None  # frees it, or memory would hold two states
            self._trainer.put_back(self._checkpoints.read(best, target).state)
        return best

    def _save(self, done: int, score: float | None) -> None:
        # Counts of steps in a row go on over a stop, so they are saved too.
        record = {"step": done, "config": self._config, "score": score}
        record["in_a_row"] = dict(self._trainer.in_a_row)
        self._checkpoints.save(self._trainer.to_save(), record | self._fixed)

    def _score(self, done: int) -> float | None:
        """Mean of the metric since the last regular checkpoint, this one's score."""
        # The last checkpoint may come sooner than ``every`` steps after a regular one.
        begin = (done - 1) // self._every * self._every
        values = [self._values[n] for n in range(begin, done) if n in self._values]
        return sum(values) / len(values) if values else None

    def _read_metric_until(self, first: int) -> None:
        """Reads the metric of steps between the last regular checkpoint and ``first``.

        They count for the next score, and an earlier process measured them.
        """
        file = self._run_dir.path / "metrics.jsonl"
        begin = first // self._every * self._every
        if not self._metric or begin == first or not file.is_file():
            return
        for row in read_metric_rows(file):
            # Rows from ``first`` on are of steps that will be done again.
            if begin <= row["step"] < first:
                self.note(row["step"], row)

    def _target(self) -> Any:
        # Descriptions, not the arrays: a target that held them would keep the old state
        # in memory during a read.
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
            self._trainer.to_save(),
        )


def make_record(state: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The record to save beside a state, with its checksum.

    Args:
      state: a pytree of arrays.
      metadata: what JSON can hold.
    """
    # As JSON gives it back: tuples become lists, and keys become strings. Otherwise the
    # checksum would not match on reading.
    metadata = json.loads(json.dumps(dict(metadata)))
    record = {"metadata": metadata, "arrays": _arrays(state)}
    return record | {"checksum": checksum(record)}


def check_same_arrays(saved: Any, target: Any, where: pathlib.Path) -> None:
    """Checks that a checkpoint holds the arrays that the config asks for.

    Args:
      saved: ``arrays`` of the checkpoint's record.
      target: the state to restore, a pytree of arrays or ``jax.ShapeDtypeStruct``.
      where: the checkpoint, for the message.

    Raises:
      ConfigError: an array is absent, or has another shape or dtype; names the first.
    """
    wanted = _arrays(target)
    # Before there were float32 masters, trained weights in bfloat16 were saved as they
    # were. Restored they become masters of the same values.
    saved = {name: _as_master(saved[name], wanted.get(name)) for name in saved}
    if saved == wanted:
        return
    name = min(name for name in saved | wanted if saved.get(name) != wanted.get(name))
    raise ConfigError(
        f"{where}: {name} is {saved.get(name, 'absent')} in the checkpoint, and the"
        f" config makes it {wanted.get(name, 'absent')}; continue a run with the"
        " config that it began with, or choose another workdir"
    )


def _as_master(saved: Any, wanted: Any) -> Any:
    """The saved [shape, dtype], as wanted if only a bfloat16 array is to be widened."""
    widened = wanted is not None and [*saved] == [wanted[0], "bfloat16"]
    return wanted if widened and wanted[1] == "float32" else saved


def checksum(record: Mapping[str, Any]) -> int:
    """CRC-32 of a record, independent of the order and spacing of its JSON.

    Args:
      record: with ``metadata`` and ``arrays``.
    """
    content = {"metadata": record["metadata"], "arrays": record["arrays"]}
    # CRC-32 suffices: it is to find damage, not a forger.
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _arrays(tree: Any) -> dict[str, list[Any]]:
    """[shape, dtype] of each array by its path, as in ``params/layers/mlp``."""
    flat, _ = jax.tree.flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): [
            list(leaf.shape),
            str(leaf.dtype),
        ]
        for path, leaf in flat
    }


class _LastAndBest:
    """An Orbax preservation policy: the last ``keep`` checkpoints, and the best."""

    def __init__(self, keep: int, scores: Mapping[int, float]) -> None:
        self._keep, self._scores = keep, scores

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any):
        steps = sorted(info.step for info in checkpoints)
        preserved = {*steps[-self._keep :], _best(steps, self._scores)}
        return [info.step in preserved for info in checkpoints]


def _best(steps: Sequence[int], scores: Mapping[int, float]) -> int | None:
    """The step of highest score; ``max`` keeps the first, so the earliest of equals."""
    scored = [step for step in sorted(steps) if step in scores]
    return max(scored, key=scores.__getitem__, default=None)


def _identities(trainer: Trainer) -> dict[str, str]:
    """Digests of the weights that a checkpoint needs but does not hold: the reference
    policy, and the base weights if they are frozen and not the reference."""
    fixed = {}
    if trainer.reference is not None:
        fixed["reference"] = identity(trainer.reference)
    policy = trainer.settings.policy
    # Without ref_path the base weights are the reference, with its digest above.
    if policy.lora.rank and (policy.ref_path or trainer.reference is None):
        fixed["base"] = identity(trainer.frozen)
    return fixed


def _first_line(error: Exception) -> str:
    # A library's error may run over pages, and this is part of one line.
    return next(iter(str(error).splitlines()), "")[:200]


def _describe(damaged: Mapping[int, str]) -> str:
    return "; ".join(
        f"the checkpoint of step {step} is damaged ({reason})"
        for step, reason in damaged.items()
    )


@contextlib.contextmanager
def _quiet_asyncio() -> Iterator[None]:
    """Silences asyncio's log of reads that fail because a file is damaged.

    The first failure is raised and reported; the others would be printed in full
    whenever the garbage collector finds their tasks. So it collects them here, before
    the log is on again.
    """
    logger = logging.getLogger("asyncio")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        gc.collect()
        logger.disabled = before
