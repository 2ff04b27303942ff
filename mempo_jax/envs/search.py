"""A local search over passages: by words (BM25), by meaning (embedding), or fused.

Deterministic: the same passages and query give the same list on every machine that has
the same embedder. Sources: Robertson and Zaragoza 2009 (BM25); Cormack et al. 2009
(reciprocal rank fusion).
"""

from __future__ import annotations

import itertools
import logging
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from mempo_jax.envs.qa_data import Passage
from mempo_jax.memory import Embedder
from mempo_jax.memory.index import make_index

SEARCHES = ("fused", "bm25", "embedding")
RANK_OFFSET = 60  # of reciprocal rank fusion, as its authors chose it
WORD_WEIGHT = 2.0  # of the list by words against the one by meaning, which is weaker
DEPTH = 100  # of each list that is fused
SENTENCES = 4  # looked at by meaning, per passage wanted: the best of a passage counts
_WORD = re.compile(r"\w+")
_COMMON = frozenset(
    (
        *("a", "an", "and", "are", "as", "at", "be", "but", "by", "did", "do", "does"),
        *("for", "from", "had", "has", "have", "he", "her", "his", "how", "in", "is"),
        *("it", "its", "of", "on", "or", "she", "that", "the", "their", "they"),
        *("this", "to", "was", "were", "what", "when", "where", "which", "who"),
        *("whom", "whose", "why", "will", "with"),
    )
)


class SearchTool:
    """Ranks ``passages`` for a query.

    Args:
      how: one of ``SEARCHES``.
      embedder: makes the vectors; unused, and may be None, for ``bm25``.
    """

    def __init__(
        self, passages: Sequence[Passage], how: str, embedder: Embedder | None
    ) -> None:
        if how not in SEARCHES:
            raise ValueError(f"search: expected one of {SEARCHES}, got {how!r}")
        if not passages:
            raise ValueError("search: expected at least one passage, got none")
        self.passages = tuple(passages)
        self._how, self._embedder = how, embedder
        if how != "embedding":
            self._words = load_bm25s().BM25()
            # an index of no words at all cannot be built
            words = [_terms(f"{p.title} {p.text}") or [""] for p in self.passages]
            self._words.index(words, show_progress=False)
        if how != "bm25":
            self._index_sentences(embedder)

    def _index_sentences(self, embedder: Embedder) -> None:
        """A vector of each title, and of each sentence with its title."""
        owners, texts = [], []
        for at, passage in enumerate(self.passages):
            title = passage.title
            texts += [title, *(f"{title} {each}" for each in passage.sentences)]
            owners += [at] * (1 + len(passage.sentences))
        self._owners = np.array(owners)
        rows, exact = np.arange(len(texts)), len(texts) + 1
        # approximate search would depend on what was asked before
        self._vectors = make_index(rows, embedder.embed(texts), ann_threshold=exact)

    def search(self, query: str, count: int) -> list[Passage]:
        """The best ``count`` passages, best first; fewer where fewer match a word."""
        if self._how == "fused":
            both = [self._by_words(query, DEPTH), self._by_meaning(query, DEPTH)]
            ranked = fuse(both, (WORD_WEIGHT, 1.0))
        elif self._how == "bm25":
            ranked = self._by_words(query, count)
        else:
            ranked = self._by_meaning(query, count)
        return [self.passages[at] for at in ranked[:count]]

    def _by_words(self, query: str, count: int) -> list[int]:
        terms = _terms(query)
        if not terms:
            return []
        scores = self._words.get_scores(terms)
        best = np.argsort(-scores, kind="stable")[:count]
        return [int(at) for at in best if scores[at] > 0]

    def _by_meaning(self, query: str, count: int) -> list[int]:
        vector = self._embedder.embed([query])[0]
        most = min(len(self._owners), SENTENCES * count)
        rows, _ = self._vectors.search(vector, most)
        return list(dict.fromkeys(self._owners[rows].tolist()))


def load_bm25s() -> Any:
    """The package bm25s, kept from JAX and quiet.

    Where it finds JAX it starts a device as it is imported, before a run has chosen
    one, for a function that is not used here.
    """
    if "bm25s" not in sys.modules:
        missing = object()
        jax = sys.modules.get("jax", missing)
        sys.modules["jax"] = None  # an import of it fails from here
        try:
            import bm25s
        finally:
            del sys.modules["jax"]
            if jax is not missing:
                sys.modules["jax"] = jax
        # it would tell of every index on the launchers' screen
        logging.getLogger("bm25s").setLevel(logging.WARNING)
    import bm25s

    return bm25s


def fuse(rankings: Sequence[Sequence[int]], weights: Sequence[float]) -> list[int]:
    """Reciprocal rank fusion: the sum of weight / (60 + rank), rank from 1.

    Ties by number. Source: Cormack, Clarke and Buettcher 2009, "Reciprocal rank fusion
    outperforms Condorcet and individual rank learning methods".
    """
    scores: dict[int, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for rank, item in enumerate(ranking, start=1):
            scores[item] = scores.get(item, 0.0) + weight / (RANK_OFFSET + rank)
    return sorted(scores, key=lambda item: (-scores[item], item))


def _terms(text: str) -> list[str]:
    """Content words without plural or possessive s, and each two that follow."""
    found = (word for word in _WORD.findall(text.lower()) if word not in _COMMON)
    words = [_stem(word) for word in found if word != "s"]
    return words + [f"{a} {b}" for a, b in itertools.pairwise(words)]


def _stem(word: str) -> str:
    plural = len(word) > 3 and word.endswith("s") and word[-2] != "s"
    return word[:-1] if plural else word
