"""What is searched and what is asked: unit vectors, clustered or of real texts."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

from benchmarks import _texts
from mempo_jax.memory import Embedder, make_embedder

K = 10  # neighbours asked for
_ROWS_AT_ONCE = 65_536


@dataclasses.dataclass(frozen=True)
class Case:
    """One collection, what is added to it later, and the queries.

    rows: float32 [count + inserts, dim], unit norm; the first ``count`` are there
    from the start. queries: float32 [q, dim], none of them a row. texts, asked: one
    text a row and one a query, which ``embedder`` turns into them.
    """

    name: str
    rows: np.ndarray
    count: int
    queries: np.ndarray
    texts: list[str]
    asked: list[str]
    embedder: Embedder


class RowEmbedder:
    """Looks a vector up by name: "v12" is row 12, "q3" is query 3."""

    name = "rows"

    def __init__(self, rows: np.ndarray, queries: np.ndarray):
        self.dim = rows.shape[1]
        self._tables = {"v": rows, "q": queries}

    def embed(self, texts: list[str]) -> np.ndarray:
        """float32 [len(texts), dim]; KeyError for a text of another form."""
        kind = texts[0][0]
        return self._tables[kind][[int(text[1:]) for text in texts]]


def clustered(count: int, inserts: int, queries: int, dim: int, seed: int) -> Case:
    """A mixture: sqrt(count) centres of unequal weight and unequal width.

    Weights are log-normal, so the largest cluster holds some 20 times the median one;
    noise is 0.4 to 1.0 times as long as a centre. Queries are fresh draws.
    """
    rng = np.random.default_rng(seed)
    clusters = max(2, round(count**0.5))
    centres = rng.standard_normal((clusters, dim), dtype=np.float32)
    widths = rng.uniform(0.4, 1.0, clusters).astype(np.float32)
    weights = rng.lognormal(0.0, 1.0, clusters)
    labels = rng.choice(clusters, count + inserts + queries, p=weights / weights.sum())
    drawn = np.empty((len(labels), dim), np.float32)
    for start in range(0, len(labels), _ROWS_AT_ONCE):
        label = labels[start : start + _ROWS_AT_ONCE]
        noise = rng.standard_normal((len(label), dim), dtype=np.float32)
        part = centres[label] + widths[label, None] * noise
        part /= np.linalg.norm(part, axis=1, keepdims=True)
        drawn[start : start + len(label)] = part
    rows, asked = drawn[: count + inserts], drawn[count + inserts :]
    return Case(
        f"clustered {count:,}",
        rows,
        count,
        asked,
        [f"v{i}" for i in range(len(rows))],
        [f"q{i}" for i in range(len(asked))],
        RowEmbedder(rows, asked),
    )


def of_texts(source: str, inserts: int, queries: int, seed: int, made: int) -> Case:
    """Texts behind the default embedder; some are held out as queries.

    source: ``made`` (``made`` sentences), ``factbook``, ``locomo:PATH``, or the path
    of a file with one text a line. At most a fifth each of the texts are inserted
    later and asked.
    """
    texts = _texts.tidy(_read(source, seed, made))
    if len(texts) < 100:
        raise ValueError(
            f"--texts: expected at least 100 different texts, {source!r} has "
            f"{len(texts)}; name a longer file"
        )
    order = np.random.default_rng(seed).permutation(len(texts))
    texts = [texts[i] for i in order]
    queries, inserts = min(queries, len(texts) // 5), min(inserts, len(texts) // 5)
    asked, kept = texts[:queries], texts[queries:]
    embedder = make_embedder("static")
    rows = np.ascontiguousarray(embedder.embed(kept))
    count = len(kept) - inserts
    label = "made sentences" if source == "made" else f"texts {_short(source)}"
    return Case(
        f"{label} {count:,}", rows, count, embedder.embed(asked), kept, asked, embedder
    )


def _read(source: str, seed: int, made: int) -> list[str]:
    if source == "made":
        return _texts.made_sentences(made, seed)
    if source == "factbook":
        return _texts.factbook_fields()
    if source.startswith("locomo:"):
        return _texts.locomo_turns(pathlib.Path(source.removeprefix("locomo:")))
    return pathlib.Path(source).read_text(encoding="utf-8").splitlines()


def _short(source: str) -> str:
    kind, _, path = source.rpartition(":")
    return kind or pathlib.PurePath(path).stem


def exact(rows: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    """Similarities of the k nearest rows, float32 [q, k], highest first."""
    best = np.full((len(queries), k), -np.inf, np.float32)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        scores = queries @ rows[start : start + _ROWS_AT_ONCE].T
        both = np.concatenate([best, scores], axis=1)
        best = np.partition(both, both.shape[1] - k, axis=1)[:, -k:]
    return -np.sort(-best, axis=1)


def recall(rows, queries, found, kth: np.ndarray) -> float:
    """Share of the k nearest that was found.

    found: ids per query. kth: the k-th highest similarity per query; a row of equal
    similarity counts, as which of two equal rows is "the" neighbour is arbitrary.
    """
    hits = asked = 0
    for query, ids, bound in zip(queries, found, kth):
        ids = np.unique(np.asarray(ids, np.int64))
        ids = ids[(ids >= 0) & (ids < len(rows))]
        hits += int((rows[ids] @ query >= bound - 1e-5).sum())
        asked += K
    return hits / asked
