"""Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): h = x W + alpha/rank * (x a) b.

``a`` starts random and ``b`` at 0, so a fresh adapter changes nothing, to the bit. In a
tree of parameters an adapter stands beside the kernel it belongs to::

    layers/attention/query/kernel [L, D, H*C]
    layers/attention/query/adapter/a [L, D, r]     .../adapter/b [L, r, H*C]

Where a tree has adapters they alone are trained. ``split`` takes them out: what is left
is the base, the very same arrays, which is also the policy with its adapters off.

Adapters on disk, in the layout that the `peft` package reads.

A directory of adapter_config.json and adapter_model.safetensors. It must not be the
directory of a whole model, which `transformers` would then take for an adapted one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from mempo_jax.models.families import tensor_names, tensor_table
from mempo_jax.models.layers import DecoderConfig

Array = jax.Array
Params = dict[str, Any]
ADAPTER = "adapter"
PROJECTIONS = {
    **dict.fromkeys(("query", "key", "value", "output"), "attention"),
    **dict.fromkeys(("gate", "up", "down"), "mlp"),
}


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """rank r of the adapters (0: none, all weights are trained), alpha in the factor
    alpha / r, and the projections that have one, of ``PROJECTIONS``."""

    rank: int
    alpha: float
    targets: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ValueError(
                "config.policy.lora.rank: expected at least 0 (0: off), got "
                f"{self.rank}"
            )
        if not self.alpha > 0:
            raise ValueError(
                f"config.policy.lora.alpha: expected above 0, got {self.alpha}"
            )
        unknown = [name for name in self.targets if name not in PROJECTIONS]
        if unknown or not self.targets or len(set(self.targets)) < len(self.targets):
            raise ValueError(
                "config.policy.lora.targets: expected some of "
                f"{', '.join(PROJECTIONS)}, each once; got {self.targets}"
            )

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class Adapter(nnx.Module):
    """(x a) b * scale in the dtype of x, for flat x [N, inputs]."""

    def __init__(self, rngs: nnx.Rngs, inputs: int, outputs: int, lora: LoraConfig):
        noise = jax.random.normal(rngs(), (inputs, lora.rank))
        self.a = nnx.Param(noise * inputs**-0.5)
        self.b = nnx.Param(jnp.zeros((lora.rank, outputs)))
        self.scale = lora.scale

    def __call__(self, x: Array) -> Array:
        thin = x @ self.a[...].astype(x.dtype)
        return thin @ self.b[...].astype(x.dtype) * self.scale


def attach(block: Any, lora: LoraConfig, rngs: nnx.Rngs) -> None:
    """Gives a layer (``layers.Block``) its adapters."""
    for name in lora.targets:
        projection = getattr(getattr(block, PROJECTIONS[name]), name)
        made = Adapter(rngs, *projection.kernel.shape, lora)
        projection.adapter = nnx.data(made)  # None, until now, was no data


def split(params: Params) -> tuple[Params, Params]:
    """(what is trained, what is frozen): adapters and base; without adapters
    everything and nothing."""
    adapters, base = _split(params)
    return (adapters, base) if adapters else (params, {})


def join(trained: Params, frozen: Params) -> Params:
    """The whole tree again; shares every array."""
    if not frozen:
        return trained
    joined = dict(frozen)
    for name, value in trained.items():
        joined[name] = join(value, joined[name]) if name in joined else value
    return joined


def new_adapters(base: Params, lora: LoraConfig, key: Array) -> Params:
    """Fresh adapters for a base, arrays or shapes; float32, each drawn with its own
    key. Nothing as large as the base is made."""
    adapters: Params = {}
    for name in lora.targets:
        group = PROJECTIONS[name]
        layers, inputs, outputs = base["layers"][group][name]["kernel"].shape
        own = jax.random.fold_in(key, zlib.crc32(name.encode()))
        noise = jax.random.normal(own, (layers, inputs, lora.rank))
        pair = {
            "a": noise * inputs**-0.5,
            "b": jnp.zeros((layers, lora.rank, outputs)),
        }
        adapters.setdefault(group, {})[name] = {ADAPTER: pair}
    return {"layers": adapters}


def merged(
    params: Params,
    path: str,
    layer: int | None,
    lora: LoraConfig | None,
    fetch: Callable[[Any, int | None], np.ndarray],
) -> np.ndarray:
    """One layer of the parameter at ``path`` ("layers/mlp/up/kernel"), or all of it,
    as ``merge`` makes it; untouched without ``lora``.

    fetch: (array, layer) -> numpy.
    """
    *outer, last = path.split("/")
    for name in outer:
        params = params[name]
    value = fetch(params[last], layer)
    if lora is None:
        return value
    value = np.asarray(value, np.float32)
    if last != "kernel" or ADAPTER not in params:
        return value
    pair = params[ADAPTER]
    a, b = (np.asarray(fetch(pair[side], layer), np.float32) for side in "ab")
    return value + lora.scale * (a @ b)


def merge(params: Params, lora: LoraConfig) -> Params:
    """W + scale a b in place of each adapted kernel W, on the host; all float32 numpy,
    since a bfloat16 sum would lose most of a small change.
    """
    merged = {}
    for name, value in params.items():
        if not isinstance(value, dict):
            merged[name] = np.asarray(value, np.float32)
            continue
        merged[name] = merge({k: v for k, v in value.items() if k != ADAPTER}, lora)
        if ADAPTER in value:
            a, b = (np.asarray(value[ADAPTER][side], np.float32) for side in "ab")
            merged[name]["kernel"] = merged[name]["kernel"] + lora.scale * (a @ b)
    return merged


def _split(tree: Params) -> tuple[Params, Params]:
    adapters: Params = {}
    base: Params = {}
    for name, value in tree.items():
        if name == ADAPTER:
            adapters[name] = value
        elif isinstance(value, dict):
            inner, rest = _split(value)
            base[name] = rest
            if inner:
                adapters[name] = inner
        else:
            base[name] = value
    return adapters, base


_PREFIX = "base_model.model."  # what `peft` wraps a causal language model in
_KERNEL, _WEIGHT = "/kernel", ".weight"


def save_adapters(
    directory: str | os.PathLike,
    config: DecoderConfig,
    params: Mapping[str, Any],
    lora: LoraConfig,
    base: str | os.PathLike,
) -> None:
    """Writes the adapters in ``params``; float32.

    base: the model directory that they adapt, which the config then names.
    """
    path, tensors, modules = Path(directory), {}, {}
    for entry in tensor_table(config):
        projection = _at(params, entry.path.removesuffix(_KERNEL))
        if not entry.path.endswith(_KERNEL) or ADAPTER not in projection:
            continue
        pair = projection[ADAPTER]
        for side, name in (("a", "lora_A"), ("b", "lora_B")):
            value = np.asarray(pair[side], np.float32)
            for layer, stored in enumerate(tensor_names(entry, config)):
                key = f"{_PREFIX}{stored.removesuffix(_WEIGHT)}.{name}{_WEIGHT}"
                tensors[key] = np.ascontiguousarray(value[layer].T)
        modules[entry.name.removesuffix(_WEIGHT).rpartition(".")[2]] = None
    path.mkdir(parents=True, exist_ok=True)
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": os.fspath(Path(base).absolute()),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": list(modules),
    }
    (path / "adapter_config.json").write_text(json.dumps(described, indent=2) + "\n")
    save_file(tensors, str(path / "adapter_model.safetensors"))


def _at(tree: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    for name in path.split("/"):
        if not isinstance(tree, Mapping) or name not in tree:
            return {}
        tree = tree[name]
    return tree if isinstance(tree, Mapping) else {}
