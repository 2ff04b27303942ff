"""Checkpoints of a run: written in the background, checked when read.

A checkpoint is a directory named by its step. Orbax writes it under another name and
renames it when whole, so a run killed at any moment leaves only whole ones behind.
What is lost or altered afterwards is found on reading: the arrays by the checksums of
their storage, the record beside them (metadata, names and shapes) by one of its own.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import pathlib
import shutil
import warnings
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from mempo_jax.settings import ConfigError

DAMAGED = "damaged"


class CheckpointError(RuntimeError):
    """No checkpoint in the directory can be read."""


class Restored(NamedTuple):
    """A state as it was saved, on the target's shardings, and its metadata."""

    state: Any
    metadata: dict[str, Any]


class Checkpoints:
    """The last ``keep`` checkpoints of one run, in one directory.

    Every process of a run makes one on the same directory and calls it alike.
    """

    def __init__(self, directory: str | pathlib.Path, *, keep: int):
        """Opens or makes ``directory``; leftovers of a killed save are removed.

        Raises:
          ConfigError: ``keep`` is below 1.
        """
        if keep < 1:
            raise ConfigError(f"checkpoints to keep: expected at least 1, got {keep}")
        self.directory = pathlib.Path(directory).absolute()
        preserve = ocp.checkpoint_managers.LatestN(keep)
        self._manager = ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=preserve, cleanup_tmp_directories=True
            ),
            item_names=("state", "record"),
        )

    def steps(self) -> list[int]:
        """The steps of the checkpoints present, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, state: Any, metadata: Mapping[str, Any]) -> bool:
        """Starts saving ``state``; returns once it may be donated or changed.

        Args:
          state: a pytree of arrays.
          metadata: what JSON can hold, the int ``"step"`` included, which names the
            checkpoint; config and identity of the reference belong here.

        Returns:
          False if this step is there already (nothing is written), else True.

        Raises:
          ValueError: no int ``"step"``, or one before the newest checkpoint's.
          Exception: whatever the save before this one failed with.
        """
        step = metadata.get("step")
        if not isinstance(step, int):
            raise ValueError(f'metadata["step"]: expected an int, got {step!r}')
        self.wait()
        newest = self._manager.latest_step()
        if newest is not None and step <= newest:
            if step == newest:
                return False
            raise ValueError(
                f"checkpoint of step {step}: {self.directory} holds step {newest};"
                " restore before saving, or use another directory"
            )
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            record=ocp.args.JsonSave(_record(state, metadata)),
        )
        return self._manager.save(step, args=args)

    def restore(self, target: Any) -> Restored | None:
        """Reads the newest checkpoint that is whole, onto the target's shardings.

        Args:
          target: the state's pytree of arrays or ``jax.ShapeDtypeStruct``, each with
            the sharding that its array is to have.

        Returns:
          None if there is no checkpoint. A damaged one newer than what is returned
          is named in one warning and set aside as ``damaged-STEP``.

        Raises:
          ConfigError: the checkpoint holds other arrays than ``target``.
          CheckpointError: there are checkpoints, and all are damaged.
        """
        damaged: dict[int, str] = {}
        with _quiet_asyncio():
            for step in reversed(self.steps()):
                try:
                    restored = self._read(step, target)
                except ConfigError:
                    raise
                except Exception as error:  # damage takes any form: JSON, zarr, files
                    reason = next(iter(str(error).splitlines()), "")[:200]
                    damaged[step] = f"{type(error).__name__}: {reason}"
                    continue
                self._set_aside(damaged, step)
                return restored
        if damaged:
            raise CheckpointError(
                f"no checkpoint in {self.directory} can be read:"
                f" {_describe(damaged)}; start in another directory, or remove it"
            )
        return None

    def wait(self) -> None:
        """Returns when the save in progress is on disk; raises what it failed with."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Finishes the save in progress and frees the threads."""
        self._manager.close()

    def _read(self, step: int, target: Any) -> Restored:
        args = ocp.args.Composite(record=ocp.args.JsonRestore())
        record = self._manager.restore(step, args=args).record
        if record["checksum"] != _checksum(record):
            raise ValueError("its record was altered")
        _check_same_arrays(record["arrays"], target, self.directory / str(step))
        args = ocp.args.Composite(state=ocp.args.StandardRestore(target))
        state = self._manager.restore(step, args=args).state
        return Restored(state, record["metadata"])

    def _set_aside(self, damaged: Mapping[int, str], used: int) -> None:
        if not damaged:
            return
        warnings.warn(
            f"{self.directory}: {_describe(damaged)}; continuing from step {used}",
            stacklevel=3,
        )
        if jax.process_index() == 0:
            for step in damaged:
                aside = self.directory / f"{DAMAGED}-{step}"
                shutil.rmtree(aside, ignore_errors=True)
                (self.directory / str(step)).rename(aside)
        self._manager.reload()


def _describe(damaged: Mapping[int, str]) -> str:
    return "; ".join(
        f"the checkpoint of step {step} is damaged ({reason})"
        for step, reason in damaged.items()
    )


@contextlib.contextmanager
def _quiet_asyncio() -> Iterator[None]:
    """Holds back asyncio's log of the reads that a damaged file made fail.

    The first of them is raised and reported; the others would be printed in full
    whenever the garbage collector finds their tasks.
    """
    logger = logging.getLogger("asyncio")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        gc.collect()
        logger.disabled = before


def _record(state: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    # as JSON gives it back: tuples are lists, and the keys are strings
    metadata = json.loads(json.dumps(dict(metadata)))
    record = {"metadata": metadata, "arrays": _arrays(state)}
    return record | {"checksum": _checksum(record)}


def _checksum(record: Mapping[str, Any]) -> int:
    """CRC-32 of the record, whatever order and spacing it was written in."""
    content = {"metadata": record["metadata"], "arrays": record["arrays"]}
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


def _check_same_arrays(found: Any, target: Any, where: pathlib.Path) -> None:
    wanted = _arrays(target)
    if found == wanted:
        return
    name = min(name for name in found | wanted if found.get(name) != wanted.get(name))
    raise ConfigError(
        f"{where}: {name} is {found.get(name, 'absent')} in the checkpoint, and the"
        f" config makes it {wanted.get(name, 'absent')}; continue a run with the"
        " config that it began with, or choose another workdir"
    )
