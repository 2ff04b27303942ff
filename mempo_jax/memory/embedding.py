"""Texts to unit vectors: one protocol, a bounded cache, embedders by name."""

from __future__ import annotations

import collections
import re
import threading
import unicodedata
import zlib
from typing import Protocol

import numpy as np

from mempo_jax.memory import static_embedding
from mempo_jax.memory.sentence_embedding import SentenceEmbedder

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
        self._model = static_embedding.load()
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
