"""Config section of the engine: where turns are sampled, and how weights get there."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import urllib.parse

from mempo_jax.rollout.http_weights import check_directory, read_call
from mempo_jax.settings import ConfigError
from mempo_jax.training.sections import require

KINDS = ("local", "http")
SYNCS = ("directory", "none")
STALE_GAP = 0.1  # nats: a server that never learns soon differs by more


@dataclasses.dataclass(frozen=True)
class HttpSection:
    url: str
    model: str
    api_key_env: str
    timeout_s: float
    retries: int
    max_concurrent: int
    sync: str
    sync_dir: str
    reload: tuple[str, ...]
    reload_timeout_s: float

    def __post_init__(self) -> None:
        def check(ok: bool, field: str, expected: str) -> None:
            require(ok, f"engine.http.{field}", expected, getattr(self, field))

        for field in ("timeout_s", "reload_timeout_s"):
            check(getattr(self, field) > 0, field, "> 0 seconds")
        check(self.retries >= 0, "retries", "at least 0")
        check(self.max_concurrent >= 1, "max_concurrent", "at least 1")
        check(self.sync in SYNCS, "sync", f"one of {SYNCS}")
        for line in self.reload:
            try:
                read_call(line)
            except ValueError as error:
                raise ConfigError(f"config.engine.http.reload: {error}") from error

    def check_used(self) -> None:
        """Raises ConfigError on what a server cannot be reached or filled with."""
        parts = urllib.parse.urlsplit(self.url)
        ok = parts.scheme in ("http", "https") and bool(parts.hostname)
        require(ok, "engine.http.url", "'http://host:port' or https", self.url)
        # Not shown: what stands there may be a secret.
        plain = not (parts.username or parts.password or parts.query)
        expected = "no user, password or query; a key goes into an environment variable"
        require(plain, "engine.http.url", f"{expected} (api_key_env)", "one with them")
        require(
            bool(self.model),
            "engine.http.model",
            "the name under which the server serves the policy (see its /v1/models)",
            self.model,
        )
        self.api_key()
        if self.sync != "directory":
            return
        require(
            bool(self.sync_dir),
            "engine.http.sync_dir",
            "a directory that this machine and the server share, as sync is "
            "'directory'",
            self.sync_dir,
        )
        require(
            bool(self.reload),
            "engine.http.reload",
            "calls that make the server read its weights again",
            self.reload,
        )
        try:
            check_directory(pathlib.Path(self.sync_dir))
        except ValueError as error:
            raise ConfigError(f"config.engine.http.sync_dir: {error}") from error

    def api_key(self) -> str:
        """The key from the environment; "" where none is named."""
        name = self.api_key_env
        if not name:
            return ""
        key = os.environ.get(name, "")
        if not key or not key.isascii() or not key.isprintable():
            raise ConfigError(
                f"config.engine.http.api_key_env = {name!r}: expected an environment "
                "variable that holds the key, in printable ASCII; it is not set, "
                "empty, or of another form"
            )
        return key


@dataclasses.dataclass(frozen=True)
class EngineSection:
    kind: str
    lanes: int
    row_buckets: tuple[int, ...]
    http: HttpSection

    def __post_init__(self) -> None:
        require(self.kind in KINDS, "engine.kind", f"one of {KINDS}", self.kind)
        require(self.lanes >= 1, "engine.lanes", "at least 1", self.lanes)
        ok = all(rows >= 1 for rows in self.row_buckets)
        require(ok, "engine.row_buckets", "numbers of at least 1", self.row_buckets)
        if self.kind == "http":
            self.http.check_used()

    def check_fits(self, slots: int, devices: int) -> None:
        """Raises ConfigError where the local engine cannot compute so.

        slots: of this process. devices: that these lie on.
        """
        whole = slots % self.lanes == 0
        expected = f"a divisor of the {slots} slots (sampling.slots)"
        require(whole, "engine.lanes", expected, self.lanes)
        why = f"as {devices} devices of this process share the rows (see config.mesh)"
        alone = devices == 1
        require(alone or self.lanes == 1, "engine.lanes", f"1, {why}", self.lanes)
        ok = alone or not self.row_buckets
        require(ok, "engine.row_buckets", f"(), {why}", self.row_buckets)

    @property
    def stale(self) -> bool:
        """Whether the sampler keeps the weights it has while the policy learns."""
        return self.kind == "http" and self.http.sync == "none"


def check_stale(
    engine: EngineSection, importance_cap: float, gap: float, eval_tasks: int
) -> None:
    """Raises ConfigError where a sampler that never learns would be taken for the
    policy: by the objective, by the check of log-probs, or by an evaluation."""
    if not engine.stale:
        return
    why = "as engine.http.sync = 'none' lets the server keep its weights"
    require(
        importance_cap > 0,
        "objective.importance_cap",
        f"above 0 (2.0 is usual) {why}",
        importance_cap,
    )
    require(
        gap >= STALE_GAP,
        "train.max_log_prob_gap",
        f"at least {STALE_GAP} (nats; some tokens soon differ by several) {why}",
        gap,
    )
    require(
        eval_tasks == 0,
        "train.eval_tasks",
        f"0 {why}: an evaluation would be one of the server's weights; use "
        "engine.http.sync = 'directory', or evaluate the saved policy afterwards",
        eval_tasks,
    )
