"""The config section ``engine``: where turns are sampled, and how weights get there.

Turns are sampled by the engine of this process ("local"), or by servers that speak
OpenAI's HTTP API ("http"), on this or other machines.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import urllib.parse
from typing import Annotated

from mempo_jax.rollout.http_client import read_call
from mempo_jax.rollout.http_servers import check_directory
from mempo_jax.settings import (
    Bound,
    ConfigError,
    NonNegativeInt,
    PositiveInt,
    Seconds,
    check_bounds,
    one_of,
    require,
)

KINDS = ("local", "http")
SYNCS = ("directory", "adapter", "none")
STALE_GAP = 0.1  # nats: a server that never learns soon differs by more
RowBuckets = Annotated[
    tuple[int, ...],
    Bound(lambda rows: all(row >= 1 for row in rows), "numbers of at least 1"),
]


@dataclasses.dataclass(frozen=True)
class EngineConfig:
    """Who samples the turns; section ``engine``."""

    kind: Annotated[str, one_of(KINDS)]
    lanes: PositiveInt  # groups of slots that the local engine computes at a time
    row_buckets: RowBuckets  # numbers of rows that may be computed; (): always all
    http: HttpConfig  # used with kind "http" alone

    def __post_init__(self) -> None:
        check_bounds(self, "engine")
        if self.kind == "http":
            self.http.check_used()

    def check_fits(self, slots: int, devices: int) -> None:
        """Checks that the local engine can compute this way.

        Args:
          slots: of this process.
          devices: of this process, which share the rows.

        Raises:
          ConfigError: lanes do not divide the slots, or several devices are to compute
            lanes or row buckets.
        """
        divides = slots % self.lanes == 0
        expected = f"a divisor of the {slots} slots (sampling.slots)"
        require(divides, "engine.lanes", expected, self.lanes)
        why = f"as {devices} devices of this process share the rows (see config.mesh)"
        alone = devices == 1
        require(alone or self.lanes == 1, "engine.lanes", f"1, {why}", self.lanes)
        ok = alone or not self.row_buckets
        require(ok, "engine.row_buckets", f"(), {why}", self.row_buckets)

    @property
    def stale(self) -> bool:
        """Whether the sampler keeps the weights it has while the policy learns."""
        return self.kind == "http" and self.http.sync == "none"


@dataclasses.dataclass(frozen=True)
class HttpConfig:
    """Servers that sample; section ``engine.http``."""

    url: str  # "http://host:port", without user, password or query; several by commas
    model: str  # the name under which the server serves the policy
    api_key_env: str  # environment variable that holds the key; "": no key
    timeout_s: Seconds  # of one try of one request
    retries: NonNegativeInt  # after a failed try; then the trajectory fails
    max_concurrent: PositiveInt  # requests of a process sent at the same time
    sync: Annotated[str, one_of(SYNCS)]  # "none": the server keeps its weights
    sync_dir: str  # where new weights are written; the servers must see it too
    reload: tuple[str, ...]  # POSTs that make the server read them, "/path {json}"
    reload_timeout_s: Seconds  # of one such POST

    def __post_init__(self) -> None:
        check_bounds(self, "engine.http")
        for line in self.reload:
            try:
                read_call(line)
            except ValueError as error:
                raise ConfigError(f"config.engine.http.reload: {error}") from error

    @property
    def urls(self) -> tuple[str, ...]:
        """The address of each server."""
        return tuple(url.strip() for url in self.url.split(","))

    def check_used(self) -> None:
        """Checks what matters only when turns are sampled by a server.

        Raises:
          ConfigError: the server cannot be reached or given weights this way.
        """
        for url in self.urls:
            _check_url(url)
        different = {url.rstrip("/").removesuffix("/v1") for url in self.urls}
        once = len(different) == len(self.urls)
        require(once, "engine.http.url", "each address once", self.url)
        require(
            bool(self.model),
            "engine.http.model",
            "the name under which the server serves the policy (see its /v1/models)",
            self.model,
        )
        self.api_key()
        if self.sync != "none":
            self._check_sync()

    def _check_sync(self) -> None:
        require(
            bool(self.sync_dir),
            "engine.http.sync_dir",
            "a directory that this machine and the servers share, as sync is "
            f"{self.sync!r}",
            self.sync_dir,
        )
        if self.sync == "adapter":
            return  # neither whole weights nor calls of the user's: nothing can clash
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
        """The key from the environment; "" if ``api_key_env`` names no variable.

        Raises:
          ConfigError: the variable holds no key that a header can carry.
        """
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


def _check_url(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    ok = parts.scheme in ("http", "https") and bool(parts.hostname)
    expected = "'http://host:port' or https, several separated by commas"
    require(ok, "engine.http.url", expected, url)
    # The address is not shown: it may hold a secret.
    plain = not (parts.username or parts.password or parts.query)
    expected = "no user, password or query; a key goes into an environment variable"
    require(plain, "engine.http.url", f"{expected} (api_key_env)", "one with them")


def check_adapters(engine: EngineConfig, rank: int, cold_start_steps: int) -> None:
    """Checks that adapters alone make the servers' base the policy.

    Args:
      engine: section ``engine``; one that sends no adapters passes.
      rank: ``policy.lora.rank``; 0: there are no adapters.
      cold_start_steps: ``train.cold_start_steps``, which change the base.

    Raises:
      ConfigError: there are none, or their base is one that no server has.
    """
    if engine.kind != "http" or engine.http.sync != "adapter":
        return
    why = "as engine.http.sync = 'adapter' sends the servers nothing but adapters"
    require(rank > 0, "policy.lora.rank", f"at least 1 {why}", rank)
    require(
        cold_start_steps == 0,
        "train.cold_start_steps",
        f"0 {why}, whose base is the policy after the cold start: make that beforehand "
        "(experiments/cold_start.py), serve it, and begin with it (policy.path)",
        cold_start_steps,
    )


def check_stale(
    engine: EngineConfig, importance_cap: float, gap: float, eval_tasks: int
) -> None:
    """Checks that a sampler which never learns is not taken for the policy.

    Args:
      engine: section ``engine``; one that follows the policy passes.
      importance_cap: ``objective.importance_cap``: the objective must weigh tokens.
      gap: ``train.max_log_prob_gap``, which must leave room for old weights.
      eval_tasks: ``train.eval_tasks``: an evaluation would be of the old weights.

    Raises:
      ConfigError: one of them does not allow for such a sampler.
    """
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
