"""The run directory: what a run writes, where, and how it is found again.

    config.json · metrics.jsonl · tensorboard/ · trajectories/ · checkpoints/ ·
    cold_start/ (initial policy) · cold_start_checkpoints/ (until it has ended) ·
    policy/ (trained) · policy_best/ (of the best checkpoint) · adapters/ ·
    evaluation_cold_start.json · evaluation_trained.json · skipped/ (batches of updates
    not finite) · summary.json · machines.json (versions and devices of its starts) ·
    lock (held while a process runs there)

Directories that must be whole are written beside their place and renamed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.settings import ConfigError, flatten
from mempo_jax.training import machine, processes
from mempo_jax.training.placing import pieces

# Fields that a continued run may change: they alter nothing that was done already.
FREE_FIELDS = (
    *("train.steps", "log.trajectories_every"),
    # The machine may be another.
    *("mesh.data", "mesh.fsdp", "mesh.tensor"),
    # The server may have moved; its log-probs are checked at every start.
    *("engine.http.url", "engine.http.model", "engine.http.api_key_env"),
    *("engine.http.timeout_s", "engine.http.retries", "engine.http.max_concurrent"),
    *("engine.http.sync_dir", "engine.http.reload", "engine.http.reload_timeout_s"),
)
MACHINES = "machines.json"
# Never there without a config.json.
RESULTS = ("summary.json", "checkpoints", "cold_start_checkpoints")


class RunDir:
    """Paths and files of one run."""

    def __init__(self, path: str) -> None:
        self.path = pathlib.Path(path)
        self.cold_start = self.path / "cold_start"
        self.cold_start_checkpoints = self.path / "cold_start_checkpoints"
        self.policy = self.path / "policy"
        self.best = self.path / "policy_best"
        self.adapters = self.path / "adapters"
        self.checkpoints = self.path / "checkpoints"
        self.trajectories = self.path / "trajectories"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other runs out; the system frees it when this process ends, however.

        Raises:
          ConfigError: another process runs in this directory.
        """
        with (self.path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ConfigError(
                    f"--workdir={self.path}: another process is running there; wait "
                    "for it, or use another --workdir"
                ) from error
            yield

    def check(self, config: Mapping[str, Any]) -> None:
        """Checks that the directory is free, or holds a run with this config.

        Raises:
          ConfigError: it holds another run's config, names the fields; results of
            a run whose config is lost; or it is no directory.
        """
        file = self.path / "config.json"
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"--workdir={self.path}: expected a directory")
        if not file.is_file():
            left = [name for name in RESULTS if (self.path / name).exists()]
            if left:
                raise ConfigError(
                    f"--workdir={self.path} holds {', '.join(left)} of a run without "
                    "its config.json, so it cannot be told which; use another --workdir"
                )
            return
        changed = [
            f"{name} is {there!r} there and {here!r} here"
            for name, (there, here) in self.changes(config).items()
            if name not in FREE_FIELDS
        ]
        if changed:
            raise ConfigError(
                f"--workdir={self.path} holds a run with another config: "
                f"{'; '.join(changed[:3])}"
                f"{' ...' if len(changed) > 3 else ''}; use another --workdir"
            )

    def changes(self, config: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Fields that are otherwise in the directory's config.json: by dotted name, as
        they are there and here.

        Raises:
          ConfigError: the file is no config.
        """
        file = self.path / "config.json"
        try:
            old = flatten(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, AttributeError) as error:
            raise ConfigError(
                f"{file}: expected the config of a run, as JSON: {error}; use another "
                "--workdir"
            ) from error
        flat = flatten(config)
        return {
            name: (old.get(name), flat.get(name))
            for name in sorted(old.keys() | flat.keys())
            if old.get(name) != flat.get(name)
        }

    def ended(self, steps: int) -> dict[str, Any] | None:
        """The summary of a run that has ended with this number of steps, else None."""
        found = self.load_json("summary.json")
        return found if found is not None and found.get("steps") == steps else None

    def claim(self, config: Mapping[str, Any]) -> None:
        """Makes the directory, with config.json, after ``check``.

        Raises:
          ConfigError: it cannot be written.
        """
        self.check(config)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            text = json.dumps(config, indent=1, sort_keys=True)
            write_text(self.path / "config.json", text + "\n")
        except OSError as error:
            raise ConfigError(f"--workdir={self.path}: {error}") from error

    def note_machine(self) -> None:
        """Adds versions and devices of this start to machines.json, while ``locked``.

        Raises:
          ConfigError: it cannot be written.
        """
        known = (self.load_json(MACHINES) or {}).get("machines", [])
        text = json.dumps({"machines": machine.with_this(known)}, indent=1)
        try:
            write_text(self.path / MACHINES, text + "\n")
        except OSError as error:
            raise ConfigError(f"--workdir={self.path}: {error}") from error

    def release(self) -> None:
        """Gives the directory back where nothing was computed after ``claim``."""
        if any((self.path / name).exists() for name in (*RESULTS, "cold_start")):
            return
        for name in ("config.json", "lock", MACHINES):
            (self.path / name).unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def save_dir(self, place: pathlib.Path, fill: Callable[[pathlib.Path], None]):
        """Fills a new directory beside ``place`` and renames it there.

        fill: called in every process; only the first may write.
        """
        fresh = place.with_name(place.name + ".writing")

        def begin() -> None:
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(parents=True)

        def end() -> None:
            shutil.rmtree(place, ignore_errors=True)
            fresh.rename(place)

        processes.on_primary(begin)
        try:
            processes.gather(lambda: fill(fresh))
        except OSError:
            if processes.primary():  # what is half written fills the disk
                shutil.rmtree(fresh, ignore_errors=True)
            raise
        processes.on_primary(end)

    def save_trajectories(self, name: str, made: Sequence[Trajectory]) -> None:
        """Writes ``trajectories/NAME.jsonl``, one object per trajectory."""

        def write() -> None:
            self.trajectories.mkdir(exist_ok=True)
            lines = [json.dumps(t.to_json(), ensure_ascii=False) for t in made]
            write_text(self.trajectories / f"{name}.jsonl", "\n".join(lines) + "\n")

        processes.on_primary(write)

    def save_json(self, name: str, value: Any) -> None:
        text = json.dumps(value, indent=1) + "\n"
        processes.on_primary(lambda: write_text(self.path / name, text))

    def load_json(self, name: str) -> Any | None:
        """An object that ``save_json`` wrote, None without the file.

        Raises:
          ConfigError: the file is damaged.
        """
        file = self.path / name
        if not file.is_file():
            return None
        try:
            value = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(value, dict):
                return value
            problem = f"got {type(value).__name__}"
        except ValueError as error:
            problem = str(error)
        raise ConfigError(
            f"{file}: expected a JSON object: {problem}; remove the file, and the same "
            "command makes it again"
        )

    def dump_update(self, step: int, update: int, batch: Sequence[Any]) -> None:
        """Keeps the arrays of an update that was skipped, for a look at its cause."""
        if not processes.primary():
            return
        folder = self.path / "skipped"
        folder.mkdir(exist_ok=True)
        arrays = {}
        for at, (rows, old, ref) in enumerate(batch):
            arrays |= {f"{at}/{k}": v for k, v in rows._asdict().items()}
            arrays |= {f"{at}/old_log_probs": old, f"{at}/ref_log_probs": ref}
        np.savez_compressed(folder / f"step{step}_update{update}.npz", **arrays)


def identity(params: Any) -> str:
    """SHA-256 over all parameters, to know a reference policy again."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree.leaves_with_path(params):
        digest.update(jax.tree_util.keystr(path).encode())
        for part in pieces(leaf):
            digest.update(part.tobytes())
    return digest.hexdigest()


def write_text(file: pathlib.Path, text: str) -> None:
    """Writes a file whole or not at all."""
    fresh = file.with_name(file.name + ".writing")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, file)
