"""What to change where a run does not fit: fields are tried, the cheapest first."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mempo_jax.planning.memory import SAMPLING, Memory
from mempo_jax.settings import ConfigError
from mempo_jax.training.run_settings import RunSettings, from_config

MOST_CHANGES = 6
LORA_RANK = 32
PREFILL = (1_024, 256)  # new context tokens of one call, where memory is short
WORTH = 0.85  # of the bytes before, that a cheap change must come under

Changes = dict[str, Any]
Measure = Callable[[RunSettings], Memory]


@dataclasses.dataclass(frozen=True)
class Found:
    """Fields to change, with their values, and what the run then needs."""

    changes: Changes
    memory: Memory
    fits: bool


def with_changes(config: Mapping[str, Any], changes: Changes) -> RunSettings:
    """Settings of a config with some fields changed, by dotted name.

    Raises:
      ConfigError: the values do not go together.
    """
    config = copy.deepcopy(dict(config))
    for name, value in changes.items():
        *sections, field = name.split(".")
        part = config
        for section in sections:
            part = part[section]
        part[field] = value
    return from_config(config)


def find(
    config: Mapping[str, Any],
    memory: Memory,
    usable: int,
    devices: int,
    heads: int,
    measure: Measure,
    note: Callable[[str], None] = lambda text: None,
) -> Found:
    """Changes fields, one after the other, until the run fits.

    At each turn the fields that bear on what is fullest are tried, those that cost only
    speed before others; the first that fits is taken, else the one that saves most.

    Args:
      memory: of the run as it is. usable: bytes of one device.
      devices: of the slice. heads: of keys, which mesh.tensor must divide.
      measure: settings -> memory; raises ValueError for what cannot run.
      note: told of each try.
    """
    found = Found({}, memory, memory.peak <= usable)
    for _ in range(MOST_CHANGES):
        if found.fits:
            break
        settings = with_changes(config, found.changes)
        for tries in _tiers(settings, found.memory, usable, devices, heads):
            best = _best(config, found, tries, usable, measure, note)
            if best.memory.peak < WORTH * found.memory.peak or best.fits:
                break
        if best.memory.peak >= found.memory.peak:
            break
        found = best
    return found


def _best(
    config: Mapping[str, Any],
    found: Found,
    tries: Iterator[Changes],
    usable: int,
    measure: Measure,
    note: Callable[[str], None],
) -> Found:
    """The first that fits, else the one that needs least; ``found`` if none is less."""
    best = found
    for more in tries:
        changes = found.changes | more
        note(", ".join(f"{name}={value}" for name, value in more.items()))
        try:
            made = measure(with_changes(config, changes))
        except ConfigError:
            continue
        tried = Found(changes, made, made.peak <= usable)
        if tried.memory.peak < best.memory.peak:
            best = tried
        if tried.fits:
            break
    return best


def _tiers(
    settings: RunSettings, memory: Memory, usable: int, devices: int, heads: int
) -> Iterator[Iterator[Changes]]:
    """What costs only speed comes first, where it can help at all."""
    in_update = memory.fullest not in SAMPLING
    if memory.standing + (memory.sums if in_update else 0) <= usable:
        yield _less_at_once(settings, memory.fullest, devices)
    yield _spread_or_less(settings, devices, heads)


def _spread_or_less(
    settings: RunSettings, devices: int, heads: int
) -> Iterator[Changes]:
    policy, mesh = settings.policy, settings.mesh
    for fsdp in (2**n for n in range(1, devices.bit_length())):
        if fsdp > mesh.fsdp and devices % (fsdp * mesh.tensor) == 0:
            yield {"mesh.fsdp": fsdp}
    for tensor in (2, 4, 8):
        fits = devices % tensor == 0 and heads % tensor == 0
        if tensor > mesh.tensor and fits:
            yield {"mesh.tensor": tensor, "mesh.fsdp": devices // tensor}
    if policy.param_dtype == "float32":
        narrow = {"policy.param_dtype": "bfloat16", "policy.compute_dtype": "bfloat16"}
        yield narrow | _gap(settings)
    if not policy.lora.rank:
        yield {"policy.lora.rank": LORA_RANK}


def _less_at_once(
    settings: RunSettings, fullest: str, devices: int
) -> Iterator[Changes]:
    """Smaller pieces of the same work: only speed is lost."""
    train, sampling = settings.train, settings.sampling
    if fullest in SAMPLING:
        buckets = sampling.prefill_buckets
        for last in PREFILL:
            if fullest == "prefill" and buckets[-1] > last:
                smaller = tuple(size for size in buckets if size < last)
                yield {"sampling.prefill_buckets": (*smaller, last)}
        for part in (2, 4, 8):
            if sampling.slots % part == 0:
                yield {"sampling.slots": sampling.slots // part}
        return
    if not settings.policy.remat:
        yield {"policy.remat": True}
    least = train.length_buckets[-1] * devices // settings.mesh.tensor
    rows = train.micro_batch_tokens // least
    for fewer in (rows // 2, rows // 4, 1):
        if 1 <= fewer < rows:
            yield {"train.micro_batch_tokens": fewer * least}


def _gap(settings: RunSettings) -> Changes:
    """Rounding in bfloat16 alone would stop a run with a tight bound."""
    gap = settings.train.max_log_prob_gap
    return {} if gap >= 0.1 else {"train.max_log_prob_gap": 0.1}
