"""Texts to unit vectors: one protocol, a bounded cache, embedders by name.

The token vectors that the ``wordllama`` wheel carries, read without importing it.

Sentence embedders of the optional package ``sentence-transformers``.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import importlib.util
import json
import pathlib
import re
import struct
import threading
import unicodedata
import warnings
import zlib
from typing import Any, Protocol

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


_PACKAGE = "sentence_transformers"


class SentenceEmbedder:
    """A model of the library sentence-transformers, on the CPU.

    name: ``sentence_transformers:MODEL:DIGEST``, the digest over the weights and how
    they are pooled; two models are never taken for one, and a copy in another folder of
    the same name is the same. dim: the model's own. A text's row may differ in its last
    bits with the batch that it is embedded in.

    Args:
      model: a local directory as ``SentenceTransformer.save`` writes it, or the name of
        a model on a hub, which must then be reachable.
      batch_size: texts in one forward pass.

    Raises:
      ImportError: the package is missing. ValueError: the model cannot be read.
    """

    def __init__(self, model: str, batch_size: int = 64):
        library = _library()
        self._batch_size = batch_size
        self._model = _load(library, model)
        self.dim = self._width()
        self.name = f"{_PACKAGE}:{pathlib.Path(model).name}:{_digest(self._model)}"

    def embed(self, texts: list[str]) -> np.ndarray:
        """float32 [len(texts), dim] of unit norm."""
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        # Half of a surrogate pair is no text to a tokenizer.
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        rows = self._model.encode(
            clean,
            batch_size=self._batch_size,
            show_progress_bar=False,
            convert_to_numpy=True,
        )
        return self._checked(np.asarray(rows), len(texts))

    def _width(self) -> int:
        """Found by a try: what a model says of its width need not be what it gives."""
        rows = np.asarray(self._model.encode(["width"], show_progress_bar=False))
        if rows.ndim != 2 or not rows.shape[1]:
            raise ValueError(
                f"embedder {_PACKAGE!r}: expected one row of numbers a text, got "
                f"{rows.shape}; set memory.embedder_model to a model of sentences"
            )
        return rows.shape[1]

    def _checked(self, rows: np.ndarray, count: int) -> np.ndarray:
        """Rows as float32 of unit norm, or a ValueError."""
        shape = (count, self.dim)
        if rows.shape != shape or not np.isfinite(rows).all():
            raise ValueError(
                f"embedder {self.name!r}: expected finite rows of shape {shape}, got "
                f"{rows.dtype} {rows.shape}; set memory.embedder_model to a whole model"
            )
        rows = rows.astype(np.float32)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        first = np.eye(1, self.dim, dtype=np.float32)  # for a row without a direction
        return np.where(norms > 1e-12, rows / np.maximum(norms, 1e-12), first)


def _library() -> Any:
    if importlib.util.find_spec(_PACKAGE) is None:
        raise ImportError(
            f"embedder {_PACKAGE!r} needs the package sentence-transformers, which is "
            "not installed: pip install 'mempo_jax[sentence-transformers]', or set "
            "memory.embedder to 'static'"
        )
    return importlib.import_module(_PACKAGE)


def _load(library: Any, model: str) -> Any:
    path = pathlib.Path(model).expanduser()
    if not path.is_dir() and (path.is_absolute() or model.startswith((".", "~"))):
        raise ValueError(
            f"embedder {_PACKAGE!r}: expected a model directory, got {model!r}, which "
            "is none; set memory.embedder_model"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the library, about its own parts
            return library.SentenceTransformer(
                str(path) if path.is_dir() else model, device="cpu"
            )
    except Exception as error:
        raise ValueError(
            f"embedder {_PACKAGE!r}: the model {model!r} cannot be read "
            f"({type(error).__name__}: {str(error)[:200]}). Expected a directory that "
            "SentenceTransformer.save wrote, or, with a hub in reach, a model's name; "
            "set memory.embedder_model"
        ) from error


def _digest(model: Any) -> str:
    """Twelve hex digits over the weights, the layers, the pooling and the cut."""
    digest = hashlib.sha256()
    for module in model:
        pooling = getattr(module, "pooling_mode", "")
        digest.update(f"{type(module).__name__} {pooling}\n".encode())
    digest.update(f"{getattr(model, 'max_seq_length', None)}\n".encode())
    for name, weights in sorted(model.state_dict().items()):
        values = np.ascontiguousarray(weights.detach().cpu().float().numpy())
        digest.update(f"{name} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()[:12]


_WORD = re.compile(r"\w+", re.UNICODE)


class Embedder(Protocol):
    """What a bank needs: a name and a width, both saved with it, and ``embed``."""

    name: str
    dim: int

    def embed(self, texts: list[str]) -> np.ndarray:
        """float32 [len(texts), dim], rows of unit norm, never NaN."""


class HashingEmbedder:
    """Signed feature hashing of words and of character 3-grams within words.

    No weights, deterministic everywhere. Weinberger et al., "Feature Hashing for Large
    Scale Multitask Learning", 2009.
    """

    name = "hashing"

    def __init__(self, dim: int):
        if dim < 1:
            raise ValueError(f"hashing embedder: dim must be >= 1, got {dim}")
        self.dim = dim

    def embed(self, texts: list[str]) -> np.ndarray:
        """float32 [len(texts), dim] of unit norm."""
        rows = np.zeros((len(texts), self.dim), np.float32)
        for row, text in zip(rows, texts):
            for feature, weight in _features(text):
                code = zlib.crc32(feature.encode("utf-8", "surrogatepass"))
                row[(code >> 1) % self.dim] += weight if code & 1 else -weight
        return unit_rows(rows)


def _features(text: str):
    """Words count 1; the 3-grams of a word count 1 together (in squared norm)."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    for word in _WORD.findall(folded):
        yield word, 1.0
        padded = f"<{word}>"
        weight = 0.7 / max(len(padded) - 2, 1) ** 0.5
        for start in range(len(padded) - 2):
            yield "#" + padded[start : start + 3], weight


class CachedEmbedder:
    """Remembers the ``capacity`` texts used last; rows are read-only and shared."""

    def __init__(self, embedder: Embedder, capacity: int):
        self._embedder = embedder
        self._capacity = capacity
        self._rows: collections.OrderedDict[str, np.ndarray] = collections.OrderedDict()
        self._lock = threading.Lock()
        self.name = embedder.name
        self.dim = embedder.dim

    def embed(self, texts: list[str]) -> np.ndarray:
        """float32 [len(texts), dim]; texts seen lately are not embedded again."""
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        if len(texts) > self._capacity:  # a bulk build would only flush the cache
            return self._embedder.embed(list(texts))
        with self._lock:
            missing = [t for t in dict.fromkeys(texts) if t not in self._rows]
        fresh = {}
        if missing:
            rows = self._checked(self._embedder.embed(missing), len(missing))
            fresh = {text: _frozen(row) for text, row in zip(missing, rows)}
        with self._lock:
            if len(texts) == 1:
                return self._remember(texts[0], fresh)[None]
            return np.stack([self._remember(text, fresh) for text in texts])

    def _remember(self, text: str, fresh: dict) -> np.ndarray:
        row = self._rows.get(text)
        if row is None:
            row = fresh.get(text)
            if row is None:  # pushed out by this very batch
                row = _frozen(self._checked(self._embedder.embed([text]), 1)[0])
            self._rows[text] = row
            if len(self._rows) > self._capacity:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(text)
        return row

    def _checked(self, rows, count: int) -> np.ndarray:
        """What does not fit is never remembered: it would outlive its cause."""
        shape, got = (count, self.dim), getattr(rows, "shape", None)
        fits = got == shape and rows.dtype == np.float32 and np.isfinite(rows).all()
        if not fits:
            raise ValueError(
                f"embedder {self.name!r}: expected finite float32 rows of shape {shape}"
                f", got {getattr(rows, 'dtype', type(rows).__name__)} {got}; see "
                "memory.embedder"
            )
        return rows


def _frozen(row: np.ndarray) -> np.ndarray:
    """A read-only copy: as a view it would keep its whole batch alive."""
    row = row.copy()
    row.setflags(write=False)
    return row


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Rows divided by their norms; a zero or non-finite row becomes the first axis."""
    rows = np.asarray(rows, np.float32)
    norms = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float64))
    empty = ~(np.isfinite(norms) & (norms > 1e-20))
    rows = rows / np.where(empty, 1.0, norms)[:, None]
    rows[empty] = 0.0
    rows[empty, 0] = 1.0
    return rows.astype(np.float32)


class StaticEmbedder:
    """Mean of static token vectors, 256-d, from the installed ``wordllama`` wheel.

    Real word semantics, no torch, no network; blind to the order of words.
    """

    name = "static"

    def __init__(self):
        self._model = load()
        self.dim = self._model.dim

    def embed(self, texts: list[str]) -> np.ndarray:
        """float32 [len(texts), 256] of unit norm."""
        return unit_rows(self._model.mean_rows(list(texts)))


def make_embedder(name: str, *, cache_size: int = 20_000, **settings) -> Embedder:
    """An embedder behind a cache of ``cache_size`` texts (0: no cache).

    Args:
      name: ``hashing`` (``dim``, 256 if not given), ``static``, or
        ``sentence_transformers`` (``model``, a local directory or a name on a hub; see
        ``SentenceEmbedder``).

    Raises:
      ValueError: for an unknown name, a setting too many, or a model that cannot be
        read. FileNotFoundError: ``static`` without its wheel. ImportError:
        ``sentence_transformers`` without the package.
    """
    if name == "hashing":
        embedder = HashingEmbedder(settings.pop("dim", 256))
    elif name == "static":
        embedder = StaticEmbedder()
    elif name == "sentence_transformers":
        embedder = _sentence_embedder(settings)
    else:
        raise ValueError(
            "embedder must be 'hashing', 'static' or 'sentence_transformers', got "
            f"{name!r}; set memory.embedder"
        )
    if settings:
        raise ValueError(f"embedder {name!r} takes no setting {sorted(settings)}")
    return CachedEmbedder(embedder, cache_size) if cache_size else embedder


def _sentence_embedder(settings: dict) -> Embedder:
    if not settings.get("model"):
        raise ValueError(
            "embedder 'sentence_transformers' expected model=, a local directory, got "
            f"{settings.get('model')!r}; set memory.embedder_model"
        )
    return SentenceEmbedder(settings.pop("model"))
