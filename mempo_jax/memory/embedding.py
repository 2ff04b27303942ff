"""Embedders turn texts into unit vectors: three kinds, and a cache for any of them.

``hashing`` needs no weights, ``static`` reads the token vectors in the package
``wordllama`` without importing it, and ``sentence_transformers`` runs a model of the
optional package of that name.
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

# Files and tensor in the wheel of wordllama 0.4.
_WEIGHTS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
_TENSOR = "embedding.weight"
_PACKAGE = "sentence_transformers"
_WORD = re.compile(r"\w+", re.UNICODE)


class Embedder(Protocol):
    """What a bank needs to embed its texts.

    Attributes:
      name: saved with the bank.
      dim: width of the vectors, saved with the bank.
    """

    name: str
    dim: int

    def embed(self, texts: list[str]) -> np.ndarray:
        """Embeds texts as float32 [N, dim], rows of unit norm, never NaN.

        Args:
          texts: any strings.
        """


def make_embedder(name: str, *, cache_size: int = 20_000, **settings) -> Embedder:
    """Makes an embedder, by name, behind a cache.

    Args:
      name: ``hashing``, ``static`` or ``sentence_transformers``.
      cache_size: texts that the cache remembers; 0 for no cache.
      **settings: ``dim`` for ``hashing`` (256 if not given); ``model`` for
        ``sentence_transformers``, see ``SentenceEmbedder``.

    Raises:
      ValueError: an unknown name, a setting too many, or a model that cannot be read.
      FileNotFoundError: ``static`` without its package.
      ImportError: ``sentence_transformers`` without the package.
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


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Divides rows by their norms; a zero or non-finite row becomes the first axis.

    Args:
      rows: [N, dim].

    Returns:
      float32 [N, dim].
    """
    rows = np.asarray(rows, np.float32)
    # In float64 the squares of float32 numbers neither overflow nor vanish.
    norms = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float64))
    empty = ~(np.isfinite(norms) & (norms > 1e-20))
    rows = rows / np.where(empty, 1.0, norms)[:, None]  # 1: no division by 0
    rows[empty] = 0.0
    rows[empty, 0] = 1.0
    return rows.astype(np.float32)


def checked_rows(rows, count: int, dim: int, where: str) -> np.ndarray:
    """Returns a read-only copy of embeddings: their maker may write over them later.

    Args:
      rows: what should be float32 [count, dim], unit norm.
      count: of texts.
      dim: width of the vectors.
      where: they come from, for the message.

    Raises:
      ValueError: they are something else, or not finite.
    """
    try:
        rows = np.array(rows)
    except ValueError:  # rows of different lengths: refused below
        rows = np.array(None)
    fits = rows.shape == (count, dim) and rows.dtype == np.float32
    # 1e-3 is far above the rounding of float32 and below any fault that matters.
    if not fits or not (abs(np.einsum("nd,nd->n", rows, rows) - 1) < 1e-3).all():
        raise ValueError(
            f"{where}: expected finite float32 rows of unit norm, shape "
            f"{(count, dim)}; got {rows.dtype} {rows.shape}; see memory.embedder"
        )
    rows.setflags(write=False)
    return rows


class HashingEmbedder:
    """Signed feature hashing of words and of character 3-grams within words.

    It has no weights and is deterministic everywhere. Weinberger et al., "Feature
    Hashing for Large Scale Multitask Learning", 2009.
    """

    name = "hashing"

    def __init__(self, dim: int):
        """Makes an embedder.

        Args:
          dim: width of the vectors.

        Raises:
          ValueError: ``dim`` is below 1.
        """
        if dim < 1:
            raise ValueError(f"hashing embedder: dim must be >= 1, got {dim}")
        self.dim = dim

    def embed(self, texts: list[str]) -> np.ndarray:
        """Embeds texts as float32 [N, dim], unit norm.

        Args:
          texts: any strings.
        """
        rows = np.zeros((len(texts), self.dim), np.float32)
        for row, text in zip(rows, texts):
            for feature, weight in _features(text):
                code = zlib.crc32(feature.encode("utf-8", "surrogatepass"))
                # The lowest bit is the sign: collisions cancel on average.
                row[(code >> 1) % self.dim] += weight if code & 1 else -weight
        return unit_rows(rows)


def _features(text: str):
    """Yields features and weights: words 1, the 3-grams of a word 0.7 as one norm."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    for word in _WORD.findall(folded):
        yield word, 1.0
        padded = f"<{word}>"
        weight = 0.7 / max(len(padded) - 2, 1) ** 0.5
        for start in range(len(padded) - 2):
            yield "#" + padded[start : start + 3], weight


class StaticEmbedder:
    """Mean of static token vectors, 256 numbers wide, from the package ``wordllama``.

    It knows the senses of words without torch or a network, and is blind to their
    order.
    """

    name = "static"

    def __init__(self):
        self._model = load()
        self.dim = self._model.dim

    def embed(self, texts: list[str]) -> np.ndarray:
        """Embeds texts as float32 [N, 256], unit norm.

        Args:
          texts: any strings.
        """
        return unit_rows(self._model.mean_rows(list(texts)))


class StaticModel:
    """Token vectors and the tokenizer that indexes them.

    Attributes:
      dim: width of the vectors.
    """

    def __init__(self, vectors: np.ndarray, tokenizer):
        """Takes both parts.

        Args:
          vectors: float32 [V, dim].
          tokenizer: of the package ``tokenizers``.
        """
        self._vectors = vectors
        self._tokenizer = tokenizer
        self.dim = vectors.shape[1]

    def mean_rows(self, texts: list[str]) -> np.ndarray:
        """Returns the mean token vector of each text; zeros for a text without a token.

        Args:
          texts: any strings.

        Returns:
          float32 [N, dim].
        """
        rows = np.zeros((len(texts), self.dim), np.float32)
        # A tokenizer refuses half of a surrogate pair.
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        encodings = self._tokenizer.encode_batch(clean, add_special_tokens=False)
        for row, encoding in zip(rows, encodings):
            ids = np.asarray(encoding.ids, np.int64)
            if ids.size:
                # The tokenizer may know more tokens than there are vectors.
                ids = np.minimum(ids, len(self._vectors) - 1)
                row[:] = self._vectors[ids].mean(axis=0)
        return rows


@functools.cache
def load() -> StaticModel:
    """Reads the static model, once a process.

    Raises:
      FileNotFoundError: ``wordllama`` is missing or laid out differently.
    """
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
    # The mean is over all tokens of the text and over no others.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return StaticModel(_read_tensor(folder / _WEIGHTS, _TENSOR), tokenizer)


def _read_tensor(path: pathlib.Path, name: str) -> np.ndarray:
    """Reads one float16 tensor of a safetensors file as float32."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    entry = json.loads(data[8 : 8 + length])[name]
    if entry["dtype"] != "F16":
        raise ValueError(f"{path}: expected {name} as F16, got {entry['dtype']}")
    start, end = entry["data_offsets"]
    flat = np.frombuffer(data[8 + length + start : 8 + length + end], "<f2")
    return flat.reshape(entry["shape"]).astype(np.float32)


class SentenceEmbedder:
    """A model of the library sentence-transformers, on the CPU.

    A text's row may differ in its last bits with the batch that it is embedded in.

    Attributes:
      name: ``sentence_transformers:MODEL:DIGEST``, the digest over the weights and how
        they are pooled; two models are never taken for one, and a copy in another
        folder of the same name is the same.
      dim: the model's own width.
    """

    def __init__(self, model: str, batch_size: int = 64):
        """Loads a model.

        Args:
          model: a local directory as ``SentenceTransformer.save`` writes it, or the
            name of a model on a hub, which must then be reachable.
          batch_size: texts in one forward pass.

        Raises:
          ImportError: the package is missing.
          ValueError: the model cannot be read.
        """
        library = _import_library()
        self._batch_size = batch_size
        self._model = _load_model(library, model)
        self.dim = self._measure_width()
        self.name = (
            f"{_PACKAGE}:{pathlib.Path(model).name}:{_model_digest(self._model)}"
        )

    def embed(self, texts: list[str]) -> np.ndarray:
        """Embeds texts as float32 [N, dim], unit norm.

        Args:
          texts: any strings.
        """
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        # A tokenizer refuses half of a surrogate pair.
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        rows = self._model.encode(
            clean,
            batch_size=self._batch_size,
            show_progress_bar=False,
            convert_to_numpy=True,
        )
        return self._check_rows(np.asarray(rows), len(texts))

    def _measure_width(self) -> int:
        """Embeds a word to learn the width: what a model says of it may be wrong."""
        rows = np.asarray(self._model.encode(["width"], show_progress_bar=False))
        if rows.ndim != 2 or not rows.shape[1]:
            raise ValueError(
                f"embedder {_PACKAGE!r}: expected one row of numbers a text, got "
                f"{rows.shape}; set memory.embedder_model to a model of sentences"
            )
        return rows.shape[1]

    def _check_rows(self, rows: np.ndarray, count: int) -> np.ndarray:
        """Returns rows as float32 of unit norm, or raises ValueError."""
        shape = (count, self.dim)
        if rows.shape != shape or not np.isfinite(rows).all():
            raise ValueError(
                f"embedder {self.name!r}: expected finite rows of shape {shape}, got "
                f"{rows.dtype} {rows.shape}; set memory.embedder_model to a whole model"
            )
        rows = rows.astype(np.float32)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        first = np.eye(1, self.dim, dtype=np.float32)  # for a row without a direction
        # The maximum keeps the branch that is not taken from dividing by 0.
        return np.where(norms > 1e-12, rows / np.maximum(norms, 1e-12), first)


def _import_library() -> Any:
    if importlib.util.find_spec(_PACKAGE) is None:
        raise ImportError(
            f"embedder {_PACKAGE!r} needs the package sentence-transformers, which is "
            "not installed: pip install 'mempo_jax[sentence-transformers]', or set "
            "memory.embedder to 'static'"
        )
    return importlib.import_module(_PACKAGE)


def _load_model(library: Any, model: str) -> Any:
    path = pathlib.Path(model).expanduser()
    if not path.is_dir() and (path.is_absolute() or model.startswith((".", "~"))):
        raise ValueError(
            f"embedder {_PACKAGE!r}: expected a model directory, got {model!r}, which "
            "is none; set memory.embedder_model"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the library warns about its own parts
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


def _model_digest(model: Any) -> str:
    """Twelve hex digits over weights, layers, pooling and the longest input."""
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


class CachedEmbedder:
    """Remembers the rows of the texts used last; they are read-only and shared.

    Attributes:
      name, dim: of the embedder behind the cache.
    """

    def __init__(self, embedder: Embedder, capacity: int):
        """Puts a cache before an embedder.

        Args:
          embedder: embeds the texts that are not in the cache.
          capacity: most texts remembered.
        """
        self._embedder = embedder
        self._capacity = capacity
        self._rows: collections.OrderedDict[str, np.ndarray] = collections.OrderedDict()
        self._lock = threading.Lock()
        self.name = embedder.name
        self.dim = embedder.dim

    def embed(self, texts: list[str]) -> np.ndarray:
        """Embeds texts as float32 [N, dim]; texts seen lately are not embedded again.

        Args:
          texts: any strings.

        Raises:
          ValueError: the embedder returned rows of another shape or type, or not
            finite.
        """
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        if len(texts) > self._capacity:  # a bulk build would only flush the cache
            return self._embedder.embed(list(texts))
        with self._lock:
            missing = [t for t in dict.fromkeys(texts) if t not in self._rows]
        fresh = {}
        if missing:
            rows = self._check_rows(self._embedder.embed(missing), len(missing))
            fresh = {text: _read_only(row) for text, row in zip(missing, rows)}
        with self._lock:
            if len(texts) == 1:
                return self._remember(texts[0], fresh)[None]
            return np.stack([self._remember(text, fresh) for text in texts])

    def _remember(self, text: str, fresh: dict) -> np.ndarray:
        row = self._rows.get(text)
        if row is None:
            row = fresh.get(text)
            if row is None:  # this very batch pushed it out
                row = _read_only(self._check_rows(self._embedder.embed([text]), 1)[0])
            self._rows[text] = row
            if len(self._rows) > self._capacity:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(text)
        return row

    def _check_rows(self, rows, count: int) -> np.ndarray:
        """Raises ValueError for bad rows, which the cache would keep for good."""
        shape, actual = (count, self.dim), getattr(rows, "shape", None)
        fits = actual == shape and rows.dtype == np.float32 and np.isfinite(rows).all()
        if not fits:
            raise ValueError(
                f"embedder {self.name!r}: expected finite float32 rows of shape {shape}"
                f", got {getattr(rows, 'dtype', type(rows).__name__)} {actual}; see "
                "memory.embedder"
            )
        return rows


def _read_only(row: np.ndarray) -> np.ndarray:
    """Returns a read-only copy: a view would keep its whole batch alive."""
    row = row.copy()
    row.setflags(write=False)
    return row
