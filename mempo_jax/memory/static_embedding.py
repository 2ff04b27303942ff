"""The token vectors that the ``wordllama`` wheel carries, read without importing it."""

from __future__ import annotations

import functools
import importlib.util
import json
import pathlib
import struct

import numpy as np

_WEIGHTS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
_TENSOR = "embedding.weight"


class StaticModel:
    """Token vectors float32 [V, dim] and the tokenizer that indexes them."""

    def __init__(self, vectors: np.ndarray, tokenizer):
        self._vectors = vectors
        self._tokenizer = tokenizer
        self.dim = vectors.shape[1]

    def mean_rows(self, texts: list[str]) -> np.ndarray:
        """Mean token vector of each text, float32 [N, dim]; zeros without a token."""
        rows = np.zeros((len(texts), self.dim), np.float32)
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        encodings = self._tokenizer.encode_batch(clean, add_special_tokens=False)
        for row, encoding in zip(rows, encodings):
            ids = np.asarray(encoding.ids, np.int64)
            if ids.size:
                ids = np.minimum(ids, len(self._vectors) - 1)
                row[:] = self._vectors[ids].mean(axis=0)
        return rows


@functools.cache
def load() -> StaticModel:
    """The model, read once a process; FileNotFoundError says what to install."""
    import tokenizers  # here: banks with the hashing embedder need none

    spec = importlib.util.find_spec("wordllama")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            "embedder 'static' reads the vectors in the package wordllama, which is "
            "not installed: pip install wordllama, or set memory.embedder='hashing'"
        )
    folder = pathlib.Path(spec.origin).parent
    for name in (_WEIGHTS, _TOKENIZER):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"embedder 'static' expected {name} in {folder}: this wordllama has "
                "another layout; install version 0.4, or set memory.embedder='hashing'"
            )
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / _TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return StaticModel(_read_tensor(folder / _WEIGHTS, _TENSOR), tokenizer)


def _read_tensor(path: pathlib.Path, name: str) -> np.ndarray:
    """One float16 tensor of a safetensors file as float32."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    entry = json.loads(data[8 : 8 + length])[name]
    if entry["dtype"] != "F16":
        raise ValueError(f"{path}: expected {name} as F16, got {entry['dtype']}")
    start, end = entry["data_offsets"]
    flat = np.frombuffer(data[8 + length + start : 8 + length + end], "<f2")
    return flat.reshape(entry["shape"]).astype(np.float32)
