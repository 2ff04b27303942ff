"""The run directory: what a run writes, where, and how it is found again.

    config.json · metrics.jsonl · tensorboard/ · trajectories/ · checkpoints/ ·
    cold_start/ (initial policy) · cold_start_checkpoints/ (until it has ended) ·
    policy/ (trained) · policy_best/ (of the best checkpoint) · adapters/ ·
    evaluation_cold_start.json · evaluation_trained.json · skipped/ (batches of updates
    not finite) · summary.json · machines.json (times, versions and devices of its
    starts) · lock (held while a process runs there)

A file or directory that must be complete is written under another name and renamed.

Versions and devices are recorded because a run repeats itself to the bit only if these
are the same.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import mempo_jax
from mempo_jax.config import complete_saved
from mempo_jax.distributed import hosts
from mempo_jax.distributed.placement import pieces
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.runs.atomic import write_text
from mempo_jax.settings import ConfigError, flatten, local_path, with_version

# Packages that compute; another version may round otherwise.
PACKAGES = (
    *("jax", "jaxlib", "numpy", "flax", "optax", "orbax-checkpoint"),
    *("transformers", "tokenizers", "scann", "wordllama"),
)
# Fields that a continued run may change: they alter nothing that was computed before.
FREE_FIELDS = (
    *("train.steps", "log.trajectories_every"),
    # The machine may be another.
    *("mesh.data", "mesh.fsdp", "mesh.tensor"),
    *("mesh.sampling.data", "mesh.sampling.fsdp", "mesh.sampling.tensor"),
    "mesh.sampling.devices",
    # Only how many environments are called at a time.
    "env.workers",
    # The server may have moved; its log-probs are checked at every start.
    *("engine.http.url", "engine.http.model", "engine.http.api_key_env"),
    *("engine.http.timeout_s", "engine.http.retries", "engine.http.max_concurrent"),
    *("engine.http.sync_dir", "engine.http.reload", "engine.http.reload_timeout_s"),
)
# Orbax, which writes the checkpoints, looks for its files by a pattern that begins with
# the directory's whole path; TensorStore does not take a backslash.
NOT_IN_PATHS = "[*?\\"
MACHINES = "machines.json"
# A run writes its config.json before any of these.
RESULTS = ("summary.json", "checkpoints", "cold_start_checkpoints")


class RunDir:
    """Paths and files of one run.

    Its path is made absolute here, so an environment that changes the current directory
    does not move the run.

    Attributes:
      path: the directory.
      cold_start: the initial policy.
      cold_start_checkpoints: of the cold start, until it has ended.
      policy: the trained policy.
      best: the policy of the best checkpoint.
      adapters: the trained adapters alone.
      checkpoints: of training.
      trajectories: files of trajectories.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        """Names the paths; makes no directory yet.

        Args:
          path: of the run's directory, there or not.

        Raises:
          ConfigError: it is an address such as ``gs://bucket``.
        """
        self.path = local_path(path, "--workdir").absolute()
        self.cold_start = self.path / "cold_start"
        self.cold_start_checkpoints = self.path / "cold_start_checkpoints"
        self.policy = self.path / "policy"
        self.best = self.path / "policy_best"
        self.adapters = self.path / "adapters"
        self.checkpoints = self.path / "checkpoints"
        self.trajectories = self.path / "trajectories"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other runs out; if this process is killed, the system unlocks it.

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

        Args:
          config: of the run to start or continue, as JSON has it.

        Raises:
          ConfigError: its path cannot hold checkpoints; it holds another run's config
            (names the fields), or results of a run whose config is lost; or it is no
            directory.
        """
        file = self.path / "config.json"
        bad = sorted({sign for sign in str(self.path) if sign in NOT_IN_PATHS})
        if bad:
            raise ConfigError(
                f"--workdir={self.path}: expected a path without any of "
                f"{' '.join(NOT_IN_PATHS)}, got {' '.join(bad)}: checkpoints in it "
                "could not be read again; use another --workdir"
            )
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
        """Fields that differ between the directory's config.json and a config.

        Args:
          config: to compare with, as JSON has it.

        Returns:
          By dotted name, the value in the directory and the value in ``config``.

        Raises:
          ConfigError: the file is no config, or a newer version saved it.
        """
        file = self.path / "config.json"
        try:
            saved = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(saved, dict):
                raise TypeError(f"got {type(saved).__name__}")
            old = flatten(complete_saved(saved, str(file), wanted=flatten(config)))
        except ConfigError:
            raise
        except (ValueError, TypeError, AttributeError) as error:
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
        """The summary of a run that has ended with this number of steps, else None.

        Args:
          steps: of the config; with more steps the same run continues.

        Raises:
          ConfigError: the summary is damaged.
        """
        summary = self.load_json("summary.json")
        return (
            summary if summary is not None and summary.get("steps") == steps else None
        )

    def claim(self, config: Mapping[str, Any]) -> None:
        """Checks the directory, makes it, and writes config.json.

        Args:
          config: of the run, as JSON has it.

        Raises:
          ConfigError: see ``check``; or it cannot be written.
        """
        self.check(config)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            text = json.dumps(with_version(config), indent=1, sort_keys=True)
            write_text(self.path / "config.json", text + "\n")
        except OSError as error:
            raise ConfigError(f"--workdir={self.path}: {error}") from error

    def note_machine(self) -> None:
        """Adds this start to machines.json: time, versions, devices; while ``locked``.

        Raises:
          ConfigError: it cannot be written.
        """
        record = self.load_json(MACHINES) or {}
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        record["machines"] = with_this(record.get("machines", []))
        record["starts"] = [*record.get("starts", []), now]
        text = json.dumps(record, indent=1)
        try:
            write_text(self.path / MACHINES, text + "\n")
        except OSError as error:
            raise ConfigError(f"--workdir={self.path}: {error}") from error

    def release(self) -> None:
        """Undoes ``claim`` if nothing was computed since, so that it is free."""
        if any((self.path / name).exists() for name in (*RESULTS, "cold_start")):
            return
        for name in ("config.json", "lock", MACHINES):
            (self.path / name).unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def save_dir(self, place: pathlib.Path, fill: Callable[[pathlib.Path], None]):
        """Writes a directory completely or not at all: beside its place, then renamed.

        Args:
          place: the directory's path; what is there is replaced.
          fill: writes into the directory it gets; called in every process, of which
            only the first may write.

        Raises:
          OSError: it could not be written; what was written of it is removed.
        """
        fresh = place.with_name(place.name + ".writing")

        def begin() -> None:
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(parents=True)

        def end() -> None:
            shutil.rmtree(place, ignore_errors=True)
            fresh.rename(place)

        hosts.on_primary(begin)
        try:
            hosts.gather(lambda: fill(fresh))
        except OSError:
            if hosts.primary():  # what is half written fills the disk
                shutil.rmtree(fresh, ignore_errors=True)
            raise
        hosts.on_primary(end)

    def save_trajectories(self, name: str, sampled: Sequence[Trajectory]) -> None:
        """Writes ``trajectories/NAME.jsonl``, one object per trajectory.

        Args:
          name: of the file, without its ending.
          sampled: the trajectories, in the order to write them.
        """

        def write() -> None:
            self.trajectories.mkdir(exist_ok=True)
            lines = [json.dumps(t.to_json(), ensure_ascii=False) for t in sampled]
            write_text(self.trajectories / f"{name}.jsonl", "\n".join(lines) + "\n")

        hosts.on_primary(write)

    def save_json(self, name: str, value: Any) -> None:
        """Writes a JSON file, in process 0.

        Args:
          name: of the file in the directory.
          value: what JSON can hold.
        """
        text = json.dumps(value, indent=1) + "\n"
        hosts.on_primary(lambda: write_text(self.path / name, text))

    def load_json(self, name: str) -> Any | None:
        """Reads an object that ``save_json`` wrote; None without the file.

        Args:
          name: of the file in the directory.

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
        """Saves the arrays of an update that was skipped, to look for its cause.

        Args:
          step: of the run.
          update: its number within the step.
          batch: micro-batches of (rows, old and reference log-probs), numpy; without KL
            the last are None, and left out.
        """
        if not hosts.primary():
            return
        folder = self.path / "skipped"
        folder.mkdir(exist_ok=True)
        arrays = {}
        for at, (rows, old, ref) in enumerate(batch):
            arrays |= {f"{at}/{k}": v for k, v in rows._asdict().items()}
            arrays[f"{at}/old_log_probs"] = old
            if ref is not None:
                arrays[f"{at}/ref_log_probs"] = ref
        np.savez_compressed(folder / f"step{step}_update{update}.npz", **arrays)


def identity(params: Any) -> str:
    """SHA-256 over all parameters, to recognise a reference policy.

    Args:
      params: a pytree of arrays, on any devices; read piece by piece.
    """
    digest = hashlib.sha256()
    for path, leaf in jax.tree.leaves_with_path(params):
        digest.update(jax.tree_util.keystr(path).encode())
        for part in pieces(leaf):
            digest.update(part.tobytes())
    return digest.hexdigest()


def describe() -> dict[str, Any]:
    """Versions of what computes, and the devices of all processes, for JSON."""
    device = jax.devices()[0]
    return {
        "mempo_jax": mempo_jax.__version__,
        "commit": _commit(pathlib.Path(mempo_jax.__file__).parent),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "backend": device.platform,
        "device": device.device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
    }


def with_this(known: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Adds this machine to a run's list, unless it is the list's last.

    Args:
      known: descriptions of the machines so far, in order.
    """
    this = describe()
    return [*known, *([] if known and known[-1] == this else [this])]


def _commit(package: pathlib.Path) -> str | None:
    """The commit of the checkout that the package is part of, with ``-dirty`` if files
    were changed since; None if it was installed, or there is no git."""
    # git itself would look further up, and find a checkout that only surrounds it.
    if not (package.parent / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        described = subprocess.run(
            command, cwd=package, capture_output=True, timeout=10, check=True, text=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's model, "" if unknown: on another one, compiled programs may add
    in another order."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = (line.partition(":")[2] for line in file if "model name" in line)
            return next(names, "").strip()
    except OSError:  # not Linux
        return platform.processor()
