"""Adapters on disk, in the layout that the `peft` package reads.

A directory of adapter_config.json and adapter_model.safetensors. It must not be the
directory of a whole model, which `transformers` would then take for an adapted one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from mempo_jax.models.decoder import DecoderConfig
from mempo_jax.models.families import tensor_names, tensor_table
from mempo_jax.models.lora import ADAPTER, Lora

_PREFIX = "base_model.model."  # what `peft` wraps a causal language model in
_KERNEL, _WEIGHT = "/kernel", ".weight"


def save_adapters(
    directory: str | os.PathLike,
    config: DecoderConfig,
    params: Mapping[str, Any],
    lora: Lora,
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
