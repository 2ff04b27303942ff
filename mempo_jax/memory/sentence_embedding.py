"""Sentence embedders of the optional package ``sentence-transformers``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pathlib
import warnings
from typing import Any

import numpy as np

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
