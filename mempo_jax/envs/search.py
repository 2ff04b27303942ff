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
RANK_OFFSET = 60  # the constant of reciprocal rank fusion, as its authors chose it
WORD_WEIGHT = 2.0  # weight of the list by words; the one by meaning is weaker and has 1
DEPTH = 100  # length of each list that is fused
# Sentences looked up by meaning per passage wanted: several may belong to one passage,
# whose best sentence counts.
SENTENCES = 4
_WORD = re.compile(r"\w+")
# Words that say nothing about what a query wants.
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
    """Ranks passages for a query.

    Args:
      passages: what is searched, at least one.
      how: one of ``SEARCHES``.
      embedder: makes the vectors; unused, and may be None, for ``bm25``.

    Raises:
      ValueError: an unknown ``how``, or no passages.
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
            # An index without any word cannot be built.
            words = [_terms(f"{p.title} {p.text}") or [""] for p in self.passages]
            self._words.index(words, show_progress=False)
        if how != "bm25":
            self._index_sentences(embedder)

    def _index_sentences(self, embedder: Embedder) -> None:
        """Embeds each title, and each sentence with its title."""
        owners, texts = [], []
        for at, passage in enumerate(self.passages):
            title = passage.title
            texts += [title, *(f"{title} {each}" for each in passage.sentences)]
            owners += [at] * (1 + len(passage.sentences))
        self._owners = np.array(owners)
        # A threshold above the number of rows: approximate search would depend on the
        # queries before.
        rows, exact = np.arange(len(texts)), len(texts) + 1
        self._vectors = make_index(rows, embedder.embed(texts), ann_threshold=exact)

    def search(self, query: str, count: int) -> list[Passage]:
        """Returns the best passages, best first.

        Args:
          query: words to search for.
          count: the most passages; there are fewer if fewer match a word.
        """
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
    """Imports the package bm25s, hidden from JAX and quiet.

    If it finds JAX, its import starts a device for a function that is not used here,
    before a run has chosen a device.
    """
    if "bm25s" not in sys.modules:
        missing = object()
        jax = sys.modules.get("jax", missing)
        sys.modules["jax"] = None  # makes "import jax" fail
        try:
            import bm25s
        finally:
            del sys.modules["jax"]
            if jax is not missing:
                sys.modules["jax"] = jax
        # It would log every index to the launchers' screen.
        logging.getLogger("bm25s").setLevel(logging.WARNING)
    import bm25s

    return bm25s


def fuse(rankings: Sequence[Sequence[int]], weights: Sequence[float]) -> list[int]:
    """Fuses rankings: an item's score is the sum of weight / (60 + rank), rank from 1.

    Ties are broken by number. Source: Cormack, Clarke and Buettcher 2009, "Reciprocal
    rank fusion outperforms Condorcet and individual rank learning methods".

    Args:
      rankings: lists of item numbers, best first.
      weights: weight of each list.
    """
    scores: dict[int, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for rank, item in enumerate(ranking, start=1):
            scores[item] = scores.get(item, 0.0) + weight / (RANK_OFFSET + rank)
    return sorted(scores, key=lambda item: (-scores[item], item))


def _terms(text: str) -> list[str]:
    """Returns content words without plural or possessive s, and pairs of neighbours."""
    content = (word for word in _WORD.findall(text.lower()) if word not in _COMMON)
    words = [_stem(word) for word in content if word != "s"]
    return words + [f"{a} {b}" for a, b in itertools.pairwise(words)]


def _stem(word: str) -> str:
    """Removes a plural s, but not of words like "gas" or "glass"."""
    plural = len(word) > 3 and word.endswith("s") and word[-2] != "s"
    return word[:-1] if plural else word
