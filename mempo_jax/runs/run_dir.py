"""On what a run is computed: versions and devices, for comparing runs later.

A run repeats itself to the bit only where these are the same.

The run directory: what a run writes, where, and how it is found again.

    config.json · metrics.jsonl · tensorboard/ · trajectories/ · checkpoints/ ·
    cold_start/ (initial policy) · cold_start_checkpoints/ (until it has ended) ·
    policy/ (trained) · policy_best/ (of the best checkpoint) · adapters/ ·
    evaluation_cold_start.json · evaluation_trained.json · skipped/ (batches of updates
    not finite) · summary.json · machines.json (times, versions and devices of its
    starts) · lock (held while a process runs there)

Directories that must be whole are written beside their place and renamed.
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
from mempo_jax.settings import ConfigError, flatten, local_path

PACKAGES = (
    *("jax", "jaxlib", "numpy", "flax", "optax", "orbax-checkpoint"),
    *("transformers", "tokenizers", "scann", "wordllama"),
)


def describe() -> dict[str, Any]:
    """Versions of what computes, and the devices of all processes, as JSON has them."""
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
    """The machines that a run was computed on so far, and this one where it is new."""
    this = describe()
    return [*known, *([] if known and known[-1] == this else [this])]


def _commit(package: pathlib.Path) -> str | None:
    """The commit of the checkout that the package is part of, with ``-dirty`` if files
    were changed since; None if it was installed, or there is no git."""
    if not (package.parent / ".git").exists():  # it may be inside another's checkout
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
    """Programs are compiled for it, and another may add in another order; or ""."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = (line.partition(":")[2] for line in file if "model name" in line)
            return next(names, "").strip()
    except OSError:  # no Linux
        return platform.processor()


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
# Orbax, which writes the checkpoints, looks for its files by a pattern that begins with
# the directory's whole path; TensorStore does not take a backslash.
NOT_IN_PATHS = "[*?\\"
MACHINES = "machines.json"
# Never there without a config.json.
RESULTS = ("summary.json", "checkpoints", "cold_start_checkpoints")


class RunDir:
    """Paths and files of one run.

    Its path is made absolute here, so an environment that changes the current directory
    does not move the run.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        """Raises ConfigError if ``path`` is an address such as ``gs://bucket``."""
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
        """Fields that are otherwise in the directory's config.json: by dotted name, as
        they are there and here.

        Raises:
          ConfigError: the file is no config.
        """
        file = self.path / "config.json"
        try:
            saved = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(saved, dict):
                raise TypeError(f"got {type(saved).__name__}")
            old = flatten(complete_saved(saved, str(file), wanted=flatten(config)))
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
        """Adds this start to machines.json, while ``locked``: time, versions, devices.

        Raises:
          ConfigError: it cannot be written.
        """
        noted = self.load_json(MACHINES) or {}
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        noted["machines"] = with_this(noted.get("machines", []))
        noted["starts"] = [*noted.get("starts", []), now]
        text = json.dumps(noted, indent=1)
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

        hosts.on_primary(begin)
        try:
            hosts.gather(lambda: fill(fresh))
        except OSError:
            if hosts.primary():  # what is half written fills the disk
                shutil.rmtree(fresh, ignore_errors=True)
            raise
        hosts.on_primary(end)

    def save_trajectories(self, name: str, made: Sequence[Trajectory]) -> None:
        """Writes ``trajectories/NAME.jsonl``, one object per trajectory."""

        def write() -> None:
            self.trajectories.mkdir(exist_ok=True)
            lines = [json.dumps(t.to_json(), ensure_ascii=False) for t in made]
            write_text(self.trajectories / f"{name}.jsonl", "\n".join(lines) + "\n")

        hosts.on_primary(write)

    def save_json(self, name: str, value: Any) -> None:
        text = json.dumps(value, indent=1) + "\n"
        hosts.on_primary(lambda: write_text(self.path / name, text))

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
        if not hosts.primary():
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
