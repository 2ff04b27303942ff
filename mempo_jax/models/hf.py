"""Hugging Face model directories: config.json, safetensors weights, tokenizer.

One table maps our parameter paths to a checkpoint's tensor names. Every tensor must be
used once and every parameter filled once; what does not fit is listed in one error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from mempo_jax.models.decoder import DecoderConfig, Params
from mempo_jax.models.families import (
    Entry,
    config_json,
    read_config,
    read_json,
    tensor_names,
    tensor_table,
)
from mempo_jax.models.tokenizer import Tokenizer

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


def load(directory: str | os.PathLike) -> tuple[DecoderConfig, Params, Tokenizer]:
    """Config, float32 numpy parameters and tokenizer of a model directory.

    Raises ValueError, naming the directory and what it lacks or what does not fit.
    """
    path = Path(directory)
    _check_directory(path)
    config = read_config(path)
    tokenizer = Tokenizer.load(path)
    if tokenizer.vocab_size > config.vocab_size:
        raise ValueError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} ids, but the model only "
            f"{config.vocab_size} (vocab_size in config.json); they do not belong "
            "together"
        )
    return config, load_params(path), tokenizer


def load_params(directory: str | os.PathLike) -> Params:
    """Float32 numpy parameters in the decoder's layout, from one or several files."""
    path = Path(directory)
    config = read_config(path)
    tensors = _read_tensors(path)
    _drop_derived(tensors, config, path)
    table = tensor_table(config)
    _check_complete(path, table, tensors, config)
    params: Params = {}
    for entry in table:
        names = tensor_names(entry, config)
        parts = [_turn(tensors.pop(name), entry) for name in names]
        _set(params, entry.path, np.stack(parts) if entry.stacked else parts[0])
    return params


def save(
    directory: str | os.PathLike,
    config: DecoderConfig,
    params: Mapping[str, Any],
    tokenizer: Tokenizer,
) -> None:
    """Writes a directory that ``transformers`` loads; weights in float32.

    The weights are renamed into place last, so a directory with weights is whole.
    """
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(path)
    (path / "config.json").write_text(
        json.dumps(
            config_json(config, list(tokenizer.stop_ids), tokenizer.pad_id), indent=2
        )
        + "\n"
    )
    tensors = {}
    for entry in tensor_table(config):
        value = np.asarray(_get(params, entry.path), np.float32)
        for index, name in enumerate(tensor_names(entry, config)):
            part = _turn(value[index] if entry.stacked else value, entry)
            tensors[name] = np.ascontiguousarray(part)
    unfinished = path / f"{_WEIGHTS}.unfinished"
    save_file(tensors, str(unfinished), metadata={"format": "pt"})
    unfinished.replace(path / _WEIGHTS)


def _turn(value: np.ndarray, entry: Entry) -> np.ndarray:
    return value.T if entry.turned else value


def _get(tree: Mapping[str, Any], path: str):
    for name in path.split("/"):
        tree = tree[name]
    return tree


def _set(tree: dict[str, Any], path: str, value) -> None:
    *outer, last = path.split("/")
    for name in outer:
        tree = tree.setdefault(name, {})
    tree[last] = value


def _check_complete(path, table, tensors, config) -> None:
    """Missing, unused, misshapen and not finite tensors, all in one error."""
    expected = {}
    for entry in table:
        shape = entry.shape[::-1] if entry.turned else entry.shape
        expected.update(dict.fromkeys(tensor_names(entry, config), shape))
    problems = [f"missing {name}" for name in expected if name not in tensors]
    problems += [f"unused {name}" for name in tensors if name not in expected]
    problems += [
        f"{name} has shape {list(tensors[name].shape)}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in tensors and tensors[name].shape != shape
    ]
    problems += [
        f"{name} has values that are not finite"
        for name, tensor in tensors.items()
        if not np.isfinite(tensor).all()
    ]
    if problems:
        raise ValueError(
            f"the weights in {path} do not fit its config.json: "
            f"{'; '.join(sorted(problems))}"
        )


def _drop_derived(tensors: dict, config: DecoderConfig, path: Path) -> None:
    """Removes what is no parameter: rotary tables, and a copy of tied embeddings."""
    for name in [name for name in tensors if name.endswith("rotary_emb.inv_freq")]:
        del tensors[name]
    head = tensors.get("lm_head.weight")
    embedding = tensors.get("model.embed_tokens.weight")
    if config.tied and head is not None and embedding is not None:
        if not np.array_equal(head, embedding):
            raise ValueError(
                f"the weights in {path} do not fit its config.json: it says "
                "tie_word_embeddings, but lm_head.weight and "
                "model.embed_tokens.weight differ"
            )
        del tensors["lm_head.weight"]


def _read_tensors(path: Path) -> dict[str, np.ndarray]:
    if not (path / _INDEX).is_file():
        return _read_file(path / _WEIGHTS)
    tensors = {}
    index = read_json(path / _INDEX).get("weight_map")
    if not isinstance(index, dict) or not all(
        isinstance(v, str) for v in index.values()
    ):
        raise ValueError(
            f"{path / _INDEX}: expected an object weight_map, from tensor to file name"
        )
    for name in sorted(set(index.values())):
        tensors.update(_read_file(path / name))
    return tensors


def _read_file(path: Path) -> dict[str, np.ndarray]:
    try:
        with safe_open(str(path), framework="np") as file:
            names = tuple(file.keys())
            return {name: file.get_tensor(name).astype(np.float32) for name in names}
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a readable safetensors file ({error}): it is missing, cut "
            "off or damaged; copy it again"
        ) from error


def _check_directory(path: Path) -> None:
    parts = {
        "config.json": (path / "config.json").is_file(),
        f"{_WEIGHTS} (or {_INDEX})": any(
            (path / name).is_file() for name in (_WEIGHTS, _INDEX)
        ),
        "tokenizer.json": (path / "tokenizer.json").is_file(),
    }
    if missing := [name for name, found in parts.items() if not found]:
        raise ValueError(
            f"{path} is not a Hugging Face model directory: it lacks "
            f"{', '.join(missing)}; set policy.path to a directory that has them"
        )
