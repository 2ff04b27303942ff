"""Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): h = x W + alpha/rank * (x a) b.

``a`` starts random and ``b`` at 0, so a fresh adapter changes no bit of the output. In
a tree of parameters an adapter is beside the kernel that it belongs to::

    layers/attention/query/kernel [L, D, H*C]
    layers/attention/query/adapter/a [L, D, r]     .../adapter/b [L, r, H*C]

If a tree has adapters, only they are trained. ``split`` takes them out: what is left is
the base, the very same arrays, which is also the policy with its adapters off.

On disk, adapters are a directory of adapter_config.json and adapter_model.safetensors,
which the `peft` package reads. It must not be the directory of a whole model, which
`transformers` would then take for an adapted one.
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
from mempo_jax.models.layers import DecoderConfig, precision_of

Array = jax.Array
Params = dict[str, Any]
ADAPTER = "adapter"
_PREFIX = "base_model.model."  # what `peft` wraps a causal language model in
_KERNEL, _WEIGHT = "/kernel", ".weight"
# Name of each projection -> the block of a layer that has it.
PROJECTIONS = {
    **dict.fromkeys(("query", "key", "value", "output"), "attention"),
    **dict.fromkeys(("gate", "up", "down"), "mlp"),
}


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Which projections have adapters, and how large these are.

    Attributes:
      rank: r of the adapters; 0 for none, so that all weights are trained.
      alpha: of the factor alpha / r.
      targets: the projections that have an adapter, of ``PROJECTIONS``.
    """

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
        """The factor alpha / r of an adapter's output."""
        return self.alpha / self.rank


class Adapter(nnx.Module):
    """Computes (x a) b * scale in the dtype of x, for flat x [N, inputs]."""

    def __init__(self, rngs: nnx.Rngs, inputs: int, outputs: int, lora: LoraConfig):
        noise = jax.random.normal(rngs(), (inputs, lora.rank))
        self.a = nnx.Param(noise * inputs**-0.5)  # so that x a is about as large as x
        self.b = nnx.Param(jnp.zeros((lora.rank, outputs)))
        self.scale = lora.scale

    def __call__(self, x: Array) -> Array:
        precision = precision_of(x.dtype)
        thin = jnp.matmul(x, self.a[...].astype(x.dtype), precision=precision)
        wide = jnp.matmul(thin, self.b[...].astype(x.dtype), precision=precision)
        return wide * self.scale


def attach(block: Any, lora: LoraConfig, rngs: nnx.Rngs) -> None:
    """Adds adapters to a layer, in place.

    Args:
      block: a ``layers.DecoderLayer``.
      lora: which projections get an adapter.
      rngs: draws each ``a``.
    """
    for name in lora.targets:
        projection = getattr(getattr(block, PROJECTIONS[name]), name)
        adapter = Adapter(rngs, *projection.kernel.shape, lora)
        # nnx took the None of ``Projection`` for static; now it is part of the tree.
        projection.adapter = nnx.data(adapter)


def split(params: Params) -> tuple[Params, Params]:
    """Splits parameters into what is trained and what is frozen.

    Args:
      params: all parameters.

    Returns:
      Adapters and base; if there are no adapters, everything and {}.
    """
    adapters, base = _split(params)
    return (adapters, base) if adapters else (params, {})


def join(trained: Params, frozen: Params) -> Params:
    """Undoes ``split``; the tree shares every array with its parts.

    Args:
      trained: the first part.
      frozen: the second part.
    """
    if not frozen:
        return trained
    joined = dict(frozen)
    for name, value in trained.items():
        joined[name] = join(value, joined[name]) if name in joined else value
    return joined


def new_adapters(base: Params, lora: LoraConfig, key: Array) -> Params:
    """Draws fresh float32 adapters; allocates nothing as large as the base.

    Args:
      base: parameters without adapters, arrays or shapes.
      lora: which projections get an adapter.
      key: a PRNG key; each projection derives its own from its name, so that other
        targets do not change its draw.
    """
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


def with_drawn_b(adapters: Params, std: float) -> Params:
    """Draws each ``b`` anew, so that adapters that were fresh do something.

    Args:
      adapters: as ``split`` gives them.
      std: standard deviation of each element; with 1 / (sqrt(r) * scale) an adapter's
        output is about as large as that of its kernel.
    """

    def draw(path: Any, leaf: Array) -> Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not name.endswith("/b"):
            return leaf
        # As for ``new_adapters``: other targets do not change the draw of this one.
        own = jax.random.fold_in(jax.random.key(0), zlib.crc32(name.encode()))
        return std * jax.random.normal(own, leaf.shape, leaf.dtype)

    return jax.tree.map_with_path(draw, adapters)


def merged(
    params: Params,
    path: str,
    layer: int | None,
    lora: LoraConfig | None,
    fetch: Callable[[Any, int | None], np.ndarray],
) -> np.ndarray:
    """Returns one parameter as ``merge`` computes it, one layer at a time.

    Args:
      params: all parameters.
      path: of the parameter, such as "layers/mlp/up/kernel".
      layer: number of the layer; None for all of it.
      lora: of the adapters in ``params``; None returns the parameter unchanged.
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
    """Replaces each adapted kernel W by W + scale a b, on the host.

    All is float32 numpy, since a bfloat16 sum would lose most of a small change.

    Args:
      params: all parameters.
      lora: of the adapters in ``params``.
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


def save_adapters(
    directory: str | os.PathLike,
    config: DecoderConfig,
    params: Mapping[str, Any],
    lora: LoraConfig,
    base: str | os.PathLike,
) -> None:
    """Writes the adapters for `peft`, in float32.

    Args:
      directory: is made if it does not exist.
      config: the decoder's shape.
      params: all parameters, or only the adapters.
      lora: of the adapters in ``params``.
      base: the model directory that they adapt, which adapter_config.json names.
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
                # torch stores matrices as [outputs, inputs].
                tensors[key] = np.ascontiguousarray(value[layer].T)
        # A dict for a set in order: each target once.
        modules[entry.name.removesuffix(_WEIGHT).rpartition(".")[2]] = None
    path.mkdir(parents=True, exist_ok=True)
    adapter_config = {
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
    (path / "adapter_config.json").write_text(
        json.dumps(adapter_config, indent=2) + "\n"
    )
    save_file(tensors, str(path / "adapter_model.safetensors"))


def _at(tree: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    for name in path.split("/"):
        if not isinstance(tree, Mapping) or name not in tree:
            return {}
        tree = tree[name]
    return tree if isinstance(tree, Mapping) else {}
